"""REST URLs of stages and rollouts."""

from __future__ import annotations

from django.urls import URLPattern, path

from releases.api import rollout_views, scale_views, stage_views

STAGE = "stages/<str:model>/<str:name>"

urlpatterns: list[URLPattern] = [
    path("stages", stage_views.StagesView.as_view(), name="stages"),
    path(STAGE, stage_views.StageDetailView.as_view(), name="stage-detail"),
    path(f"{STAGE}/preflight", stage_views.PreflightDetailView.as_view(), name="stage-preflight"),
    path(f"{STAGE}/scale", scale_views.StageScaleView.as_view(), name="stage-scale"),
    path(f"{STAGE}/rollback", rollout_views.RollbackView.as_view(), name="stage-rollback"),
    path(f"{STAGE}/rollout", rollout_views.StageRolloutView.as_view(), name="stage-rollout"),
    path(f"{STAGE}/rollout/promote", rollout_views.PromoteView.as_view(), name="rollout-promote"),
    path(f"{STAGE}/rollout/pause", rollout_views.PauseView.as_view(), name="rollout-pause"),
    path(f"{STAGE}/rollout/resume", rollout_views.ResumeView.as_view(), name="rollout-resume"),
    path(f"{STAGE}/rollout/abort", rollout_views.AbortView.as_view(), name="rollout-abort"),
    path("rollouts", rollout_views.RolloutsView.as_view(), name="rollouts"),
    path("rollouts/<str:id>", rollout_views.RolloutDetailView.as_view(), name="rollout-detail"),
]
