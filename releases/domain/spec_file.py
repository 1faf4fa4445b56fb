"""The whole file: its sections, and what holds between them."""

from __future__ import annotations

from releases.domain.source import Mapping, Place, SpecError
from releases.domain.spec_alarms import read_alarms
from releases.domain.spec_reader import MAX_ERRORS, Section
from releases.domain.spec_release import read_release
from releases.domain.spec_stages import read_stages
from releases.domain.spec_types import ReleaseFile


def read_file(tree: Mapping) -> ReleaseFile | tuple[SpecError, ...]:
    """Read everything that can be read, so that one run reports every mistake."""
    errors: list[SpecError] = []
    root = Section(errors, tree, "", Place(1, 1))
    release_section = root.section("release", missing="this section is missing; it says what should run")
    release = read_release(release_section) if release_section else None
    stages_section = root.section("stages", missing="this section is missing; it says where the model runs")
    alarms = read_alarms(root.section("alarms"))
    stages = read_stages(stages_section, release.topology if release else None, alarms) if stages_section else ()
    root.finish()
    if errors or release is None:
        return _first(errors)
    return ReleaseFile(release, stages)


def _first(errors: list[SpecError]) -> tuple[SpecError, ...]:
    ordered = sorted(set(errors))
    if len(ordered) <= MAX_ERRORS:
        return tuple(ordered)
    rest = SpecError(ordered[MAX_ERRORS].place, "", f"and {len(ordered) - MAX_ERRORS:,} more mistakes from here on")
    return (*ordered[:MAX_ERRORS], rest)
