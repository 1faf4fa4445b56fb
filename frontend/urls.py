"""The pages."""

from __future__ import annotations

from django.urls import URLPattern, path, re_path

from frontend.pages import (
    access,
    actions,
    assets,
    events,
    fleets,
    keys,
    logs,
    nodes,
    oidc,
    overview,
    recipes,
    releases,
    rollout,
    settings,
    stage,
    whatif,
)
from frontend.pages.login import LoginView, LogoutView
from frontend.slack.urls import urlpatterns as slack_urlpatterns

urlpatterns: list[URLPattern] = [
    path("", overview.overview, name="overview"),
    path("attention", overview.attention_count, name="attention"),
    path("login", LoginView.as_view(), name="login"),
    path("logout", LogoutView.as_view(), name="logout"),
    path("oidc/start", oidc.oidc_start, name="oidc-start"),
    path("oidc/callback", oidc.oidc_callback, name="oidc-callback"),
    path("oidc/link", oidc.oidc_link, name="oidc-link"),
    path("oidc/logout", oidc.oidc_logout, name="oidc-logout"),
    path("fleets", fleets.fleets, name="fleets"),
    re_path(r"^fleets/nodes/(?P<name>[^/]+)/(?P<action>cordon|uncordon|drain)$", nodes.node_act, name="node-act"),
    path("fleets/nodes/<str:name>", nodes.node, name="node"),
    path("events", events.events, name="events"),
    path("events/verify", events.audit_verify, name="audit-verify"),
    path("recipes", recipes.recipes, name="recipes"),
    path("access", access.access, name="access"),
    re_path(r"^access/(?P<action>give|take|policy)$", access.access_act, name="access-act"),
    path("settings", settings.settings, name="settings"),
    re_path(rf"^settings/(?P<action>{'|'.join(settings.ACTS)})$", settings.settings_act, name="settings-act"),
    path("releases", releases.releases, name="releases"),
    path("releases/new", releases.release_new, name="release-new"),
    path("releases/new/fields", releases.release_fields, name="release-fields"),
    path("releases/dry-runs/<str:dry_run>", releases.dry_run, name="dry-run"),
    path("releases/<str:model>/<int:number>", releases.release, name="release"),
    path("releases/<str:model>/<int:number>/rollouts", releases.release_rollouts, name="release-rollouts"),
    path("stages/<str:model>/<str:name>", stage.stage, name="stage"),
    path("stages/<str:model>/<str:name>/what-if", whatif.what_if, name="what-if"),
    path("stages/<str:model>/<str:name>/ratio", whatif.ratio, name="ratio"),
    path("stages/<str:model>/<str:name>/charts", stage.stage_charts, name="stage-charts"),
    path("stages/<str:model>/<str:name>/logs", logs.logs, name="stage-logs"),
    path("stages/<str:model>/<str:name>/keys", keys.keys, name="stage-keys"),
    re_path(rf"^stages/(?P<model>[^/]+)/(?P<name>[^/]+)/keys/(?P<action>{'|'.join(keys.ACTS)})$", keys.keys_act, name="stage-keys-act"),
    path("stages/<str:model>/<str:name>/units", stage.stage_units, name="stage-units"),
    path("stages/<str:model>/<str:name>/way-back", rollout.way_back, name="way-back"),
    path("stages/<str:model>/<str:name>/rollback", actions.rollback, name="rollback"),
    re_path(r"^stages/(?P<model>[^/]+)/(?P<name>[^/]+)/rollout/(?P<action>promote|pause|resume|abort)$", actions.act, name="rollout-act"),
    path("rollouts/<slug:id>", rollout.rollout, name="rollout"),
    *slack_urlpatterns,
    path("assets/plotly-<str:version>.min.js", assets.plotly_js, name="plotly"),
]
