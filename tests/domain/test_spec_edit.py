"""A spec file as a form: changing one value changes that value, and nothing else of the text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from releases.domain.spec_edit import Field, fields_of, with_value
from tests.domain.releases_world import DS_FLASH

TEXT = """\
# what runs
release:
  model: ds-flash   # its name
  note: "a \\"quoted\\" one"
  other: 'it''s'
  block: |
    two
    lines
stages:
  prod: { fleets: [one, "two"], replicas: 2 }
"""
PATHS = ["release.model", "release.note", "release.other", "stages.prod.fleets[0]", "stages.prod.fleets[1]", "stages.prod.replicas"]


def test_every_value_on_one_line_is_a_field() -> None:
    assert [field.path for field in fields_of(TEXT)] == PATHS
    assert fields_of(TEXT)[1] == Field("release.note", 'a "quoted" one')
    assert Field("release.topology.prefill.gpus", "4") in fields_of(DS_FLASH)


@pytest.mark.parametrize("text", ["", "- a list", "broken: [", "a: &x 1\nb: *x"])
def test_a_text_that_is_no_file_has_no_fields_and_stays_as_it_is(text: str) -> None:
    assert fields_of(text) == ()
    assert with_value(text, "a", "2") == text


def test_comments_and_spaces_stay() -> None:
    assert with_value(TEXT, "release.model", "kimi") == TEXT.replace("ds-flash", "kimi")
    assert with_value(TEXT, "stages.prod.fleets[1]", "b") == TEXT.replace('"two"', "b")
    assert with_value(TEXT, "release.block", "x") == TEXT
    assert with_value(TEXT, "release.nowhere", "x") == TEXT
    assert with_value(TEXT, "release.model", "two\nlines") == TEXT


@given(path=st.sampled_from(PATHS), value=st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=20))
def test_one_value_changes_and_the_others_do_not(path: str, value: str) -> None:
    after = with_value(TEXT, path, value)
    changed = {field.path: field.value for field in fields_of(after)}
    before = {field.path: field.value for field in fields_of(TEXT)}
    assert changed == {**before, path: value if value.isprintable() else before[path]}
    assert [line for line in after.splitlines() if line.startswith("#")] == ["# what runs"]
