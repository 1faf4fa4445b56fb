"""Tables of the metrics app: figures, the state of alarms, the journal with its chain of hashes, and the notices it sends out."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Extract

WINDOW_S = 10  # what reports are merged into; kept for a day
ROLLED_S = 300  # what those are rolled up into; kept for a month
JOURNAL_LOCK = 0x64656E76  # the advisory lock that whoever writes to the journal shares until it commits


class Window(models.Model):
    """The figures of one series over 10 seconds, or over the 5 minutes that those are rolled up into.

    Counters, alarms and histograms are columns of their own, so that a look at counts does not read the far larger
    histograms. Their shapes are those of metrics.domain.window.
    """

    stage = models.CharField(max_length=127)
    unit = models.CharField(max_length=40)
    prefill_release = models.CharField(max_length=80)
    decode_release = models.CharField(max_length=80)
    route = models.CharField(max_length=10)
    probe = models.BooleanField(default=False)
    seconds = models.PositiveSmallIntegerField(default=WINDOW_S)
    start_at = models.DateTimeField()
    # A 10 s row: all of it is in its 5-minute row. A 5-minute row: its 10 s rows are gone, so late figures are added to it.
    settled = models.BooleanField(default=False)
    counters = models.JSONField(default=dict)
    alarms = models.JSONField(default=dict)
    histograms = models.JSONField(default=dict)
    split = models.TextField(default="", db_default="", blank=True)  # metrics.domain.split

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["stage", "seconds", "start_at", "unit", "decode_release", "prefill_release", "route", "probe"],
                name="window_once",  # also what every read by (stage, seconds, start_at) goes through
            )
        ]
        indexes = [
            models.Index(fields=["seconds", "start_at"], name="window_by_age"),
            models.Index(fields=["stage", "start_at"], condition=Q(settled=False, seconds=WINDOW_S), name="window_unsettled"),
        ]

    def __str__(self) -> str:
        return f"{self.stage} {self.unit} {self.start_at:%H:%M:%S} +{self.seconds}s"


class IngestedReport(models.Model):
    """A report that is in the windows. Written in the same transaction, so a report sent twice counts once."""

    source = models.CharField(max_length=120)  # router and boot
    seq = models.BigIntegerField()
    stage = models.CharField(max_length=127, blank=True)
    received_at = models.DateTimeField()  # by the server's clock: a router's own may be wrong

    class Meta:
        constraints = [models.UniqueConstraint(fields=["source", "seq"], name="report_once")]
        indexes = [
            models.Index(fields=["stage", "-received_at"], name="report_by_stage"),
            models.Index(fields=["received_at"], name="report_by_age"),
        ]

    def __str__(self) -> str:
        return f"{self.source}#{self.seq}"


class GaugeWindow(models.Model):
    """The newest values of a unit's gauges within 10 seconds; the sum over routers is the caller's to make."""

    stage = models.CharField(max_length=127)
    unit = models.CharField(max_length=40)
    start_at = models.DateTimeField()
    received_at = models.DateTimeField()
    values = models.JSONField(default=dict)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["stage", "start_at", "unit"], name="gauge_window_once")]
        # For dropping what is old, and by an expression, so that no reading of a stage's hour takes it and reads the hour of all stages.
        indexes = [models.Index(Extract("start_at", "epoch"), name="gauge_by_age")]

    def __str__(self) -> str:
        return f"{self.stage} {self.unit} {self.start_at:%H:%M:%S}"


class Glance(models.Model):
    """The last half hour of a stage in few numbers, derived from its windows: what the overview draws of hundreds of stages."""

    stage = models.CharField(primary_key=True, max_length=127)
    end_at = models.DateTimeField()  # of its last step
    data = models.JSONField()  # metrics.domain.glance.GlanceView

    def __str__(self) -> str:
        return self.stage


class Event(models.Model):
    """One row of the journal. A database trigger refuses to change or delete it."""

    seq = models.BigAutoField(primary_key=True)
    at = models.DateTimeField()
    kind = models.CharField(max_length=60)
    level = models.CharField(max_length=8)
    sentence = models.TextField()
    actor = models.CharField(max_length=150)
    via = models.CharField(max_length=12)
    model = models.CharField(max_length=63, blank=True)
    stage = models.CharField(max_length=127, blank=True)
    fleet = models.CharField(max_length=63, blank=True)
    rollout = models.CharField(max_length=24, blank=True)
    release = models.CharField(max_length=80, blank=True)
    evidence = models.JSONField(default=dict)
    proof = models.CharField(max_length=80, blank=True)  # how whoever did it had proved who they are: `session`, `token tok-..`
    request_id = models.CharField(max_length=64, blank=True)
    digest = models.CharField(max_length=64, blank=True)  # metrics.domain.chain; rows older than the chain have none

    class Meta:
        indexes = [
            models.Index(fields=["stage", "-seq"], name="event_by_stage"),
            models.Index(fields=["model", "-seq"], name="event_by_model"),
            models.Index(fields=["fleet", "-seq"], name="event_by_fleet"),
            models.Index(fields=["rollout", "-seq"], name="event_by_rollout"),
            models.Index(fields=["-at"], name="event_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.seq} {self.kind}"


class EventSeal(models.Model):
    """A link of the journal's chain. A database trigger writes it when the event's transaction commits, and refuses to change it.

    At commit, and not with the event: the lock that gives links their order is then the last one that a transaction takes,
    so it is held for an instant and can be in no deadlock. Links are in the order of commits, which need not be that of numbers.
    """

    event_seq = models.BigIntegerField(unique=True)
    prev_hash = models.CharField(max_length=64, blank=True)
    hash = models.CharField(max_length=64)  # SHA-256 of the one before, the event's number and its digest

    def __str__(self) -> str:
        return f"{self.pk}: event {self.event_seq}"


class Channel(models.Model):
    """Where notices go: a Slack channel, or a webhook."""

    class Kind(models.TextChoices):
        """What is at the other end."""

        SLACK = "slack", "a channel of a Slack workspace"
        WEBHOOK = "webhook", "an https address that takes signed JSON"

    id = models.CharField(primary_key=True, max_length=24)
    kind = models.CharField(max_length=10, choices=Kind.choices)
    name = models.CharField(max_length=60, unique=True)
    address = models.CharField(max_length=500)  # `C0123456789`, or an URL
    secret = models.TextField(blank=True)  # encrypted: the bot's token, or what a webhook is signed with
    allow_private = models.BooleanField(default=False)  # a webhook inside of one's own network
    enabled = models.BooleanField(default=True)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Outbox(models.Model):
    """One notice for one channel, written with its event; delivered later, at least once."""

    class State(models.TextChoices):
        """How far it is."""

        PENDING = "pending"  # to be sent, or being sent
        SENT = "sent"
        DEAD = "dead"  # given up, which the journal says

    event = models.ForeignKey(Event, on_delete=models.PROTECT, related_name="+")
    channel = models.ForeignKey(Channel, on_delete=models.CASCADE, related_name="+")
    state = models.CharField(max_length=8, choices=State.choices, default=State.PENDING)
    tries = models.PositiveSmallIntegerField(default=0)
    next_at = models.DateTimeField()  # not before this; while it is being sent, until when nobody else may
    error = models.CharField(max_length=300, blank=True)
    sent_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["event", "channel"], name="notice_once")]
        indexes = [models.Index(fields=["channel", "event"], condition=Q(state="pending"), name="notice_pending")]

    def __str__(self) -> str:
        return f"{self.event_id} to {self.channel_id}: {self.state}"


class AlarmState(models.Model):
    """What the test of one alarm of one rollout has seen, so that a restarted process neither resets it nor looks twice."""

    rollout = models.CharField(max_length=60)
    alarm = models.CharField(max_length=40)
    since = models.DateTimeField()
    looked_at = models.DateTimeField()
    n = models.BigIntegerField(default=0)
    k = models.FloatField(default=0)
    log_evidence = models.FloatField(default=0)
    data = models.JSONField(default=dict)  # metrics.domain.verdict.JudgeState

    class Meta:
        constraints = [models.UniqueConstraint(fields=["rollout", "alarm"], name="alarm_state_once")]

    def __str__(self) -> str:
        return f"{self.rollout} {self.alarm}"


class StageAlarms(models.Model):
    """What the tests of a stage's alarms have seen between rollouts, and which of them it breaks now."""

    stage = models.CharField(primary_key=True, max_length=127)
    release = models.CharField(max_length=80)
    looked_to = models.DateTimeField()  # figures up to here are taken up
    data = models.JSONField(default=dict)  # metrics.domain.steady.SteadyState by the alarm's key
    breaching = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"{self.stage} {self.release}"


class LoopPass(models.Model):
    """When a periodic task last came to its end, so that its silence shows. Nothing is decided by it."""

    loop = models.CharField(primary_key=True, max_length=40)  # the task's name
    ended_at = models.DateTimeField()
    took_s = models.FloatField()
    passes = models.BigIntegerField(default=0)
    failures = models.BigIntegerField(default=0)  # things that a pass could not look at

    def __str__(self) -> str:
        return f"{self.loop} {self.ended_at:%H:%M:%S}"
