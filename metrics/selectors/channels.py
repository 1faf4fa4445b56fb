"""Reading where notices go, and how it goes."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, Max, Q

from metrics.domain.views import ChannelView
from metrics.models import Channel, Outbox


def channels_view() -> tuple[ChannelView, ...]:
    """All channels by name."""
    of_channel = Outbox.objects.values("channel").annotate(
        pending=Count("pk", filter=Q(state="pending")), dead=Count("pk", filter=Q(state="dead")), sent_at=Max("sent_at")
    )
    sums: dict[str, dict[str, Any]] = {row["channel"]: dict(row) for row in of_channel}
    errors = dict(Outbox.objects.exclude(error="").order_by("event").values_list("channel", "error"))
    return tuple(
        ChannelView(
            id=row.pk,
            kind=row.kind,
            name=row.name,
            address=row.address,
            allow_private=row.allow_private,
            enabled=row.enabled,
            pending=sums.get(row.pk, {}).get("pending", 0),
            dead=sums.get(row.pk, {}).get("dead", 0),
            last_error=errors.get(row.pk, ""),
            sent_at=sums.get(row.pk, {}).get("sent_at"),
        )
        for row in Channel.objects.order_by("name")
    )
