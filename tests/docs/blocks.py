"""The fenced blocks of the documentation, so that tests do what it says."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_FENCED = re.compile(r"^([ ]*)```(\w*)\n(.*?)^[ ]*```$", re.DOTALL | re.MULTILINE)


def blocks(page: str, language: str) -> list[str]:
    """The blocks of a page under docs/ in one language, such as `sh`, from top to bottom; indented ones as Markdown reads them."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [textwrap.dedent(found[3]) for found in _FENCED.finditer(text) if found[2] == language]
