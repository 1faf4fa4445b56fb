"""What engines count: never more than they did, and all of it while they stay the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metrics.domain.engines import COUNTS, OF, rises, totals

# By look: of each of two engines how much it counted since the last look, and whether it restarted before it did, or says nothing.
LOOKS = st.lists(st.tuples(*[st.tuples(st.integers(0, 50), st.sampled_from(["same", "same", "restarted", "silent"]))] * 2), max_size=20)


@given(LOOKS)
def test_no_rise_is_made_up_by_engines_that_restart_or_are_silent(looks: list[tuple[tuple[int, str], tuple[int, str]]]) -> None:
    rows, done, calm = [], 0, True
    starts, counts = [0, 0], [0, 0]
    for at_s, look in enumerate(looks):
        said = []
        for engine, (more, what) in enumerate(look):
            if what == "restarted":
                starts[engine], counts[engine] = starts[engine] + 1, 0
            counts[engine] += more
            done += more if at_s else 0  # nothing is known of what was before the first row
            calm = calm and (what == "same" or (what == "restarted" and not at_s))
            said.append((f"e{engine}-{starts[engine]}", {} if what == "silent" else {"preemptions": float(counts[engine]), "kv_use": 0.5}))
        rows.append((at_s * 10, totals(said)))
    counted = sum(found["preemptions"] for _, found in rises(reversed(rows)))
    assert counted == done if calm else 0 <= counted <= done


def test_what_no_engine_tells_is_not_kept_and_what_none_counted_is_a_zero() -> None:
    assert totals([("a", {"kv_use": 0.5}), ("b", {})]) == {}
    kept = totals([("a", {"kv_expired": 0.0}), ("b", {"kv_expired": 2.0, "preemptions": 1.0})])
    assert set(kept) == {"kv_expired_total", "preemptions_total", OF}
    assert totals([("b", {"kv_expired": 2.0}), ("a", {"kv_expired": 1.0})]) == totals(
        [("a", {"kv_expired": 0.0}), ("b", {"kv_expired": 3.0})]
    )
    assert rises([(0, kept), (10, kept)]) == [(10, {"preemptions": 0.0, "kv_expired": 0.0})]
    assert rises([(0, kept), (10, {}), (20, kept)]) == []
    assert "kv_transfer_bytes" in COUNTS
