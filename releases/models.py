"""Tables of the releases app: models, stages, releases, rollouts and dry runs."""

from __future__ import annotations

from django.db import models
from django.db.models import Q


class Model(models.Model):
    """What clients ask for by name."""

    name = models.CharField(max_length=63, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class Release(models.Model):
    """An immutable, numbered spec of a model. A database trigger refuses updates of its spec."""

    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="releases")
    number = models.PositiveIntegerField()
    yaml = models.TextField()  # as the user wrote it
    spec = models.JSONField()  # releases.domain.spec.ReleaseSpec, normalised, stages included
    generations = models.JSONField()  # hash by role, and `compat`, of the release's own topology
    note = models.CharField(max_length=200, blank=True)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)
    held_reason = models.CharField(max_length=200, blank=True)  # why automation may not deploy it; the one field that may change

    class Meta:
        constraints = [models.UniqueConstraint(fields=["model", "number"], name="release_number_once")]

    def __str__(self) -> str:
        return f"{self.model.name}@{self.number}"


class Stage(models.Model):
    """Where a model runs. Its settings are those of the release file that was last rolled out, or is being rolled out, to it."""

    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="stages")
    name = models.CharField(max_length=63)
    position = models.PositiveIntegerField()  # rolled out in this order
    settings = models.JSONField()  # releases.domain.spec.StageSpec
    release = models.ForeignKey(Release, null=True, blank=True, on_delete=models.PROTECT, related_name="+")  # the stable one
    previous = models.ForeignKey(Release, null=True, blank=True, on_delete=models.PROTECT, related_name="+")  # the one before it
    draining = models.JSONField(default=dict)  # between rollouts: unit -> since when nothing new is routed to it
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["model", "name"], name="stage_name_once")]
        ordering = ["model__name", "position"]

    def __str__(self) -> str:
        return f"{self.model.name}/{self.name}"


class StageScale(models.Model):
    """A stage's numbers of units and replicas at run time. Without a row, or a number in it, it has what its release starts with."""

    stage = models.OneToOneField(Stage, primary_key=True, on_delete=models.CASCADE, related_name="scale")
    wanted = models.JSONField(default=dict)  # in force, by releases.domain.scaling.Knob
    manual = models.JSONField(default=dict)  # those that a person holds, by knob: `count`, `by`, `at`
    advised = models.JSONField(default=dict)  # by knob, as last decided; the same as `wanted` unless something keeps it from being done
    advised_why = models.TextField(blank=True)  # with its numbers
    local_prefill_below = models.PositiveIntegerField(null=True, blank=True)  # tokens; None: as the release has it
    memory = models.JSONField(default=dict)  # fleets.domain.scaling.types.Memory
    waits = models.JSONField(default=dict)  # by knob: until when a number that would move may not
    looked_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.stage_id}: {self.wanted}"


class Rollout(models.Model):
    """The journey of a stage from one release to another, or back. `data` is the pure state machine's state."""

    class State(models.TextChoices):
        """Where the journey is; the transitions are in releases.domain.rollout."""

        PENDING = "pending"  # waits for its turn: an earlier stage of the same release, or its first tick
        ROLLING = "rolling"  # bringing up, shifting, holding
        HELD = "held"  # waits, for the reason in `reason`
        BAKING = "baking"  # all traffic is on the new release, alarms still roll back
        SUCCEEDED = "succeeded"
        ROLLING_BACK = "rolling-back"  # no edge leads forward out of here
        ROLLED_BACK = "rolled-back"
        ROLLBACK_BLOCKED = "rollback-blocked"  # a person is needed
        SUPERSEDED = "superseded"

    ENDED = (State.SUCCEEDED, State.ROLLED_BACK, State.SUPERSEDED)

    id = models.CharField(primary_key=True, max_length=24)
    stage = models.ForeignKey(Stage, on_delete=models.PROTECT, related_name="rollouts")
    kind = models.CharField(max_length=10, default="rollout")  # or `rollback`, when it goes back after a success
    from_release = models.ForeignKey(Release, null=True, on_delete=models.PROTECT, related_name="+")
    to_release = models.ForeignKey(Release, on_delete=models.PROTECT, related_name="+")
    after = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="+")  # starts once that one succeeded
    state = models.CharField(max_length=20, choices=State.choices, default=State.PENDING)
    reason = models.CharField(max_length=40, blank=True)
    why = models.TextField(blank=True)
    generation = models.PositiveBigIntegerField(default=0)  # grows with each decision; decisions compare and swap on it
    plan = models.JSONField()  # as shown by the dry run
    data = models.JSONField()  # releases.domain.rollout.RolloutState
    verdicts = models.JSONField(default=list)  # metrics.domain.views.AlarmVerdict, as last looked at
    started_by = models.CharField(max_length=150)
    via = models.CharField(max_length=10, default="api")
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["stage"],
                condition=~Q(state__in=["succeeded", "rolled-back", "superseded"]),
                name="one_active_rollout_per_stage",
            )
        ]

    def __str__(self) -> str:
        return f"{self.id} ({self.state})"


class RollbackRequest(models.Model):
    """Committed before the reply, and stronger than all else. At most one a rollout: asking twice gives the same one."""

    rollout = models.OneToOneField(Rollout, on_delete=models.CASCADE, related_name="rollback_request")
    requested_by = models.CharField(max_length=150)
    via = models.CharField(max_length=10)
    reason = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)


class FreezeWindow(models.Model):
    """A time in which nothing goes forward: recurring in its zone, or once. Empty `model` or `stage`: all."""

    id = models.CharField(primary_key=True, max_length=24)
    model = models.CharField(max_length=63, blank=True)  # by name: it may be set before the model has a release
    stage = models.CharField(max_length=63, blank=True)
    zone = models.CharField(max_length=64)  # IANA
    days = models.JSONField(default=list)  # of releases.domain.freezes.DAYS
    start = models.TimeField(null=True, blank=True)  # local
    end = models.TimeField(null=True, blank=True)
    begins_at = models.DateTimeField(null=True, blank=True)
    ends_at = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=200)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(start__isnull=False, end__isnull=False, begins_at__isnull=True, ends_at__isnull=True)
                | Q(start__isnull=True, end__isnull=True, begins_at__lt=models.F("ends_at")),
                name="freeze_recurs_or_is_once",
            )
        ]
        ordering = ["created_at", "id"]

    def __str__(self) -> str:
        return f"{self.id} ({self.reason})"


class DryRun(models.Model):
    """A dry run: the text, how far it is, and what came of it."""

    class State(models.TextChoices):
        """How far it is."""

        QUEUED = "queued"  # no worker has taken it yet
        RUNNING = "running"
        DONE = "done"

    id = models.CharField(primary_key=True, max_length=24)
    yaml = models.TextField()
    only_stage = models.CharField(max_length=63, blank=True)
    supersede = models.BooleanField(default=False)  # as a release that ends a rollout in flight
    break_glass = models.BooleanField(default=False)  # as a release that begins in spite of freeze windows
    state = models.CharField(max_length=10, choices=State.choices, default=State.QUEUED)
    progress = models.FloatField(default=0)
    progress_text = models.CharField(max_length=120, blank=True)
    result = models.JSONField(null=True)  # releases.domain.views.DryRunView
    requested_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)
