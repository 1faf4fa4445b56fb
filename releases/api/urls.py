"""REST URLs of the releases app."""

from __future__ import annotations

from django.urls import URLPattern, path

from releases.api import freeze_views, release_views, schema_views
from releases.api.rollout_urls import urlpatterns as rollout_urlpatterns

urlpatterns: list[URLPattern] = [
    path("schema/denv.yaml", schema_views.spec_schema_view, name="api-spec-schema"),
    path("dry-runs", release_views.DryRunsView.as_view(), name="api-dry-runs"),
    path("dry-runs/<str:id>", release_views.DryRunDetailView.as_view(), name="api-dry-run"),
    path("releases", release_views.ReleasesView.as_view(), name="api-releases"),
    path("models/<str:model>/releases", release_views.ModelReleasesView.as_view(), name="api-model-releases"),
    path("models/<str:model>/releases/<int:number>", release_views.ReleaseDetailView.as_view(), name="api-release"),
    path("models/<str:model>/releases/<int:number>/resume", release_views.ReleaseResumeView.as_view(), name="api-release-resume"),
    path("models/<str:model>/releases/<int:number>/diff", release_views.ReleaseDiffView.as_view(), name="api-release-diff"),
    path("recipes", release_views.RecipesView.as_view(), name="api-recipes"),
    path("freeze-windows", freeze_views.FreezeWindowsView.as_view(), name="api-freeze-windows"),
    path("freeze-windows/<str:id>", freeze_views.FreezeWindowDetailView.as_view(), name="api-freeze-window"),
    *rollout_urlpatterns,
]
