"""The JSON schema of spec files. It says nothing of this installation, so an editor may read it without a token."""

from __future__ import annotations

from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe

from releases.domain.spec_schema import spec_schema


@require_safe
@cache_control(public=True, max_age=3600)
def spec_schema_view(request: HttpRequest) -> JsonResponse:
    """JSON Schema 2020-12 of denv.yaml."""
    return JsonResponse(spec_schema(), content_type="application/schema+json")
