"""Every finding that a dry run can give is explained in the reference."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("releases/domain/findings.py", "releases/domain/dry_run.py", "releases/domain/advice.py", "fleets/domain/refusal.py")
ENGINES = sorted((ROOT / "fleets/engines").glob("*.py"))  # their refusals are findings too
ENGINE_CODE = re.compile(r'code="([a-z]+(?:-[a-z]+)+)"')
CODE = re.compile(r'"([a-z]+(?:-[a-z]+)+)"')
NO_CODES = {"simulated-faults", "traffic-shape"}  # a section of the file, and a condition of the advice


def test_each_finding_code_is_in_the_reference_and_no_other() -> None:
    used = {code for source in SOURCES for code in CODE.findall((ROOT / source).read_text(encoding="utf-8"))} - NO_CODES
    used |= {code for source in ENGINES for code in ENGINE_CODE.findall(source.read_text(encoding="utf-8"))}
    used |= {"placed", "frozen", "tensor-parallel-crosses-node", "tensor-parallel-crosses-domain"}  # of one word, and put together
    text = (ROOT / "docs/reference/placement.md").read_text(encoding="utf-8")
    assert {row[1] for row in re.finditer(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)} == used
