"""The audit trail over REST: checking its chain, and writing down what was refused."""

from __future__ import annotations

import time
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from denvweb import api
from denvweb.auth import via_of
from denvweb.core import wire
from denvweb.core.errors import ForbiddenError
from denvweb.throttle import take
from metrics.domain.chain import ChainCheck
from metrics.selectors import chain_view
from metrics.services import refusal_append

# Not 400, a mistake of typing, nor 429, which would fill the journal; of strangers' 401 no more than a few a minute, likewise.
_REFUSED = {401, 403, 404, 409, 412, 422}
_SAFE = {"GET", "HEAD", "OPTIONS"}


class AuditVerifyView(APIView):
    """GET /audit/verify."""

    @extend_schema(
        operation_id="audit_verify",
        parameters=[OpenApiParameter("head", str, description="A `head` of earlier: is it still in the chain?")],
        responses=api.schema_of(ChainCheck),
    )
    def get(self, request: Request) -> Response:
        """Check the whole journal against its chain of hashes; `problem` is empty when it holds. Administrators only."""
        if not request.user.is_superuser:
            raise ForbiddenError("Only an administrator may check the journal: it reads all of it.")
        return Response(wire.to_plain(chain_view(head=request.query_params.get("head", ""))))


def exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """The one error body, and a row in the journal when a change was refused."""
    response = api.exception_handler(error, context)
    request = context.get("request")
    if response is not None and isinstance(request, Request) and _is_attempt(request, response.status_code):
        _write_down(request, context.get("kwargs") or {}, response)
    return response


def _is_attempt(request: Request, status: int) -> bool:
    if request.method in _SAFE or status not in _REFUSED:
        return False
    return status != 401 or not take("journal of strangers", per_s=0.2, burst=20, now_mono_s=time.monotonic())


def _write_down(request: Request, kwargs: dict[str, Any], response: Response) -> None:
    model, name = str(kwargs.get("model", "")), str(kwargs.get("name", ""))
    user = getattr(request, "_user", None)  # asking for `user` would authenticate again, and fail again
    refusal_append(
        what=f"{request.method} {request.path}"[:300],
        code=response.data["code"],
        detail=response.data["detail"],
        actor=user.get_username() if user else "nobody",
        via=via_of(request) if user else "api",
        model=model[:63],
        stage=f"{model}/{name}" if model and name and len(model) < 64 and len(name) < 64 else "",
    )
