"""The journal: append-only by law of the database, and followed without a gap."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import DatabaseError, connection, transaction

from metrics.models import Event
from metrics.selectors import events_after, events_view, latest_seq
from metrics.services import event_append


def _append(sentence: str, *, stage: str = "", rollout: str = "") -> int:
    return event_append(kind="test.kind", sentence=sentence, stage=stage, rollout=rollout)


@contextmanager
def _open_transaction_with_an_event(sentence: str, *, commit: bool) -> Iterator[threading.Event]:
    """Another session that has written an event and has not ended yet; set the event to let it end."""
    written, finish = threading.Event(), threading.Event()

    def run() -> None:
        try:
            with transaction.atomic():
                _append(sentence)
                written.set()
                finish.wait(20)
                transaction.set_rollback(not commit)
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    written.wait(20)
    try:
        yield finish
    finally:
        finish.set()
        thread.join()


@pytest.mark.django_db
@pytest.mark.parametrize("change", ["UPDATE metrics_event SET sentence = 'x'", "DELETE FROM metrics_event"])
def test_the_database_refuses_to_change_it(change: str) -> None:
    _append("first")
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(change)
    assert Event.objects.get().sentence == "first"


@pytest.mark.django_db
def test_pages_go_backwards_and_filter() -> None:
    numbers = [_append(f"event {i}", stage="m/a" if i % 2 else "m/b", rollout="ro-1" if i == 3 else "") for i in range(6)]
    assert [event.seq for event in events_view(stage="m/a", limit=2)] == [numbers[5], numbers[3]]
    assert [event.seq for event in events_view(stage="m/a", limit=2, before=numbers[3])] == [numbers[1]]
    assert [event.sentence for event in events_view(rollout="ro-1")] == ["event 3"]
    assert {event.model for event in events_view()} == {"m"}


@pytest.mark.django_db
def test_following_sees_what_its_own_transaction_wrote() -> None:
    start = latest_seq()
    numbers = [_append("one"), _append("two")]
    assert [event.seq for event in events_after(seq=start)][-2:] == numbers
    assert latest_seq() == numbers[1]
    assert events_after(seq=numbers[1]) == ()


@pytest.mark.django_db(transaction=True)
def test_a_follower_waits_for_a_lower_number_that_is_not_committed_yet() -> None:
    start = _append("start")
    with _open_transaction_with_an_event("slow", commit=True) as finish:
        quick = _append("quick")
        assert events_after(seq=start) == ()
        assert latest_seq() < quick
        finish.set()
    assert [event.sentence for event in events_after(seq=start)] == ["slow", "quick"]
    assert latest_seq() == quick


@pytest.mark.django_db(transaction=True)
def test_a_number_that_was_rolled_back_holds_nobody_up() -> None:
    start = _append("start")
    with _open_transaction_with_an_event("never", commit=False):
        _append("quick")
    assert [event.sentence for event in events_after(seq=start)] == ["quick"]


@pytest.mark.django_db
def test_an_event_goes_with_its_transaction() -> None:
    with transaction.atomic():
        _append("undone")
        transaction.set_rollback(True)
    assert events_view() == ()
