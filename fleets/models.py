"""Tables of the fleets app: what is there, what should run on it, and what agents and routers last said of it."""

from __future__ import annotations

import time

from django.contrib.postgres.fields import ArrayField
from django.db import connection, models

from fleets.domain.types import NodeState, RankDesired, RankState, Role


class NextGeneration(models.Func):
    """The next number of the one sequence that all generations come from.

    As part of an UPDATE it is drawn after the row's lock is held, so the generations of one row never go backwards.
    """

    template = "nextval('fleets_generation')"
    output_field = models.BigIntegerField()

    def __init__(self) -> None:
        super().__init__()


def generation_next() -> int:
    """Draw one generation."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('fleets_generation')")
        return int(cursor.fetchone()[0])


def _choices(values: type[NodeState] | type[RankState] | type[RankDesired] | type[Role]) -> list[tuple[str, str]]:
    return [(member.value, member.value) for member in values]


class Fleet(models.Model):
    """A named set of domains of one GPU kind in one place."""

    name = models.CharField(primary_key=True, max_length=63)
    gpu_kind = models.CharField(max_length=40)
    fabric_spans_nodes = models.BooleanField(default=True)
    simulated = models.BooleanField(default=False)
    frozen = models.TextField(blank=True)  # why nothing is healed here now
    watched_at = models.DateTimeField(null=True, blank=True)  # of the last pass over its nodes
    watched_since = models.DateTimeField(null=True, blank=True)  # without a gap, and hearing at least one node of any fleet
    deaf_since = models.DateTimeField(null=True, blank=True)  # since when no node of any fleet is heard, while somebody listened
    thawed_until = models.DateTimeField(null=True, blank=True)  # an operator said that silence is to be acted on, up to then
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class Domain(models.Model):
    """A scale-up domain, under its full name `gb200-use1/d01`."""

    name = models.CharField(primary_key=True, max_length=127)
    fleet = models.ForeignKey(Fleet, on_delete=models.PROTECT, related_name="domains")

    def __str__(self) -> str:
        return self.name


class Node(models.Model):
    """One host with an agent. Every change of what it should run draws a new `generation`."""

    name = models.CharField(primary_key=True, max_length=127)
    domain = models.ForeignKey(Domain, on_delete=models.PROTECT, related_name="nodes")
    gpus = models.PositiveSmallIntegerField()
    host = models.CharField(max_length=255)
    port_base = models.PositiveIntegerField()
    port_count = models.PositiveIntegerField()
    simulated = models.BooleanField(default=False)
    agent_version = models.CharField(max_length=40, blank=True)
    gpu_memory_bytes = models.BigIntegerField(default=0)  # of one GPU; 0: its driver does not say
    driver_version = models.CharField(max_length=40, blank=True)
    cuda_version = models.CharField(max_length=20, blank=True)  # the newest that the driver runs
    credential_id = models.CharField(max_length=40, unique=True)
    secret_hash = models.CharField(max_length=64)
    cordoned = models.BooleanField(default=False)
    cordon_reason = models.CharField(max_length=200, blank=True)
    draining = models.BooleanField(default=False)  # its units are to be replaced elsewhere; always cordoned too
    drained_at = models.DateTimeField(null=True, blank=True)  # when the last claim on it had gone
    state = models.CharField(max_length=10, choices=_choices(NodeState), default=NodeState.NEW)
    boot = models.CharField(max_length=64, blank=True)
    last_report_at = models.DateTimeField(null=True, blank=True)  # by this server's clock, never the node's
    clock_skew_s = models.FloatField(null=True, blank=True)  # node's clock minus the server's
    gpu_reports = models.JSONField(default=list)  # of GPUs that are not simply healthy and free of others
    generation = models.BigIntegerField(default=0)
    observed_generation = models.BigIntegerField(default=0)
    joined_at = models.DateTimeField()
    losses = models.PositiveSmallIntegerField(default=0)  # in a row, each soon after the one before
    lost_at = models.DateTimeField(null=True, blank=True)  # the last of them
    rests_until = models.DateTimeField(null=True, blank=True)  # it comes and goes: nothing new is placed on it before
    refused = models.CharField(max_length=40, blank=True)  # code of the last refusal of a report under its credential
    refused_at = models.DateTimeField(null=True, blank=True)
    refused_told_at = models.DateTimeField(null=True, blank=True)  # when the journal last had it

    def __str__(self) -> str:
        return self.name


class JoinToken(models.Model):
    """Lets one agent process join its nodes to one fleet, once."""

    id = models.CharField(primary_key=True, max_length=40)
    secret_hash = models.CharField(max_length=64)
    fleet = models.CharField(max_length=63)  # by name: its first token is made before the fleet has a node
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    used_key_hash = models.CharField(max_length=64, blank=True)  # of whoever used it: it may ask again for the answer that it lost

    def __str__(self) -> str:
        return f"{self.id} ({self.fleet})"


class Unit(models.Model):
    """One serving unit. `revision` changes with whatever makes an earlier probe say nothing of it any more."""

    class Desired(models.TextChoices):
        """What should become of it."""

        RUN = "run"  # serve, and be healed
        DRAIN = "drain"  # take nothing new, finish what is there
        STOP = "stop"  # end; the row goes when its last rank has stopped
        GONE = "gone"  # nothing answers any more; the row stays for its claims on lost nodes

    id = models.CharField(primary_key=True, max_length=24)
    stage = models.CharField(max_length=127, db_index=True)  # `ds-flash/prod-us`
    model = models.CharField(max_length=63)
    slot = models.PositiveIntegerField()
    release = models.CharField(max_length=80)  # `ds-flash@7`
    spec = models.JSONField()  # fleets.domain.types.UnitSpec
    fleet = models.ForeignKey(Fleet, on_delete=models.PROTECT, related_name="units")
    domain = models.CharField(max_length=127, blank=True)  # empty: over several domains
    desired = models.CharField(max_length=5, choices=Desired.choices, default=Desired.RUN)
    desired_at = models.DateTimeField()
    drained_s = models.FloatField(null=True, blank=True)  # how long it finished what it had before it was stopped
    routable = models.BooleanField(default=False)
    probe_wanted = models.BooleanField(default=False)
    revision = models.BigIntegerField()
    probed_revision = models.BigIntegerField(default=0)  # of the last probe that succeeded
    probed_at = models.DateTimeField(null=True, blank=True)
    probe_detail = models.TextField(blank=True)  # of the last probe that failed
    attempts = models.JSONField(default=dict)  # how many replicas were made by `role/generation/ordinal`
    failed = models.TextField(blank=True)  # why it cannot heal by itself
    leaving = models.TextField(blank=True)  # why it is to be replaced elsewhere although it serves: a GPU of it is broken
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["slot", "created_at", "id"]

    def __str__(self) -> str:
        return self.id


class Replica(models.Model):
    """One engine instance: a gang of ranks that starts and dies as one. A replacement is a new row with the next `attempt`."""

    id = models.CharField(primary_key=True, max_length=24)
    unit = models.ForeignKey(Unit, on_delete=models.CASCADE, related_name="replicas")
    role = models.CharField(max_length=12, choices=_choices(Role))
    ordinal = models.PositiveIntegerField()
    attempt = models.PositiveIntegerField(default=0)
    release = models.CharField(max_length=80)
    generation = models.CharField(max_length=80)  # hash of its pool's spec
    engine = models.JSONField()  # fleets.domain.types.EngineSpec
    desired = models.CharField(max_length=5, choices=_choices(RankDesired), default=RankDesired.HOLD)
    desired_at = models.DateTimeField()
    retired = models.BooleanField(default=False)  # on its way out, and no longer counted as its unit's
    ready_at = models.DateTimeField(null=True, blank=True)  # first time that it was ready

    class Meta:
        ordering = ["role", "ordinal", "attempt", "id"]

    def __str__(self) -> str:
        return self.id


class Rank(models.Model):
    """One rank on its node, and the last that its agent said of it."""

    id = models.CharField(primary_key=True, max_length=24)
    replica = models.ForeignKey(Replica, on_delete=models.CASCADE, related_name="ranks")
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="ranks")
    index = models.PositiveSmallIntegerField()
    gpus = ArrayField(models.PositiveSmallIntegerField())
    port = models.PositiveIntegerField()
    state = models.CharField(max_length=10, choices=_choices(RankState), null=True, blank=True)  # NULL: not reported yet
    state_at = models.DateTimeField(null=True, blank=True)
    detail = models.TextField(blank=True)
    restarts = models.PositiveIntegerField(default=0)
    pid = models.BigIntegerField(default=0)
    engine_id = models.CharField(max_length=120, blank=True)
    gauges = models.JSONField(default=dict)  # of its engine
    hung_engine = models.CharField(max_length=120, blank=True)  # the last of its engines that was seen to hang, and was replaced

    class Meta:
        ordering = ["index"]
        constraints = [models.UniqueConstraint(fields=["node", "port"], name="rank_port_once_a_node")]

    def __str__(self) -> str:
        return self.id

    @property
    def claimed(self) -> bool:
        """Whether its agent has taken it up."""
        return self.state is not None


class GpuClaim(models.Model):
    """One GPU that a unit holds, and the rank that uses it. The constraint is the law: no GPU is claimed twice.

    Without a rank the GPU is kept for the unit: for the replica that replaces the one that has just ended there.
    """

    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="claims")
    gpu_index = models.PositiveSmallIntegerField()
    unit = models.ForeignKey(Unit, on_delete=models.CASCADE, related_name="claims")
    rank = models.ForeignKey(Rank, null=True, blank=True, on_delete=models.CASCADE, related_name="claims")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["node", "gpu_index"], name="gpu_claimed_once")]

    def __str__(self) -> str:
        return f"{self.node_id}/{self.gpu_index}"


class StoredSecret(models.Model):
    """A secret of another system that engines need: a hub's token. Its value is encrypted, and leaves only to nodes that run it."""

    name = models.CharField(primary_key=True, max_length=63)
    model = models.CharField(max_length=63)  # whose releases may name it, or `*`
    sealed = models.TextField()
    version = models.PositiveIntegerField(default=1)
    set_by = models.CharField(max_length=150)
    set_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name


class LogAsk(models.Model):
    """Somebody reads a rank's log through its agent. Kept for as long as the reader says that it is there."""

    id = models.CharField(primary_key=True, max_length=40)
    reader = models.CharField(max_length=40, db_index=True)  # one of it has an ask for each rank
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="log_asks")
    rank = models.CharField(max_length=24)  # by name: its row may go while its log is read
    follow = models.BooleanField(default=False)
    tail_lines = models.PositiveIntegerField(default=200)
    since_at = models.DateTimeField(null=True, blank=True)
    position = models.BigIntegerField(null=True, blank=True)  # where the last piece ended
    done = models.BooleanField(default=False)
    wanted_until = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.rank} for {self.reader}"


class LogText(models.Model):
    """A piece of a log on its way to the reader, who takes it away."""

    ask = models.ForeignKey(LogAsk, on_delete=models.CASCADE, related_name="texts")
    start = models.BigIntegerField()
    end = models.BigIntegerField()
    text = models.TextField()
    detail = models.TextField(blank=True)  # why there is no text

    def __str__(self) -> str:
        return f"{self.ask_id} {self.start}-{self.end}"


def new_epoch() -> int:
    """The second of a stage's first table: a router that kept tables of an earlier database takes those of a new one."""
    return int(time.time())


class RouteState(models.Model):
    """How a stage's traffic is to be routed. `digest` is of the whole table: a new one draws a new `generation`."""

    stage = models.CharField(primary_key=True, max_length=127)
    model = models.CharField(max_length=63)
    epoch = models.BigIntegerField(default=new_epoch)
    generation = models.BigIntegerField(default=0)
    digest = models.CharField(max_length=64, blank=True)
    weights = models.JSONField(default=dict)  # basis points by release
    weights_generation = models.BigIntegerField(default=0)  # the first table that carried them
    weights_before = models.JSONField(default=dict)  # those of the table before
    conditional = models.JSONField(default=dict)  # fleets.domain.protocol.ConditionalPolicy
    alarms = models.JSONField(default=list)  # metrics.domain.types.AlarmSpec
    synthetic = models.JSONField(null=True, blank=True)  # fleets.domain.protocol.Synthetic
    keys = models.JSONField(default=list)  # fleets.domain.protocol.ApiKey
    keys_required = models.BooleanField(default=False)

    def __str__(self) -> str:
        return self.stage


class Router(models.Model):
    """One router process, as it last reported."""

    name = models.CharField(primary_key=True, max_length=127)
    stage = models.CharField(max_length=127, db_index=True)
    url = models.CharField(max_length=255)
    boot = models.CharField(max_length=64)
    seq = models.BigIntegerField(default=0)
    table_generation = models.BigIntegerField(default=0)
    last_seen_at = models.DateTimeField()
    inflight = models.JSONField(default=dict)  # by release
    gauges = models.JSONField(default=list)  # fleets.domain.protocol.UnitGauge

    def __str__(self) -> str:
        return self.name
