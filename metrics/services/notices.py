"""Which events people are told of, and the notices that are written with them."""

from __future__ import annotations

from denvweb import wake
from metrics.models import Channel, Event, Outbox

NOTICES = frozenset({
    "rollout.started", "rollout.held", "rollout.rolling-back", "rollout.blocked", "rollout.unblocked", "rollout.rolled-back",
    "rollout.succeeded", "rollout.break-glass", "fleet.frozen", "fleet.thawed", "node.lost",
    "alarm.breached", "alarm.recovered",
})  # fmt: skip  # kinds of events that people are told of


def outbox_add(event: Event) -> None:
    """One notice for each channel, if people are told of such events. In the event's transaction."""
    if event.kind not in NOTICES:
        return
    channels = Channel.objects.filter(enabled=True).values_list("pk", flat=True)
    rows = [Outbox(event=event, channel_id=channel, next_at=event.at) for channel in channels]
    if rows:
        Outbox.objects.bulk_create(rows)
        wake.wake("frontend.deliver")
