"""How much of the vLLM lane this run does, and why."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("DENV_TEST_VLLM", ROOT / "build" / "vllm"))
SHORT_FILES = ("test_a_serving.py", "test_e_flags.py")  # about a minute


class Form(StrEnum):
    """What `DENV_TEST_VLLM_FORM` may ask for."""

    NONE = "none"  # another run does the lane at the same time
    SHORT = "short"  # as part of the whole suite, when vLLM's environment is there
    FULL = "full"  # `make test-vllm`


PRESENT = (FOLDER / ".complete").is_file()
FORM = Form(os.environ.get("DENV_TEST_VLLM_FORM", Form.SHORT)) if PRESENT else Form.NONE


def runs(file: str) -> bool:
    """Whether a test file of the lane is run."""
    return FORM is Form.FULL or (FORM is Form.SHORT and file in SHORT_FILES)


def sentence() -> str:
    """For the end of a run."""
    if not PRESENT:
        return f"vLLM lane: NOT run, because {FOLDER} is not set up; `make test-vllm` does that and runs it"
    if FORM is Form.NONE:
        return "vLLM lane: not run here, as DENV_TEST_VLLM_FORM asks"
    if FORM is Form.SHORT:
        return f"vLLM lane: its short form, with {FOLDER}: {', '.join(SHORT_FILES)}; `make test-vllm` runs all of it"
    return f"vLLM lane: all of it, with {FOLDER}"
