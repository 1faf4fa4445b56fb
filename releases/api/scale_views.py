"""REST: how a stage is scaled, and setting it by hand."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from denvweb.access import Action, access_stage
from denvweb.api import StrictSerializer, schema_of
from denvweb.auth import via_of
from denvweb.core import wire
from denvweb.idempotency import idempotent
from fleets.domain.scaling.types import Knob
from releases.domain.scaling_views import ScaleView
from releases.selectors.scaling import scale_view
from releases.services.scaling import stage_scale

MOST = 4096


def _count(what: str) -> serializers.IntegerField:
    return serializers.IntegerField(min_value=0, max_value=MOST, required=False, allow_null=True, help_text=what)


class ScaleRequest(StrictSerializer):
    """The numbers to set; those that are not named stay. Or `auto` alone, which gives all of them back to the traffic."""

    units = _count("serving units of the stage")
    prefill = _count("prefill replicas of each serving unit")
    decode = _count("decode replicas of each serving unit")
    aggregated = _count("aggregated replicas of each serving unit")
    auto = serializers.BooleanField(required=False, default=False)
    reason = serializers.CharField(required=False, allow_blank=True, max_length=200, default="")


class StageScaleView(APIView):
    """GET and POST /stages/{model}/{name}/scale."""

    @extend_schema(operation_id="stages_scale", responses=schema_of(ScaleView))
    def get(self, request: Request, model: str, name: str) -> Response:
        """What is in force, what is advised and why, the bounds, and who holds which number."""
        access_stage(request.user, f"{model}/{name}")
        return Response(wire.to_plain(scale_view(stage=f"{model}/{name}")))

    @extend_schema(operation_id="stages_scale_set", request=ScaleRequest, responses=schema_of(ScaleView))
    @idempotent
    def post(self, request: Request, model: str, name: str) -> Response:
        """Set numbers inside the ranges of the release; they stay until they are given back. Outside them it takes a release."""
        stage = f"{model}/{name}"
        access_stage(request.user, stage, Action.SCALE)
        wanted = ScaleRequest(data=request.data)
        wanted.is_valid(raise_exception=True)
        body = wanted.validated_data
        counts = {knob: body[knob.value] for knob in Knob if body.get(knob.value) is not None}
        actor = request.user.get_username()
        stage_scale(stage=stage, counts=counts, auto=body["auto"], reason=body["reason"], actor=actor, via=via_of(request))
        return Response(wire.to_plain(scale_view(stage=stage)))
