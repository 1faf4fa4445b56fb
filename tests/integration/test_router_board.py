"""What the processes of one router tell each other, and what is left when one of them is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleets.domain.types import Role
from fleets.router.admission import Gate
from fleets.router.board import REPLICAS_MAX, RING_PAIRS, Board, Sharing
from fleets.router.policy import Stage
from fleets.router.prefix import PrefixIndex, blocks_of
from tests.integration.fake_engine import FakeEngine
from tests.integration.router_bench import pd_unit, table

NOW_NS = 10**12
PROMPT = b"one and the same beginning " * 200


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "board").touch()
    return str(tmp_path / "board")


def _boards(path: str, peers: int = 3) -> list[Board]:
    return [Board(path, peers=peers, own=own) for own in range(peers)]


def test_loads_of_the_others_add_up_and_those_of_the_silent_do_not_count(path: str) -> None:
    first, second, third = _boards(path)
    second.tell({7: (2, 300), -8: (1, 0)}, (), NOW_NS)
    third.tell({7: (3, 50)}, (), NOW_NS)
    assert first.loads(NOW_NS) == {7: (5, 350), -8: (1, 0)} and second.loads(NOW_NS) == {7: (3, 50)}
    third.tell({7: (4, 0)}, (), NOW_NS + 2 * 10**9)
    assert first.loads(NOW_NS + 2 * 10**9) == {7: (4, 0)}
    assert first.loads(NOW_NS + 9 * 10**9) == {}


def test_each_pair_is_heard_once_by_each_and_outlives_its_process(path: str) -> None:
    first, second, _ = _boards(path)
    first.tell({}, [(1, 7), (2, 7)], NOW_NS)
    assert second.pairs() == [(1, 7), (2, 7)] and second.pairs() == []
    again = Board(path, peers=3, own=0)  # the first was killed, and its successor goes on
    again.tell({}, [(3, 7)], NOW_NS)
    assert second.pairs() == [(3, 7)]
    assert Board(path, peers=3, own=1).pairs() == [(1, 7), (2, 7), (3, 7)]


def test_who_reads_too_late_misses_the_oldest_alone(path: str) -> None:
    first, second, _ = _boards(path)
    first.tell({}, [(number, 7) for number in range(RING_PAIRS)], NOW_NS)
    first.tell({}, [(-1, 7), (-2, 7)], NOW_NS)
    read = second.pairs()
    assert len(read) == RING_PAIRS and read[0] == (2, 7) and read[-2:] == [(-1, 7), (-2, 7)]
    first.tell(dict.fromkeys(range(REPLICAS_MAX + 5), (1, 1)), (), NOW_NS)
    assert len(second.loads(NOW_NS)) == REPLICAS_MAX


def _stage() -> Stage:
    stage = Stage(
        clock_s=lambda: 0.0,
        make_gate=lambda room: Gate(room, limit=9, deadline_s=9),
        prefill_inflight=4,
        eject_after=3,
        index=PrefixIndex(1000),
    )
    stage.swap(table(pd_unit([FakeEngine("p")], [FakeEngine("d"), FakeEngine("e")])))
    return stage


def test_a_choice_counts_what_all_processes_do(path: str) -> None:
    stages = [_stage(), _stage()]
    sharings = [Sharing(Board(path, peers=2, own=own), stage) for own, stage in enumerate(stages)]
    (mine, theirs), blocks = stages, blocks_of(PROMPT)
    theirs.replicas["r-d"].running += 3
    theirs.index.add(blocks, "r-d")
    for _ in range(2):
        for sharing in reversed(sharings):
            sharing.exchange()
    assert mine.replicas["r-d"].running == 3 and theirs.replicas["r-d"].running == 3  # nobody counts its own twice
    assert mine.index.held_by(blocks, "r-d") == theirs.index.held_by(blocks, "r-d") > 0
    assert mine.units["u-1"].gauge().decode_inflight == 0 and theirs.units["u-1"].gauge().decode_inflight == 3
    theirs.replicas["r-d"].running -= 2
    for sharing in reversed(sharings):
        sharing.exchange()
    assert mine.replicas["r-d"].running == 1
    assert [replica.role for replica in mine.replicas.values() if replica.running] == [Role.DECODE]
