"""Texts that are no spec file: each gives one clear message, fast, and nothing but that."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from releases.domain.source import MAX_BYTES
from releases.domain.spec import ReleaseFile, parse
from tests.domain.test_spec import PRODUCT, mistakes

BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1:1  the file is empty; a release file starts with `release:`"),
        ("# only a comment\n", "1:1  the file is empty; a release file starts with `release:`"),
        ("---\n", "1:1  the file is empty; a release file starts with `release:`"),
        ("hello, world", "1:1  this is not a release file; it must be a mapping with `release:` and `stages:`"),
        ("[1, 2]", "1:1  this is not a release file; it must be a mapping with `release:` and `stages:`"),
        ("}{ ]] garbage ::: %%", "1:1  "),
        (b"\x89PNG\r\n\x1a\n\x00", "1:1  this is not text in UTF-8; check that it is the right file"),
        (b"release:\n  model: \xff", "2:10  this is not text in UTF-8; check that it is the right file"),
        ("release: a\0b", "1:11  a byte that no text has (0x00); check that this is the right file"),
        ("release:\n  model: a\n  model: b\n", "3:3  release.model: the key is here twice; it is already on line 2. Remove one of them"),
        (BOMB, "2:8  b[0]: aliases such as `*a` are not read; write the value out"),
        ("release:\n\tmodel: a\n", "2:1  a tab; YAML is indented with spaces only, so replace it by spaces"),
        ("release: {}\n---\nstages: {}\n", "2:1  a second document starts here; a release file has one"),
        ("release: [1, 2", "1:10  this bracket is not closed, or a comma is missing inside it"),
        ('release: "x', "1:10  this quote is never closed"),
        ("release: model: x", "1:15  a colon where no key can be; check the indentation, or put the text in quotes"),
        (
            "release: !!python/object/apply:os.system [x]",
            "1:10  release: the tag `tag:yaml.org,2002:python/object/apply:os.system` is not read",
        ),
        ("? [a]\n: b", "1:3  a key must be a single word, not a list or a mapping"),
        ("[" * 10_000, "nested too deeply; a release file is at most 5 deep"),
        ("- " * 10_000, "nested over 32 deep; a release file is at most 5 deep"),
        ("a: [" + "x," * 30_000 + "]", "over 20,000 values; a release file has some dozens"),
        ("x" * (MAX_BYTES + 1), "1:1  the file has 1.0 MB and a release file at most 1 MB; check that it is the right file"),
    ],
)
def test_one_clear_message(text: str | bytes, message: str) -> None:
    (found,) = mistakes(text)
    assert found.startswith("denv.yaml:")
    assert message in found


@pytest.mark.parametrize("text", ["release: {}\n" * 900_000, b"\0" * 10_000_000, "é" * 5_000_000, "{" * 999_000, "a: 1\n" * 150_000])
def test_hostile_sizes_are_quick(text: str | bytes) -> None:
    started = time.perf_counter()
    assert len(mistakes(text)) == 1
    assert time.perf_counter() - started < 2.0


def test_a_file_of_long_wrong_keys_is_quick() -> None:
    started = time.perf_counter()
    assert len(mistakes("\n".join(f"{'placemen' * 50}{index}: 1" for index in range(2000)))) == 101
    assert time.perf_counter() - started < 2.0


def test_a_byte_order_mark_and_windows_line_ends_are_fine() -> None:
    assert isinstance(parse(PRODUCT.replace("\n", "\r\n").encode("utf-8-sig")), ReleaseFile)


@pytest.mark.parametrize("where", ["", "release:\n  ", "stages:\n  prod:\n    alarms:\n      ", "release:\n  engine:\n    decode:\n      "])
def test_a_hostile_key_cannot_reach_the_terminal(where: str) -> None:
    found = mistakes(where + '"a\\n\\e[31mb": 1')
    assert any("a\\n\\x1b[31mb" in line for line in found)
    assert all(line.isprintable() for line in found)


def _never_raises(text: str | bytes) -> None:
    found = parse(text)
    if not isinstance(found, ReleaseFile):
        assert found
        for error in found:
            line = error.text("denv.yaml")
            assert line.isprintable()
            assert error.sentence


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    _never_raises(text)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    _never_raises(data)


@settings(max_examples=300)
@given(st.integers(0, len(PRODUCT) - 1), st.integers(0, 30), st.text(max_size=8))
def test_any_edit_of_a_good_file_is_read_or_refused(at: int, length: int, insert: str) -> None:
    _never_raises(PRODUCT[:at] + insert + PRODUCT[at + length :])


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=200)
@given(
    st.dictionaries(st.sampled_from(["model", "weights", "recipe", "topology", "kv-cache", "engine", "simulated-faults"]), _VALUES), _VALUES
)
def test_values_of_any_kind_in_any_place(release: dict[str, object], stages: object) -> None:
    import json

    _never_raises(json.dumps({"release": release, "stages": {"prod": stages}}))
