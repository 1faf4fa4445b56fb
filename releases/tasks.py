"""Celery tasks of the releases app. They only say "look again": each is harmless when it runs twice, late, or not at all."""

from __future__ import annotations

from celery import shared_task

from metrics.services import loop_pass
from releases.services.dry_runs import dry_run_run, dry_runs_sweep


@shared_task(name="releases.run_dry_run")
def run_dry_run(id: str) -> None:
    """Compute one dry run."""
    dry_run_run(id=id)


@shared_task(name="releases.reconcile")
def reconcile() -> None:
    """One look at every rollout in flight, and at dry runs whose wake was lost."""
    from releases.reconcile import reconcile as reconcile_rollouts

    with loop_pass("releases.reconcile") as seen:
        dry_runs_sweep()
        seen.failures = reconcile_rollouts().failures
