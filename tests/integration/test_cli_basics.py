"""The command's own behaviour: help, wrong words, wrong files, no control plane. Each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from denvweb.cli.release import with_prompts
from denvweb.cli.rollout import rollback
from denvweb.core.errors import InvalidError
from releases.domain.spec import ReleaseFile, parse
from releases.domain.views import PreflightView


def denv(*args: str, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("DENV_")}
    return subprocess.run(
        [sys.executable, "-m", "denvweb.cli.main", *args],
        capture_output=True,
        text=True,
        env={**clean, "DENV_HOME": str(home), **env},
        timeout=30,
        check=False,
    )


def test_help_lists_every_command(tmp_path: Path) -> None:
    done = denv("--help", home=tmp_path)
    assert done.returncode == 0
    for word in ("release", "rollout", "rollback", "metrics", "replay", "up"):
        assert f"  {word} " in done.stdout


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("demo-typo", "denv up --demo"), ("relaese", "denv release"), ("rolback", "denv rollback"), ("zzzzzz", "denv --help")],
)
def test_a_wrong_word_gets_the_right_one(tmp_path: Path, typed: str, meant: str) -> None:
    done = denv(typed, home=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip() == f"denv: no command `{typed}`. Did you mean `{meant}`?"


def test_a_wrong_word_of_a_group_gets_the_right_one_too(tmp_path: Path) -> None:
    done = denv("rollout", "pormote", home=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip().endswith("Did you mean `denv rollout promote`?")


def test_a_rollback_that_nobody_confirms_says_how_to_go_without(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    preflight = PreflightView(True, 7, 1, 2, 0.5, 20.0, "Release 7 is warm on unit 1.")
    stub = SimpleNamespace(get=lambda path, kind, **more: preflight, post=lambda path, *more: asked.append(path))
    monkeypatch.setattr("denvweb.cli.rollout.Client", lambda: stub)
    for answer in ("", "n\n"):
        done = CliRunner().invoke(rollback, ["ds-flash/prod-us"], input=answer)
        assert isinstance(done.exception, InvalidError) and "--yes" in done.exception.detail
        assert "Release 7 is warm on unit 1." in done.output
    assert asked == []


def test_init_writes_a_file_that_can_be_released_and_never_over_one(tmp_path: Path) -> None:
    path = tmp_path / "denv.yaml"
    given = ("--model", "ds-flash", "--weights", "hf://a/b@c41a7e2", "--recipe", "llama-3.1-70b/vllm@1", "--fleet", "one", "--fleet", "two")
    done = denv("init", "-o", str(path), *given, "--prefill", "4x2", "--decode", "8", home=tmp_path)
    assert done.returncode == 0, done.stderr
    file = parse(path.read_text())
    assert isinstance(file, ReleaseFile)
    assert [(pool.gpus, pool.replicas) for _, pool in file.release.topology.pools] == [(4, 2), (8, 1)]
    assert file.stages[0].fleets == ("one", "two")
    assert path.read_text().startswith("# yaml-language-server: $schema=http://")
    again = denv("init", "-o", str(path), *given, home=tmp_path)
    assert again.returncode == 2
    assert "--force" in again.stderr
    wrong = denv("init", "-o", str(tmp_path / "other.yaml"), *given[:2], home=tmp_path)
    assert wrong.returncode == 2
    assert "give --recipe" in wrong.stderr
    assert not (tmp_path / "other.yaml").exists()


def test_no_control_plane_is_said_with_its_cure(tmp_path: Path) -> None:
    done = denv("stages", home=tmp_path)
    assert done.returncode == 3
    assert "denv up" in done.stderr
    assert "denv login" in done.stderr


def test_a_control_plane_that_is_away_is_said(tmp_path: Path) -> None:
    done = denv("stages", home=tmp_path, DENV_URL="http://127.0.0.1:9", DENV_TOKEN="tok-x.y")
    assert done.returncode == 3
    assert "does not answer" in done.stderr


def test_a_stage_is_written_with_its_model(tmp_path: Path) -> None:
    done = denv("rollout", "show", "prod-us", home=tmp_path, DENV_URL="http://127.0.0.1:9", DENV_TOKEN="tok-x.y")
    assert done.returncode == 2
    assert "MODEL/STAGE" in done.stderr


BAD_FILES = {
    "empty": b"",
    "garbage": b"\x00\x01\x02\xff\xfe",
    "prose": b"this is no release",
    "tab": b"release:\n\tmodel: x\n",
    "duplicate": b"release:\n  model: a\n  model: b\n",
    "bomb": b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c]\n" % ((c, c) + (c - 1,) * 6) for c in range(98, 110)),
    "huge": b"x: " + b"y" * 10_000_000,
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_gets_one_clear_message(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"{kind}.yaml"
    path.write_bytes(BAD_FILES[kind])
    began_s = time.monotonic()
    done = denv("release", "-f", str(path), "--dry-run", home=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if "nothing was sent" not in line]
    assert len(lines) == 1, done.stderr
    assert path.name in lines[0]
    assert time.monotonic() - began_s < 5


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    done = denv("release", "-f", str(tmp_path / "none.yaml"), home=tmp_path)
    assert done.returncode == 2
    assert "No such file" in done.stderr


def test_every_mistake_of_a_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "denv.yaml"
    path.write_text(
        "release:\n  model: ds-flash\n  weights: hf://a/b@c\n  recipe: deepseek-v4.1-flash/deepinfer@3\n  topology:\n"
        "    prefill: { gpus: 0, replicas: 2 }\n    decode: { gpus: 64, replicas: 1 }\n    placment: same-domain\n"
        "stages:\n  prod-us:\n    fleets: [f]\n    replicas: 1\n    alarms: { ttft-p999: 1500ms }\n"
    )
    done = denv("release", "-f", str(path), "--dry-run", home=tmp_path)
    assert done.returncode == 2
    assert f"{path}:6:22  release.topology.prefill.gpus: 0 is not a number of GPUs; it must be at least 1" in done.stderr
    assert "release.topology.placment: not a key here; did you mean `placement`?" in done.stderr
    assert "stages.prod-us.alarms.ttft-p999" in done.stderr
    assert "3 errors in the file; nothing was sent." in done.stderr


def test_completion_knows_the_commands(tmp_path: Path) -> None:
    assert "_DENV_COMPLETE" in denv("completion", "bash", home=tmp_path).stdout
    done = denv(home=tmp_path, _DENV_COMPLETE="bash_complete", COMP_WORDS="denv roll", COMP_CWORD="1")
    assert "plain,rollout" in done.stdout


def test_the_command_starts_without_django(tmp_path: Path) -> None:
    code = "import sys, denvweb.cli.main, denvweb.cli.client, denvweb.cli.release, denvweb.cli.metrics; print('django' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_prompts_are_read_beside_the_file_or_refused(tmp_path: Path) -> None:
    text = """stages: { prod: { rollout: { probe: { prompts: "prompts.txt" } } } }\n"""
    path = tmp_path / "denv.yaml"
    with pytest.raises(InvalidError, match=r"denv.yaml:1: the prompts in prompts.txt cannot be read: No such file"):
        with_prompts(text, path)
    (tmp_path / "prompts.txt").write_bytes(b"\xff")
    with pytest.raises(InvalidError, match="is not text in UTF-8"):
        with_prompts(text, path)
    (tmp_path / "prompts.txt").write_text("x" * 200_000)
    with pytest.raises(InvalidError, match="has 200,000 bytes; at most 32,768"):
        with_prompts(text, path)
    (tmp_path / "prompts.txt").write_text("Say hello.\n")
    assert with_prompts(text, path) == text.replace('"prompts.txt"', '["Say hello."]')
    with pytest.raises(InvalidError, match="is no name of a file"):
        with_prompts(text.replace("prompts.txt", "a\\0b"), path)


def test_output_that_cannot_be_written_is_said_and_a_reader_that_goes_is_no_failure(tmp_path: Path) -> None:
    env = {**os.environ, "DENV_HOME": str(tmp_path)}
    env.pop("PYTHONUNBUFFERED", None)  # with a buffer it is noticed elsewhere
    command = f"{sys.executable} -m denvweb.cli.main schema"
    full = subprocess.run(["bash", "-c", f"{command} > /dev/full"], capture_output=True, text=True, timeout=60, env=env, check=False)
    assert (full.returncode, full.stderr) == (1, "denv: the output: No space left on device\n")
    head = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | head -c 1"], capture_output=True, text=True, timeout=60, env=env, check=False
    )
    assert (head.returncode, head.stdout, head.stderr) == (0, "{", "")
