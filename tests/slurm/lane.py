"""Whether this run has a real Slurm under it."""

from __future__ import annotations

import os
import shutil

WANTED = os.environ.get("DENV_TEST_SLURM") == "1"
PRESENT = all(shutil.which(program) for program in ("slurmctld", "slurmd", "sbatch", "munged"))
RUNS = WANTED and PRESENT


def sentence() -> str:
    """For the end of a run."""
    if RUNS:
        return "Slurm lane: all of it, against a slurmctld and slurmd of its own"
    why = "is not asked for" if PRESENT else "is not installed (`apt-get install slurm-wlm munge`)"
    return f"Slurm lane: its command lines only, because Slurm {why}; `make test-slurm` runs all of it"
