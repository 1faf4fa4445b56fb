"""Two specs line by line, for a table that says + and - in words of one character and not by colour alone."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

_CONTEXT = 3


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line; `kind` is `add`, `del`, `gap` or empty for an equal one."""

    kind: str
    old: int | None
    new: int | None
    text: str

    @property
    def sign(self) -> str:
        """What stands before the text."""
        return {"add": "+", "del": "-"}.get(self.kind, " ")


def compare(before: str, after: str) -> tuple[DiffLine, ...]:
    """Changed lines with three equal ones around them; empty when nothing changed."""
    old, new = before.splitlines(), after.splitlines()
    lines: list[DiffLine] = []
    for group in difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_grouped_opcodes(_CONTEXT):
        if lines:
            lines.append(DiffLine("gap", None, None, "…"))
        for tag, a1, a2, b1, b2 in group:
            if tag == "equal":
                lines += [DiffLine("", a1 + i + 1, b1 + i + 1, old[a1 + i]) for i in range(a2 - a1)]
                continue
            lines += [DiffLine("del", i + 1, None, old[i]) for i in range(a1, a2)]
            lines += [DiffLine("add", None, i + 1, new[i]) for i in range(b1, b2)]
    return tuple(lines)
