"""Units, ids, backoff and wire: what every program leans on."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denvweb.core import wire
from denvweb.core.backoff import Backoff
from denvweb.core.clock import ManualClock
from denvweb.core.errors import InvalidError
from denvweb.core.ids import derived_id, new_credential, parse_credential, secret_matches
from denvweb.core.units import format_bytes, format_duration, format_ms, format_ratio, parse_bytes, parse_duration_s, parse_ratio


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1500ms", 1.5),
        ("60ms", 0.06),
        ("10m", 600),
        ("30 s", 30),
        ("1h30m", 5400),
        ("2h", 7200),
        ("1d", 86400),
        ("0s", 0),
        ("500us", 0.0005),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "10", "ten minutes", "-5s", "10 parsecs", "5mm", "1.2.3s", "s"])
def test_what_is_no_duration(text: str) -> None:
    assert parse_duration_s(text) is None


@given(st.text(max_size=20))
def test_parsers_never_raise(text: str) -> None:
    parse_duration_s(text)
    parse_ratio(text)
    parse_bytes(text)


def test_ratios_and_sizes() -> None:
    assert parse_ratio("10%") == 0.1
    assert parse_ratio("10") is None
    assert parse_bytes("256GiB") == 256 * 2**30
    assert parse_bytes("1.5 GB") == 1_500_000_000
    assert parse_bytes("5 gigs") is None


def test_formats_are_the_shortest_honest_form() -> None:
    assert [format_duration(s) for s in (0.045, 12, 200, 7500)] == ["45 ms", "12 s", "3:20 min", "2:05 h"]
    assert [format_ms(s) for s in (None, 1.12, 0.0042)] == ["-", "1,120 ms", "4.2 ms"]
    assert [format_ratio(r) for r in (None, 0.0019, 1.0)] == ["-", "0.19%", "100%"]
    assert format_bytes(109_000_000) == "109 MB"


def test_the_same_parts_give_the_same_id() -> None:
    assert derived_id("r", "u1", "decode", 0) == derived_id("r", "u1", "decode", 0)
    assert derived_id("r", "ab", "c") != derived_id("r", "a", "bc")


def test_only_the_right_secret_matches() -> None:
    credential = new_credential("tok")
    parsed = parse_credential(credential.text)
    assert parsed == credential
    assert secret_matches(credential.secret, credential.secret_hash)
    assert not secret_matches(credential.secret + "x", credential.secret_hash)
    assert [parse_credential(text) for text in ("", "tok-1", ".x", "tok-1.")] == [None] * 4


@given(st.integers(1, 60), st.floats(0, 1, exclude_max=True))
def test_backoff_stays_between_a_tenth_and_its_cap(failures: int, draw: float) -> None:
    backoff = Backoff(first_s=0.5, cap_s=30)
    ceiling_s = min(30, 0.5 * 2 ** (failures - 1))
    assert 0.1 * ceiling_s <= backoff.delay_s(failures, lambda: draw) <= ceiling_s


def test_a_manual_clock_moves_both_times() -> None:
    clock = ManualClock()
    before = clock.now()
    clock.advance(5)
    assert ((clock.now() - before).total_seconds(), clock.mono_s()) == (5, 5)


@dataclass(frozen=True, slots=True)
class Message:
    name: str
    ports: tuple[int, ...] = ()
    more: dict[str, float] = field(default_factory=dict)


@given(
    st.builds(
        Message,
        st.text(),
        st.lists(st.integers(0, 65535)).map(tuple),
        st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)),
    )
)
def test_a_message_survives_the_wire(message: Message) -> None:
    assert wire.decode(wire.encode(message), Message) == message
    assert wire.from_plain(wire.to_plain(message), Message) == message


def test_neighbouring_versions_understand_each_other() -> None:
    assert wire.decode(b'{"name": "a", "from_the_future": 1}', Message) == Message("a")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"name": 5}', b'{"ports": [1]}', b"\xff"])
def test_what_does_not_fit_is_said(data: bytes) -> None:
    with pytest.raises(InvalidError) as caught:
        wire.decode(data, Message)
    assert caught.value.code == "bad-message"
    assert "Message" in caught.value.detail
