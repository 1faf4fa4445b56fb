"""The journal's chain: every row is sealed when it is committed, and whoever tampers with one is found."""

from __future__ import annotations

import io
import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import Client

from metrics.domain.chain import digest_of
from metrics.models import Event, EventSeal
from metrics.selectors import chain_view, events_view
from metrics.services import event_append
from tests.integration.rollouts_world import make_api

pytestmark = pytest.mark.django_db(transaction=True)


def tamper(sql: str, *params: int) -> None:
    """As somebody with the keys to the database would."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(sql, params)


def append(count: int = 3, **fields: Any) -> list[int]:
    return [event_append(kind="test.kind", sentence=f"event {i}", **fields) for i in range(count)]


def test_rows_are_sealed_in_the_order_of_their_commits_and_hold() -> None:
    with transaction.atomic():
        append(2)
        assert not EventSeal.objects.exists()
    append(1, evidence={"big": 1e22, "small": 1e-9, "one": 1.0, "at": datetime(2026, 1, 1, tzinfo=UTC), "nested": [{"a": -0.0}]})
    found = chain_view()
    assert (found.checked, found.problem) == (3, "")
    assert chain_view(head=found.head).problem == ""
    assert "was cut" in chain_view(head="f" * 64).problem


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("UPDATE metrics_event SET sentence = 'nothing' WHERE seq = %s", "says something else"),
        ("UPDATE metrics_event SET actor = 'eve' WHERE seq = %s", "says something else"),
        ("DELETE FROM metrics_event WHERE seq = %s", "is gone"),
        ("DELETE FROM metrics_eventseal WHERE event_seq = %s", "does not follow"),
        ("UPDATE metrics_eventseal SET hash = repeat('0', 64) WHERE event_seq = %s", "does not seal"),
    ],
)
def test_whoever_tampers_is_found(sql: str, problem: str) -> None:
    _, middle, _ = append()
    tamper(sql, middle)
    found = chain_view()
    assert problem in found.problem and found.checked == 1


def test_a_row_slipped_in_is_found() -> None:
    append()
    row = Event.objects.latest("seq")
    row.pk, row.actor = None, "eve"
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")  # no trigger, so no seal
        row.save(force_insert=True)
    assert "is in no link" in chain_view().problem


def test_many_writers_at_once_make_one_chain() -> None:
    def write() -> None:
        try:
            append(10)
        finally:
            connection.close()

    threads = [threading.Thread(target=write) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (chain_view().checked, chain_view().problem) == (50, "")


def test_the_digest_is_pinned() -> None:
    digest = digest_of(at=datetime(2026, 1, 1, tzinfo=UTC), content={"kind": "a", "n": 1.0, "x": [0.5, "é"]})
    assert digest == digest_of(at=datetime(2026, 1, 1, tzinfo=UTC), content={"x": (0.5, "é"), "n": 1, "kind": "a"})
    assert digest == "fa199d5697ba22c0eea203ec45ba45748193c773102b4258736ed0af37eabdee"


def test_verify_by_command_and_over_rest() -> None:
    append()
    out = io.StringIO()
    call_command("audit_verify", stdout=out)
    assert "3 events" in out.getvalue()
    tamper("UPDATE metrics_event SET sentence = 'x'")
    with pytest.raises(CommandError, match="says something else"):
        call_command("audit_verify")


def test_refused_changes_are_in_the_journal(client: Client) -> None:
    api = make_api("ada")
    refused = api.post("/api/v1/stages/no/such/rollback", {}, content_type="application/json", headers={"x-request-id": "req-1"})
    assert refused.status_code == 404
    event = events_view(limit=1)[0]
    assert (event.kind, event.actor, event.via, event.stage) == ("change.refused", "ada", "api", "no/such")
    assert event.evidence == {"action": "POST /api/v1/stages/no/such/rollback", "code": "not-found"}
    row = Event.objects.get(seq=event.seq)
    assert row.request_id == "req-1" and row.proof.startswith("token tok-")
    assert client.post("/api/v1/releases", {}, content_type="application/json").status_code == 401
    assert events_view(limit=1)[0].actor == "nobody"
    before = events_view(limit=1)[0].seq
    assert api.get("/api/v1/stages/no/such").status_code == 404
    assert api.post("/api/v1/dry-runs", {"yaml": 1}, content_type="application/json").status_code == 400
    assert events_view(limit=1)[0].seq == before, "reading, and a typing mistake, are no attempts"
