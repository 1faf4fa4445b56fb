"""What differs between two releases, in words and as text."""

from __future__ import annotations

from releases.domain.diff import changes, touches, unified
from releases.domain.views import ChangeView
from tests.domain.releases_world import DS_FLASH
from tests.domain.test_release_units import unit

NEXT = DS_FLASH.replace("stages:", "  engine: { decode: { speculative-draft-length: 3 } }\nstages:").replace(
    "replicas: 2\n", "replicas: 3\n"
)


def test_values_are_named_by_path_as_they_were_written() -> None:
    assert changes(DS_FLASH, NEXT) == (
        ChangeView("release.engine.decode.speculative-draft-length", "", "3"),
        ChangeView("stages.prod-us.replicas", "2", "3"),
    )
    assert changes(DS_FLASH, DS_FLASH) == ()
    assert changes(NEXT, DS_FLASH)[-1] == ChangeView("release.engine.decode.speculative-draft-length", "3", "")


def test_what_the_pools_see_includes_what_the_recipe_had() -> None:
    assert touches(unit(), unit(NEXT, "ds-flash@8")) == "decode only (speculative-draft-length 2 -> 3)"


def test_words_for_the_kinds_of_change() -> None:
    assert touches(None, unit()) == "first deployment"
    more = touches(unit(), unit(DS_FLASH.replace("replicas: 2 }", "replicas: 3 }"), "ds-flash@8"))
    assert more == "nothing but numbers of replicas (prefill replicas 2 -> 3)"
    weights = touches(unit(), unit(DS_FLASH.replace("c41a7e2", "c41a7e3"), "ds-flash@8"))
    assert weights.startswith("everything")
    assert weights.endswith("(weights c41a7e2 -> c41a7e3)")
    assert touches(unit(), unit(release="ds-flash@8")) == "nothing that runs: the stage's settings only"
    slow = DS_FLASH.replace("stages:", "  simulated-faults: { decode: { slow-factor: 3 } }\nstages:")
    assert touches(unit(), unit(slow, "ds-flash@8")) == "decode only (simulated faults)"


def test_the_unified_text() -> None:
    lines = unified(DS_FLASH, NEXT, "ds-flash@7", "ds-flash@8").splitlines()
    assert lines[:2] == ["--- ds-flash@7", "+++ ds-flash@8"]
    assert "+  engine: { decode: { speculative-draft-length: 3 } }" in lines
    assert "-    replicas: 2" in lines
