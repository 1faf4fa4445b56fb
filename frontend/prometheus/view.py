"""GET /metrics: for a Prometheus with an API token. A token sees the stages that its owner may see."""

from __future__ import annotations

from importlib.metadata import version

from django.http import HttpResponse
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.request import Request
from rest_framework.views import APIView

from denvweb.access import seen_by
from fleets import selectors as fleets
from frontend.prometheus.families import Seen, families
from metrics import selectors as metrics
from metrics.domain.exposition import TEXT_TYPE, text_page
from releases.selectors.heads import stage_heads
from releases.selectors.rollouts import rollout_counts


class _OneFormat(BaseContentNegotiation):
    """Whatever is asked for gets the text format, as the exposition formats' own rules have it; errors are JSON."""

    def select_renderer(self, request, renderers, format_suffix=None):  # type: ignore[no-untyped-def]  # as in the base class
        return renderers[0], renderers[0].media_type

    def select_parser(self, request, parsers):  # type: ignore[no-untyped-def]  # as in the base class
        return parsers[0]


class PrometheusView(APIView):
    """The control plane's figures in Prometheus' text format."""

    content_negotiation_class = _OneFormat

    @extend_schema(exclude=True)
    def get(self, request: Request) -> HttpResponse:
        """All families; a fixed number of queries whatever their number."""
        now, may_see = timezone.now(), seen_by(request.user)
        heads = [head for head in stage_heads(simulated=frozenset()) if head.model in may_see]
        keys = {head.stage for head in heads}
        seen = Seen(
            now=now,
            version=version("denv"),
            stages=heads,
            routers=fleets.routers_views(stages=keys, now=now),
            pools=[pool for pool in fleets.pool_totals() if pool.stage in keys],
            rollouts=[row for row in rollout_counts() if row[0] in keys],
            fleets=fleets.fleet_totals(),
            loops=metrics.loops_view(),
            backlogs=metrics.backlogs_view(),
        )
        return HttpResponse(text_page(families(seen)), content_type=TEXT_TYPE)
