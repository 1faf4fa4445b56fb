"""The outbox: notices are written with their events, arrive at least once and in order, and are given up in the end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from django.utils import timezone

from denvweb.auth import token_create
from denvweb.secrets import unseal
from frontend import delivery
from frontend.sending import DeliveryError
from metrics.models import Channel, Event, Outbox
from metrics.selectors import channels_view
from metrics.services import Notice, channel_create, event_append, outbox_claim, outbox_failed, outbox_sent
from metrics.services.outbox import MOST_TRIES

pytestmark = pytest.mark.django_db


@pytest.fixture
def channel() -> str:
    return channel_create(kind="webhook", name="ops", address="https://example.com/hook", actor="ada", via="api")[0]


def held(sentence: str = "m/s is held") -> int:
    return event_append(kind="rollout.held", sentence=sentence, stage="m/s", rollout="r-1")


def sent_by(monkeypatch: pytest.MonkeyPatch, send: Callable[[Notice], None]) -> None:
    monkeypatch.setattr(delivery, "_SENDERS", {"webhook": send, "slack": send})


def test_a_notice_is_there_exactly_when_its_event_is(channel: str) -> None:
    held()
    with transaction.atomic():
        held()
        transaction.set_rollback(True)
    event_append(kind="unit.started", sentence="nobody is told of this")
    assert [row.event.kind for row in Outbox.objects.select_related("event")] == ["rollout.held"]


def test_nothing_is_written_for_a_channel_that_is_off(channel: str) -> None:
    Channel.objects.update(enabled=False)
    held()
    assert not Outbox.objects.exists()


def test_they_arrive_in_the_order_of_the_events(channel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, seen = [held(str(i)) for i in range(3)], []
    sent_by(monkeypatch, lambda notice: seen.append(notice.event.seq))
    assert delivery.deliver() == 3
    assert seen == numbers and delivery.deliver() == 0
    assert not Outbox.objects.exclude(state="sent").exists()


def test_a_later_one_waits_for_an_earlier_one(channel: str) -> None:
    first, second = held(), held()
    claimed = outbox_claim(now=timezone.now())
    assert claimed is not None and claimed.event.seq == first
    assert outbox_claim(now=timezone.now()) is None, "the first is being sent"
    outbox_sent(claimed)
    following = outbox_claim(now=timezone.now())
    assert following is not None and following.event.seq == second


def test_who_dies_while_sending_is_followed_by_another(channel: str) -> None:
    held()
    claimed = outbox_claim(now=timezone.now())
    again = outbox_claim(now=timezone.now() + timedelta(seconds=61))
    assert claimed is not None and again is not None and (claimed.id, again.tries) == (again.id, 2)
    outbox_failed(claimed, error="I was not dead")
    assert Outbox.objects.get().error == "", "who lost the claim changes nothing"


def test_a_receiver_that_asks_for_time_gets_it(channel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(notice: Notice) -> None:
        raise DeliveryError("answered 429", retry_after_s=40)

    held()
    sent_by(monkeypatch, busy)
    before = timezone.now()
    assert delivery.deliver() == 0
    row = Outbox.objects.get()
    assert 39 <= (row.next_at - before).total_seconds() <= 45 and row.error == "answered 429"


def test_it_is_given_up_after_so_many_tries_and_the_journal_says_so(channel: str) -> None:
    held()
    now = timezone.now()
    for _ in range(MOST_TRIES):
        now += timedelta(hours=1)
        notice = outbox_claim(now=now)
        assert notice is not None
        outbox_failed(notice, error="no route")
    assert outbox_claim(now=now + timedelta(days=1)) is None
    event = Event.objects.latest("seq")
    assert (event.kind, event.rollout) == ("notice.dead", "r-1") and "webhook ops after 12 tries: no route" in event.sentence
    view = channels_view()[0]
    assert (view.pending, view.dead, view.last_error) == (0, 1, "no route")


def test_what_is_hopeless_is_given_up_at_once_and_holds_up_nothing(channel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(notice: Notice) -> None:
        raise DeliveryError("answered 410", hopeless=True)

    held(), held()
    sent_by(monkeypatch, gone)
    delivery.deliver()
    assert [row.state for row in Outbox.objects.all()] == ["dead", "dead"]


@pytest.mark.django_db(transaction=True)
def test_a_slow_receiver_keeps_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    channel_create(kind="webhook", name="ops", address="https://example.com/hook", actor="ada", via="api")
    held()
    go, at_it = threading.Event(), threading.Event()

    def slow(notice: Notice) -> None:
        at_it.set()
        go.wait(20)

    sent_by(monkeypatch, slow)
    thread = delivery.deliver_soon()
    assert thread is not None and at_it.wait(20)
    assert delivery.deliver_soon() is None, "one at a time"
    go.set()
    thread.join(20)
    assert Outbox.objects.get().state == "sent"


def api_of(*, admin: bool) -> Client:
    user = (User.objects.create_superuser if admin else User.objects.create_user)("root" if admin else "ann")
    return Client(headers={"authorization": f"Bearer {token_create(user=user)}"})


def test_channels_over_rest() -> None:
    api = api_of(admin=True)
    body = {"kind": "webhook", "name": "ops", "address": "https://example.com/hook"}
    made = api.post("/api/v1/channels", body, content_type="application/json")
    assert made.status_code == 201
    secret, pk = made.json()["secret"], made.json()["id"]
    stored = Channel.objects.get().secret
    assert secret not in stored and unseal(stored) == secret
    listed: dict[str, Any] = api.get("/api/v1/channels").json()["results"][0]
    assert listed["name"] == "ops" and "secret" not in listed
    assert api.post("/api/v1/channels", body, content_type="application/json").json()["code"] == "channel-exists"
    assert api.patch(f"/api/v1/channels/{pk}", {"enabled": False}, content_type="application/json").status_code == 204
    assert not Channel.objects.get().enabled
    assert api.delete(f"/api/v1/channels/{pk}").status_code == 204
    assert api.delete(f"/api/v1/channels/{pk}").status_code == 404
    kinds = set(Event.objects.values_list("kind", flat=True))
    assert kinds == {"channel.created", "channel.switched", "channel.deleted", "change.refused"}


@pytest.mark.parametrize(
    "address", ["http://example.com", "https://", "https://u:p@example.com", "https://example.com:x", "ftp://x", "C012"]
)
def test_only_plain_https_is_a_webhook(address: str) -> None:
    body = {"kind": "webhook", "name": "ops", "address": address}
    assert api_of(admin=True).post("/api/v1/channels", body, content_type="application/json").status_code == 400


def test_only_administrators_see_channels() -> None:
    api = api_of(admin=False)
    assert api.get("/api/v1/channels").status_code == 403
    assert api.post("/api/v1/channels", {}, content_type="application/json").status_code == 403
