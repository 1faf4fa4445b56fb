"""One key, two requests at once: the second waits for the first, and what the first did not finish never happened."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from django.db import connection

from denvweb.idempotency import Answer, KeyReusedError, once
from denvweb.models import IdempotencyKey, ModelPolicy

pytestmark = pytest.mark.django_db(transaction=True)

_SOON_S = 30.0


def in_thread(pool: ThreadPoolExecutor, act: Callable[[], Answer]) -> Future[Answer]:
    """The act on a connection of its own."""

    def run() -> Answer:
        try:
            return act()
        finally:
            connection.close()

    return pool.submit(run)


def wait_until_one_waits() -> None:
    """Until PostgreSQL says that somebody waits for the transaction of somebody else."""
    end = time.monotonic() + _SOON_S
    with connection.cursor() as cursor:
        while time.monotonic() < end:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
            if cursor.fetchone()[0]:
                return
            time.sleep(0.01)
    raise AssertionError("nobody waits")


@pytest.mark.parametrize("first_ends", [True, False])
@pytest.mark.parametrize("second_request", [b"a", b"b"])
def test_of_two_at_once_the_second_waits_and_one_is_done(first_ends: bool, second_request: bytes) -> None:
    begun, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def first() -> Answer:
        ModelPolicy.objects.create(model="first")
        begun.set()
        assert go_on.wait(_SOON_S)
        if not first_ends:
            raise SystemError("killed between the act and its answer")
        return Answer(201, {"by": "first"})

    def second() -> Answer:
        ModelPolicy.objects.create(model="second")
        done.append("second")
        return Answer(201, {"by": "second"})

    with ThreadPoolExecutor(2) as pool:
        one = in_thread(pool, lambda: once(user="ann", key="k", request=b"a", do=first))
        assert begun.wait(_SOON_S)
        assert once(user="eve", key="k", request=b"a", do=lambda: Answer(200, "eve's own")).body == "eve's own"
        two = in_thread(pool, lambda: once(user="ann", key="k", request=second_request, do=second))
        wait_until_one_waits()
        assert done == [], "it waits"
        go_on.set()
        if not first_ends:
            with pytest.raises(SystemError):
                one.result(_SOON_S)
            assert two.result(_SOON_S).body == {"by": "second"}
        elif second_request == b"a":
            assert one.result(_SOON_S) == two.result(_SOON_S) == Answer(201, {"by": "first"})
        else:
            with pytest.raises(KeyReusedError):
                two.result(_SOON_S)
    assert [row.model for row in ModelPolicy.objects.all()] == ["first" if first_ends else "second"]
    assert IdempotencyKey.objects.filter(user="ann").count() == 1
