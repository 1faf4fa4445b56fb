"""REST: what a stage would do under another traffic."""

from __future__ import annotations

import random
from dataclasses import dataclass

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from denvweb.access import access_stage
from denvweb.api import schema_of
from denvweb.core import wire
from denvweb.listing import checked
from denvweb.openapi import ErrorBody
from denvweb.throttle import HeavyThrottle
from fleets.domain.sizing.whatif import At, Curve
from fleets.domain.sizing.whatif import what_if as ask
from frontend import whatif
from releases.selectors.ground import sizing_ground


class TrafficField(serializers.FloatField):
    """A number of the traffic or a limit; what was measured when left out."""

    def __init__(self, help_text: str) -> None:
        super().__init__(required=False, min_value=0.0, max_value=1e9, help_text=help_text)


class WhatIfQuery(serializers.Serializer[dict[str, float]]):
    """The sliders of the page."""

    rate = TrafficField("requests a second")
    isl = TrafficField("tokens of a prompt")
    osl = TrafficField("tokens of an answer")
    hit = TrafficField("percent of a prompt that is cached")
    ttft = TrafficField("limit of the TTFT p99, ms")
    itl = TrafficField("limit of the ITL p99, ms")


@dataclass(frozen=True, slots=True)
class ShapeView:
    """One shape over loads from little to much; `carries_per_s` is the largest of them within both limits, 0 when none is."""

    shape: str
    gpus: int
    carries_per_s: float
    at: tuple[At, ...]

    @classmethod
    def of(cls, curve: Curve) -> ShapeView:
        """What was simulated, in words."""
        return cls(whatif.shape_text(curve.shape), curve.shape.gpus, curve.carries_per_s, curve.at)


@dataclass(frozen=True, slots=True)
class WhatIfView:
    """The shape in force and the one advised. `asked` is what was simulated: numbers out of range are taken back into it."""

    asked: dict[str, float]
    in_force: ShapeView
    advised: ShapeView | None
    refusal: str  # why nothing is advised


class WhatIfEndpoint(APIView):
    """GET /stages/MODEL/STAGE/what-if."""

    throttle_classes = [HeavyThrottle]

    @extend_schema(
        parameters=[WhatIfQuery], responses={200: schema_of(WhatIfView), 409: schema_of(ErrorBody)}, operation_id="stages_what_if"
    )
    def get(self, request: Request, model: str, name: str) -> Response:
        """Simulates a few hundred requests at each load; `denv size` simulates more of them."""
        stage = f"{model}/{name}"
        access_stage(request.user, stage)
        given = {key: str(value) for key, value in checked(WhatIfQuery, request).items()}
        ground = sizing_ground(stage=stage)
        form = whatif.sliders(ground, given)
        found = ask(ground.serving, whatif.need_of(form), ground.shape, random.Random)
        advised = ShapeView.of(found.advised) if found.advised else None
        view = WhatIfView({slider.name: slider.value for slider in form}, ShapeView.of(found.present), advised, found.refusal)
        return Response(wire.to_plain(view))
