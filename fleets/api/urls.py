"""REST URLs of the fleets app."""

from __future__ import annotations

from django.urls import URLPattern, path

from fleets.api.key_views import ApiKeysView, ApiKeyView, KeysRequiredView
from fleets.api.log_views import logs
from fleets.api.node_views import CordonView, DrainPlanView, DrainView, JoinTokensView, NodesView, NodeView, ThawView, UncordonView
from fleets.api.placement_views import DefragView, StagePlacementView
from fleets.api.secret_views import SecretsView, SecretView
from fleets.api.views import FleetDetailView, FleetListView

urlpatterns: list[URLPattern] = [
    path("fleets", FleetListView.as_view()),
    path("fleets/<str:name>", FleetDetailView.as_view()),
    path("fleets/<str:name>/thaw", ThawView.as_view()),
    path("join-tokens", JoinTokensView.as_view()),
    path("nodes", NodesView.as_view()),
    path("nodes/<str:name>", NodeView.as_view()),
    path("nodes/<str:name>/cordon", CordonView.as_view()),
    path("nodes/<str:name>/drain", DrainView.as_view()),
    path("nodes/<str:name>/drain-plan", DrainPlanView.as_view()),
    path("nodes/<str:name>/uncordon", UncordonView.as_view()),
    path("placement/defrag", DefragView.as_view()),
    path("secrets", SecretsView.as_view()),
    path("secrets/<str:name>", SecretView.as_view()),
    path("stages/<str:model>/<str:name>/keys", ApiKeysView.as_view()),
    path("stages/<str:model>/<str:name>/keys-required", KeysRequiredView.as_view()),
    path("stages/<str:model>/<str:name>/keys/<str:id>", ApiKeyView.as_view()),
    path("stages/<str:model>/<str:name>/logs", logs),
    path("stages/<str:model>/<str:name>/placement", StagePlacementView.as_view()),
]
