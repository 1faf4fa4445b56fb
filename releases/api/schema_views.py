"""The JSON schema of spec files. It says nothing of this installation, so an editor may read it without a token."""

from __future__ import annotations

from django.http import HttpRequest, JsonResponse
from django.utils.cache import patch_cache_control
from django.views.decorators.csrf import csrf_exempt

from denvweb.api import refusal
from denvweb.core.errors import MethodError
from releases.domain.spec_schema import spec_schema


@csrf_exempt  # it changes nothing: what is no GET is told so
def spec_schema_view(request: HttpRequest) -> JsonResponse:
    """JSON Schema 2020-12 of denv.yaml."""
    if request.method not in ("GET", "HEAD"):
        return refusal(MethodError("GET"))
    response = JsonResponse(spec_schema(), content_type="application/schema+json")
    patch_cache_control(response, public=True, max_age=3600)
    return response
