"""What a state is called on a page, with its colour and its shape: colour is never alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from releases.domain.views import RolloutView, StageHead, StageView

_SHORT = timedelta(minutes=5)

StageLook = StageView | StageHead  # a stage on its own page, or as one of hundreds


@dataclass(frozen=True, slots=True)
class Badge:
    """A state in words. `tone` is `ok`, `warn` (a person must act), `bad` (users are hurt), `info` (it moves by itself) or `off`."""

    tone: str
    icon: str
    text: str


STATES: dict[str, Badge] = {
    "steady": Badge("ok", "ok", "Steady"),
    "rolling": Badge("info", "roll", "Rolling"),
    "held": Badge("warn", "held", "Held"),
    "baking": Badge("info", "bake", "Baking"),
    "rolling-back": Badge("bad", "back", "Rolling back"),
    "blocked": Badge("bad", "bad", "Rollback blocked"),
    "degraded": Badge("warn", "lost", "Degraded"),
    "empty": Badge("off", "off", "Nothing runs yet"),
}
_HELD: dict[str, str] = {
    "manual": "Paused by a person",
    "approval": "Waits for approval",
    "frozen": "Held: frozen",
    "insufficient_samples": "Held: too few requests",
    "insufficient-samples": "Held: too few requests",
    "no_data": "Held: no figures",
    "no-data": "Held: no figures",
    "baseline_breaching": "Held: the old release breaches too",
    "baseline-breaching": "Held: the old release breaches too",
    "capacity": "Held: no capacity",
}
_REPLICA: dict[str, Badge] = {
    "pending": Badge("off", "off", "pending"),
    "starting": Badge("info", "roll", "starting"),
    "ready": Badge("ok", "ok", "ready"),
    "draining": Badge("info", "bake", "draining"),
    "failed": Badge("bad", "bad", "failed"),
    "unknown": Badge("warn", "lost", "node silent"),
    "gone": Badge("off", "off", "gone"),
}
NODE_STATES: dict[str, Badge] = {
    "new": Badge("off", "off", "New"),
    "ready": Badge("ok", "ok", "Ready"),
    "suspect": Badge("warn", "lost", "Silent"),
    "lost": Badge("bad", "lost", "Lost"),
    "cordoned": Badge("off", "no", "Cordoned"),
}
_ROLLOUT: dict[str, Badge] = {
    "pending": Badge("info", "roll", "waits its turn"),
    "rolling": Badge("info", "roll", "rolling"),
    "held": Badge("warn", "held", "held"),
    "baking": Badge("info", "bake", "baking"),
    "succeeded": Badge("ok", "ok", "succeeded"),
    "rolling-back": Badge("bad", "back", "rolling back"),
    "rolled-back": Badge("bad", "back", "rolled back"),
    "rollback-blocked": Badge("bad", "bad", "rollback blocked"),
    "superseded": Badge("off", "off", "superseded"),
}
_LEVEL: dict[str, Badge] = {
    "info": Badge("off", "info", "info"),
    "warn": Badge("warn", "held", "warning"),
    "bad": Badge("bad", "bad", "alert"),
}
_SEVERITY: dict[str, Badge] = {
    "error": Badge("bad", "bad", "error"),
    "warn": Badge("warn", "held", "warning"),
    "advice": Badge("info", "info", "advice"),
    "ok": Badge("ok", "ok", "ok"),
}
_UNKNOWN = Badge("off", "off", "unknown")


def stage_badge(stage: StageLook) -> Badge:
    """The stage's state; a canary says its share, a hold its reason."""
    badge = STATES.get(stage.state, Badge("off", "off", stage.state))
    rollout = stage.rollout
    if rollout is None or not rollout.active:
        return badge
    if stage.state == "rolling" and 0 < rollout.weight_bp < 10_000:
        return Badge(badge.tone, badge.icon, f"Canary {share(rollout.weight_bp / 10_000)}")
    if stage.state == "rolling-back" and rollout.from_release is not None:
        target = rollout.to_release if rollout.kind == "rollback" else rollout.from_release
        return Badge(badge.tone, badge.icon, f"Rolling back to {target}")
    if stage.state == "held":
        return Badge(badge.tone, "hand" if rollout.reason == "approval" else badge.icon, _HELD.get(rollout.reason, "Held"))
    return badge


def rollout_badge(rollout: RolloutView) -> Badge:
    """How a rollout stands, or how it ended."""
    return _ROLLOUT.get(rollout.state, Badge("off", "off", rollout.state))


def replica_badge(state: str) -> Badge:
    """A replica's state."""
    return _REPLICA.get(state, _UNKNOWN)


def node_badge(state: str, cordoned: bool) -> Badge:
    """A node's state; a cordon is said only of a node that answers."""
    return NODE_STATES["cordoned"] if cordoned and state == "ready" else NODE_STATES.get(state, _UNKNOWN)


def level_badge(level: str) -> Badge:
    """An event's level."""
    return _LEVEL.get(level, _UNKNOWN)


def severity_badge(severity: str) -> Badge:
    """A finding's severity."""
    return _SEVERITY.get(severity, _UNKNOWN)


def share(ratio: float) -> str:
    """`10%`, `2.5%`: no digit that says nothing."""
    return f"{ratio * 100:.1f}".rstrip("0").rstrip(".") + "%"


def odds(value: float) -> str:
    """Evidence as people bet: `0.06`, `2.1`, `340`, `8.6 M`."""
    if value >= 1e9:
        return "over 1,000 M"
    if value >= 1e6:
        return f"{value / 1e6:.1f} M"
    if value >= 10:
        return f"{value:,.0f}"
    if value >= 1:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.01 else "under 0.01"


def plural(count: int, one: str, many: str = "") -> str:
    """`1 stage`, `2 stages`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def whole(value: float | None) -> str:
    """`1,120`; one digit more under ten, where it says something; `?` when unknown."""
    if value is None:
        return "?"
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.1f}"


def number_of(release: str) -> str:
    """`7` of `ds-flash@7`."""
    return release.rpartition("@")[2]


def release_of(group: str) -> str:
    """The release that a group of figures counts for: `ds-flash@8` of `ds-flash@7+ds-flash@8`, whose prefill an earlier one brought."""
    return group.rpartition("+")[2]


def when(at: datetime, now: datetime) -> str:
    """`09:24` today, `27 Nov 18:40` before."""
    at = at.astimezone(UTC)
    return at.strftime("%H:%M") if at.date() == now.astimezone(UTC).date() else at.strftime("%-d %b %H:%M")


def span(since: datetime, until: datetime, now: datetime) -> str:
    """`09:24 to 09:37`; what is short to the second."""
    if until - since >= _SHORT:
        return f"{when(since, now)} to {when(until, now)}"
    return f"{when(since, now)}:{since.astimezone(UTC):%S} to {until.astimezone(UTC):%H:%M:%S}"
