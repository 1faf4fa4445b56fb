"""Tables of the metrics app: windows of figures, which reports are in them, gauges, the journal and the state of alarms."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

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
        indexes = [models.Index(fields=["start_at"], name="gauge_by_age")]

    def __str__(self) -> str:
        return f"{self.stage} {self.unit} {self.start_at:%H:%M:%S}"


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

    class Meta:
        indexes = [
            models.Index(fields=["stage", "-seq"], name="event_by_stage"),
            models.Index(fields=["model", "-seq"], name="event_by_model"),
            models.Index(fields=["fleet", "-seq"], name="event_by_fleet"),
            models.Index(fields=["rollout", "-seq"], name="event_by_rollout"),
        ]

    def __str__(self) -> str:
        return f"{self.seq} {self.kind}"


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
