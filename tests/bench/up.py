"""`make bench-up`: how long denv takes to start, and what it weighs when idle. Prints a table, then one JSON object."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.e2e.instance import Instance

_IDLE_AFTER_S = 15.0


def _ready_s(instance: Instance) -> float:
    began_s = time.monotonic()
    instance.start()
    instance.until(lambda: "control plane ready" in instance.log(), timeout_s=90, what="ready")
    return time.monotonic() - began_s


def _pss_mb(pid: int) -> float:
    """Proportional set size of a process and its children: memory shared between them is counted once."""
    process = psutil.Process(pid)
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total / 1e6


def _venv_mb() -> float:
    """On disk, of a new environment with the runtime lock alone."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        lock = Path(__file__).resolve().parents[2] / "requirements.lock"
        subprocess.run([f"{folder}/bin/pip", "install", "-qq", "--disable-pip-version-check", "-r", str(lock)], check=True)
        return float(subprocess.run(["du", "-sm", folder], capture_output=True, text=True, check=True).stdout.split()[0])


def main() -> None:
    """Cold start, warm start, idle memory, environment."""
    with tempfile.TemporaryDirectory(prefix="denv-bench-") as folder:
        Path(folder).chmod(0o755)
        instance = Instance(Path(folder) / "home", demo=False)
        cold_s = _ready_s(instance)
        instance.stop()
        (instance.home / "up.log").unlink()
        warm_s = _ready_s(instance)
        time.sleep(_IDLE_AFTER_S)
        assert instance.process is not None
        pids = {"supervisor": instance.process.pid, **instance.pids()}
        memory = {name: _pss_mb(pid) for name, pid in pids.items() if name != "supervisor"}
        memory["supervisor"] = psutil.Process(pids["supervisor"]).memory_full_info().pss / 1e6
        instance.stop()
    venv_mb = _venv_mb()
    print(f"start, first time     {cold_s:6.1f} s\nstart, warm           {warm_s:6.1f} s")
    for name, mb in sorted(memory.items(), key=lambda item: -item[1]):
        print(f"idle memory {name:<10}{mb:6.0f} MB PSS")
    print(f"idle memory in all    {sum(memory.values()):6.0f} MB PSS\nvirtual environment   {venv_mb:6.0f} MB")
    figures = {"cold_start_s": cold_s, "warm_start_s": warm_s, "idle_pss_mb": sum(memory.values()), "venv_mb": venv_mb}
    print(json.dumps({key: round(value, 1) for key, value in figures.items()}))


if __name__ == "__main__":
    main()
