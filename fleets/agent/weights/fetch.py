"""The process that brings one model's weights to a node: `python -m fleets.agent.weights.fetch URI CACHE`.

A process of its own, because hashing and the hub's client would hold up an agent's event loop, and because it can be ended at
any moment: files that are there are not fetched again, and a file that breaks off is gone on with. It ends with its agent, whose
end of its standard input closes. On standard output are lines of JSON: `{"done", "total"}`, at last `{"path"}`, or
`{"error", "final"}`. A token comes as HF_TOKEN.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from denvweb.core.errors import DenvError, InvalidError
from denvweb.core.units import format_bytes
from fleets.agent.redact import redact
from fleets.agent.weights import digest
from fleets.engines.base import weights_path

_TELL_EVERY_S = 0.5
_STALE_S = 900.0  # a file that nobody wrote to for so long is nobody's any more
_SPARE_BYTES = 2 * 10**9  # of the disk, for logs and for whoever else writes there
# Other forms of the same weights, left out where there are safetensors: engines read those.
_OTHER_FORMS = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.onnx", "*.onnx_data", "*.msgpack", "*.h5", "*.ot", "original/*", "metal/*")


class WeightsError(DenvError):
    """Weights that cannot be had. `final`: trying again would not help."""

    code = "weights"

    def __init__(self, detail: str, *, final: bool = False) -> None:
        super().__init__(detail)
        self.final = final


def say(**line: object) -> None:
    """One line to the agent."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def room_for(missing_bytes: int, folder: Path) -> None:
    """WeightsError when the disk has no room for what is missing: said before the first byte, and not after hours."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free - spare_bytes()
    if missing_bytes > free:
        raise WeightsError(
            f"the disk of {folder} is too small: {format_bytes(missing_bytes)} of weights are missing, {format_bytes(max(0, free))} may be "
            f"used (the rest is kept for others), short by {format_bytes(missing_bytes - free)}"
        )


def spare_bytes() -> int:
    """What is left alone of a disk."""
    return int(os.environ.get("DENV_WEIGHTS_SPARE_BYTES", _SPARE_BYTES))


# ---- hf:// ----


def fetch_hub(repo: str, revision: str, cache: Path) -> str:
    """Bring a repository's files at one revision into the cache; the folder with them. Complete ones are not asked for again."""
    import huggingface_hub as hub
    from huggingface_hub import errors

    home = cache / f"models--{repo.replace('/', '--')}"
    mark = home / f".denv-complete-{revision}"
    if mark.exists():
        known = home / "snapshots" / mark.read_text(encoding="utf-8")
        if known.is_dir() and all(file.exists() for file in known.rglob("*")):
            return str(known)
        mark.unlink()  # somebody cleared the cache, or a part of it
    try:
        files = _planned(hub, repo, revision, cache)
        total = sum(file.file_size or 0 for file in files)
        missing = [file for file in files if file.will_download]
        missing_bytes = sum(file.file_size or 0 for file in missing)
        begun_s = time.time()
        _drop_stale(home / "blobs", begun_s)
        room_for(missing_bytes, cache)
        with _Watch(lambda: min(total, total - missing_bytes + _grown(home / "blobs", missing, begun_s)), total, cache):
            path = str(hub.snapshot_download(repo, revision=revision, cache_dir=cache, ignore_patterns=_ignored(files)))
    except (errors.HfHubHTTPError, errors.DryRunError, errors.LocalEntryNotFoundError) as error:
        raise _refused(repo, revision, error) from error
    mark.write_text(Path(path).name, encoding="utf-8")
    return path


def _refused(repo: str, revision: str, error: Exception) -> WeightsError:
    """What the hub's answer means, and whether trying again would help."""
    from huggingface_hub import errors

    cause = error if isinstance(error, errors.HfHubHTTPError) else error.__cause__ or error
    match cause:
        case errors.GatedRepoError():
            return WeightsError(f"{repo} is gated: its token may not read it, or there is none", final=True)
        case errors.RevisionNotFoundError():
            return WeightsError(f"{repo} has no revision {revision}", final=True)
        case errors.RepositoryNotFoundError():
            return WeightsError(f"there is no {repo}, or it is private and the token may not read it", final=True)
        case errors.HfHubHTTPError():
            status = getattr(cause.response, "status_code", 0)
            return WeightsError(f"the hub refuses {repo}: {_first_line(cause)}", final=status in (401, 403))
    return WeightsError(f"the hub does not answer: {_first_line(cause)}")


def _planned(hub: Any, repo: str, revision: str, cache: Path) -> list[Any]:
    """What a download would do, file by file; of several forms of the same weights only safetensors."""
    files = hub.snapshot_download(repo, revision=revision, cache_dir=cache, dry_run=True)
    if not any(file.filename.endswith(".safetensors") for file in files):
        return list(files)

    return [file for file in files if not any(fnmatch(file.filename, form) for form in _OTHER_FORMS)]


def _ignored(files: list[Any]) -> list[str] | None:
    return list(_OTHER_FORMS) if any(file.filename.endswith(".safetensors") for file in files) else None


def _drop_stale(blobs: Path, now_s: float) -> None:
    """Remove what killed fetches left half done: the hub's client begins a file anew, and nobody else would remove it."""
    for path in blobs.glob("*.incomplete"):
        if now_s - _changed_s(path) > _STALE_S:
            path.unlink(missing_ok=True)


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return math.inf


def _grown(blobs: Path, missing: list[Any], begun_s: float) -> int:
    """Bytes that are there by now of what was missing when the fetch began."""
    whole = sum(file.file_size or 0 for file in missing if Path(file.local_path).exists())
    return whole + sum(_used(path) for path in blobs.glob("*.incomplete") if _changed_s(path) >= begun_s - 1)


def _used(path: Path) -> int:
    try:
        stat = path.stat()
    except OSError:
        return 0  # it is finished, and has another name by now
    return min(stat.st_size, stat.st_blocks * 512)  # a file may be made at its full length before it is filled


def _first_line(error: BaseException) -> str:
    return redact(str(error).strip().partition("\n")[0])[:300]


# ---- file:// ----


def check_file(path: str, pin: str) -> str:
    """The path, once the weights there have the digest that the release names."""
    folder = Path(path)
    if not folder.exists():
        raise WeightsError(f"there are no weights at {path} on this node", final=True)
    wanted = digest.expected(pin)
    total = sum(each.stat().st_size for each in digest.weight_files(folder))
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more

    with _Watch(lambda: done, total, None, verb="checking weights"):
        found = digest.digest_of(folder, count)
    if not found.startswith(wanted):
        raise WeightsError(f"the weights at {path} are others than the release names: sha256-{found[:16]}, not {pin}", final=True)
    return path


class _Watch:
    """Tells the agent how far it is, and ends the process when the disk runs full."""

    def __init__(self, done: Callable[[], int], total: int, disk: Path | None, verb: str = "weights") -> None:
        self._done, self._total, self._disk, self._verb = done, total, disk, verb
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            say(done=self._done(), total=self._total, verb=self._verb)
            if self._disk is not None and shutil.disk_usage(self._disk).free < spare_bytes() // 2:
                left = format_bytes(max(0, self._total - self._done()))
                say(
                    error=f"the disk of {self._disk} ran full with {left} of weights missing",
                    final=False,
                )
                os._exit(1)
            if self._over.wait(_TELL_EVERY_S):
                return


def _end_with_agent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main(argv: list[str]) -> int:
    """0 and a path, or 1 and an error."""
    uri, cache = argv
    threading.Thread(target=_end_with_agent, daemon=True).start()
    place, pin = weights_path(uri) if uri.startswith("hf://") else uri.removeprefix("file://").rsplit("@", 1)
    try:
        path = fetch_hub(place, pin, Path(cache)) if uri.startswith("hf://") else check_file(place, pin)
    except WeightsError as error:
        say(error=error.detail, final=error.final)
    except InvalidError as error:
        say(error=error.detail, final=True)
    except (OSError, RuntimeError, ValueError) as error:  # the hub's client raises these for networks, disks and answers
        say(error=f"{type(error).__name__}: {_first_line(error)}", final=False)
    else:
        say(path=path)
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
