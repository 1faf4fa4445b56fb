"""Every command of the tree: it has help, speaks JSON, says errors as JSON, and prints plain text where there is no terminal."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import httpx
import pytest
from click.shell_completion import BashComplete
from django.contrib.auth.models import User
from django.test import Client

from denvweb.cli.main import _run, cli
from denvweb.cli.output import rows_of
from releases.domain.spec import ReleaseFile, parse
from tests.integration.rollouts_world import STAGE, Demo, make_api, release_yaml

# Commands without --json, and why.
WITHOUT_JSON = {
    "up": "runs until it is interrupted, and prints what it starts",
    "agent": "a program: it logs",
    "router": "a program: it logs",
    "reconcile": "a program: it logs",
    "engine sim": "a program: it logs",
    "schema": "prints JSON already",
    "completion": "prints a script",
}
NODE = "gb200-use1-d01-n01"
# A right call of each command; `{...}` is filled in by what an earlier one answered.
CALLS: tuple[tuple[str, ...], ...] = (
    ("stages",), ("fleets",), ("fleets show", "gb200-use1"), ("nodes",), ("recipes",), ("rollouts",), ("events",), ("metrics", STAGE),
    ("releases", "ds-flash"), ("scale", STAGE), ("placement explain", STAGE), ("placement defrag",),
    ("release", "-f", "{file}"), ("diff", "ds-flash@1", "ds-flash@2"), ("rollout show", STAGE), ("rollout pause", STAGE),
    ("rollout resume", STAGE), ("rollout promote", STAGE, "--full", "--reason", "by hand"), ("rollout abort", STAGE),
    ("release resume", "ds-flash@2"), ("nodes drain", "{node}", "--dry-run"), ("nodes cordon", "{node}"), ("nodes uncordon", "{node}"),
    ("freeze add", "--from", "2030-12-24", "--to", "2030-12-27", "--zone", "Europe/Berlin", "--reason", "holidays"), ("freeze list",),
    ("freeze remove", "{id}"), ("token create", "--label", "ci"), ("token list",), ("token revoke", "{id}"), ("token join", "h200-use1"),
    ("key create", STAGE, "--client", "acme"), ("key list", STAGE), ("key require", STAGE), ("key open", STAGE),
    ("key revoke", STAGE, "{key}"), ("secret list",), ("login", "http://denv.test", "--token", "tok-1.x"),
    ("init", "-y", "-o", "{new}"),
)  # fmt: skip
# Not called here, and where they are.
ELSEWHERE = {
    "rollout watch": "test_rollout_watch.py", "rollback": "test_cli_basics.py", "logs": "test_engine_logs.py",
    "fleets thaw": "test_fleets_loss.py", "secret set": "test_secrets.py", "secret remove": "test_secrets.py",
    "replay": "test_replay_trace.py", "weights": "test_agent_weights.py", "size": "test_sizing_cli.py", "advise": "test_sizing_cli.py",
    "simulate": "test_sizing_cli.py", "audit verify": "test_access_audit.py",
}  # fmt: skip


def _leaves(command: click.Command, ctx: click.Context, path: str = "") -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        if path and command.invoke_without_command:
            yield path, command
        for name in command.list_commands(ctx):
            found = command.get_command(ctx, name)
            assert found is not None
            yield from _leaves(found, ctx, f"{path} {name}".strip())
    else:
        yield path, command


LEAVES = dict(_leaves(cli, click.Context(cli)))


def test_each_command_says_what_it_does_and_what_its_options_mean() -> None:
    for path, command in LEAVES.items():
        assert command.help and re.match(r"[A-Z`].*[.:]", command.help.strip().splitlines()[0]), path
        for param in command.params:
            if isinstance(param, click.Option):
                assert param.help, f"denv {path} {param.opts[0]} has no help"
        with_json = any("--json" in param.opts for param in command.params)
        assert with_json != (path in WITHOUT_JSON), f"denv {path}: --json, or a reason why not"
    assert LEAVES.keys() == {call[0] for call in CALLS} | ELSEWHERE.keys() | WITHOUT_JSON.keys()
    assert all(list((Path(__file__).parents[1]).rglob(file)) for file in ELSEWHERE.values())


@pytest.mark.parametrize("path", [path for path in LEAVES if path not in WITHOUT_JSON])
def test_what_is_wrong_is_said_as_json(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run([*path.split(), "--json", "--no-such-option"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    body = json.loads(said.err)
    assert body.keys() == {"code", "detail", "fields", "request_id"} and body["code"] == "usage" and "--no-such-option" in body["detail"]


def test_a_control_plane_that_is_away_is_said_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DENV_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("DENV_TOKEN", "tok-x.y")
    monkeypatch.setenv("DENV_HOME", str(tmp_path))
    file = tmp_path / "denv.yaml"
    file.write_text(release_yaml())
    asking = [call for call in CALLS if call[0] not in ("login", "init")]
    for command, *words in asking:
        filled = [str(file) if word == "{file}" else word.strip("{}") for word in words]
        assert _run([*command.split(), *filled, "--json"]) == 3, command
        said = capsys.readouterr()
        assert (said.out, json.loads(said.err)["code"]) == ("", "no-answer"), command


Denv = Callable[..., tuple[int, str, str]]


@pytest.fixture
def denv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Denv:
    """The command against this very process: exit status, what it prints, and what it says is wrong."""
    User.objects.create(username="ada", is_superuser=True)
    api: Client = make_api()
    real = httpx.Client

    def over_django(request: httpx.Request) -> httpx.Response:
        kept = {name: value for name, value in request.headers.items() if name.startswith(("idempotency", "user-agent"))}
        answer = api.generic(request.method, request.url.raw_path.decode(), request.content, "application/json", headers=kept)
        return httpx.Response(answer.status_code, content=answer.content)

    monkeypatch.setattr("denvweb.cli.client.httpx.Client", lambda **options: real(transport=httpx.MockTransport(over_django), **options))
    monkeypatch.setenv("DENV_URL", "http://denv.test")
    monkeypatch.setenv("DENV_TOKEN", "tok-1.x")
    monkeypatch.setenv("DENV_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "60")

    def run(*words: str) -> tuple[int, str, str]:
        status = _run(list(words))
        return status, *capsys.readouterr()

    return run


@pytest.mark.django_db
def test_each_answers_in_one_json_document_and_in_plain_text(denv: Denv, tmp_path: Path) -> None:
    demo = Demo()
    demo.first()
    file = tmp_path / "next.yaml"
    file.write_text(release_yaml(block=32))
    words: dict[str, str] = {"file": str(file), "new": str(tmp_path / "new.yaml"), "node": "", "id": "", "key": ""}
    for command, *given in CALLS:
        status, out, err = denv(*command.split(), *(word.format(**words) for word in given), "--json")
        assert (status, err) == (0, ""), (command, err)
        answer = json.loads(out)
        if command == "nodes":
            words["node"] = answer[0]["node"]
        if isinstance(answer, dict):
            words |= {name: answer[name] for name in ("id",) if name in answer}
            words |= {"id": answer["token"]} if command == "token create" else {"key": answer["text"]} if command == "key create" else {}
        if command.startswith("ro") or command == "release":
            demo.tick()
    for command, *given in CALLS:
        if not any("{" in word for word in given) and command.split()[-1] not in ("add", "create", "pause", "resume", "promote", "abort"):
            status, out, err = denv(*command.split(), *given)
            assert status == 0 and err == "" and out.strip(), (command, err)
            assert "\x1b" not in out and not re.search(r"[\u2500-\u259f]", out), command
            assert not out.lstrip().startswith(("{", "[")), command


@pytest.mark.django_db
def test_a_name_that_is_near_is_said_and_one_may_only_be_told_of_what_one_sees(denv: Denv) -> None:
    Demo().first()
    meant = {
        ("metrics", "ds-flash/prod-uss"): "ds-flash/prod-us",
        ("rollout", "show", "ds-flsh/prod-us"): "ds-flash/prod-us",
        ("releases", "dsflash"): "ds-flash",
        ("fleets", "gb20-use1"): "gb200-use1",
        ("placement", "defrag", "gb200use1"): "gb200-use1",
    }
    for typed, name in meant.items():
        status, out, err = denv(*typed)
        assert (status, out) == (1, "") and err.strip().endswith(f"Did you mean `{name}`?"), (typed, err)
    status, _, err = denv("metrics", "nothing/like-it")
    assert status == 1 and "Did you mean" not in err
    status, _, err = denv("rollouts", "--state", "succeded")
    assert status == 2 and err.strip().endswith("Did you mean `succeeded`?")
    status, _, err = denv("metrics", STAGE, "--sinc", "1h")
    assert status == 2 and err == "denv metrics: no option `--sinc`. Did you mean `--since`?\n"


@pytest.mark.parametrize("columns", [1, 10, 60, 200])
def test_a_text_takes_the_rows_that_it_wraps_to(columns: int) -> None:
    text = "\x1b[32m" + "x" * 120 + "\x1b[0m\n\nshort"
    assert rows_of(text, columns) == -(-120 // columns) + 1 + max(1, -(-5 // columns))


class _Typed(io.StringIO):
    """A terminal at which somebody types these lines, and then ends the input."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """`denv init` in an empty folder without a control plane, and what is typed; its status, and what it says on stderr."""
    monkeypatch.setenv("DENV_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("DENV_TOKEN", "tok-x.y")
    monkeypatch.setenv("DENV_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(*lines: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.stdin", _Typed("".join(f"{line}\n" for line in lines)))
        try:
            status = _run(["init"])
        except click.Abort:
            status = 130
        return status, capsys.readouterr().err

    return run


def test_init_explains_and_asks_again_until_each_answer_is_right(asked: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    named = ("lama-3.1-70b/vllm@1", "llama-3.1-70b/vllm@1", "Not A Name", "chat", "s3://x", "hf://a/b@c41a7e2", "one, two")
    status, said = asked(*named, "0", "4x2", "8", "", "two", "2", "soon", "", "")
    assert status == 0, said
    for hint in ("did you mean `llama-3.1-70b/vllm@1`?", "not a model name", "`0` is no pool", "two is not a number", "`soon` is no limit"):
        assert hint in said, said
    assert "No control plane answers" in said and "Prefill pool: computes prompts, and sets TTFT" in said
    file = parse((tmp_path / "denv.yaml").read_text())
    assert isinstance(file, ReleaseFile)
    assert (file.release.model, file.release.weights, file.stages[0].fleets) == ("chat", "hf://a/b@c41a7e2", ("one", "two"))
    assert [(pool.gpus, pool.replicas) for _, pool in file.release.topology.pools] == [(4, 2), (8, 1)] and file.stages[0].replicas == 2


def test_init_that_is_given_up_leaves_nothing_and_nothing_is_written_over_unasked(
    asked: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    assert asked("llama-3.1-70b/vllm@1", "chat")[0] == 130
    assert list(tmp_path.iterdir()) == []
    path = tmp_path / "denv.yaml"
    path.write_text("mine")
    status, said = asked("n")
    assert status == 130 and "Write over it?" in said and path.read_text() == "mine"
    assert asked("y", "", "", "", "f", *[""] * 6)[0] == 0 and "release:" in path.read_text()


@pytest.mark.django_db
def test_shells_complete_names_and_are_silent_when_nobody_answers(
    denv: Denv, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Demo().first()

    def completed(*words: str) -> list[str]:
        *before, last = words
        return [item.value for item in BashComplete(cli, {}, "denv", "_DENV_COMPLETE").get_completions(before, last)]

    assert completed("metrics", "ds") == [STAGE] and completed("rollout", "watch", "") == [STAGE]
    assert completed("releases", "ds") == ["ds-flash"] and completed("fleets", "gb") == completed("nodes", "--fleet", "g") == ["gb200-use1"]
    assert len(completed("nodes", "drain", "gb200")) == 3 and completed("stages", "--state", "stea") == ["steady"]
    monkeypatch.undo()
    monkeypatch.setenv("DENV_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("DENV_TOKEN", "tok-x.y")
    assert completed("metrics", "ds") == [] and completed("rollout", "pr") == ["promote"]
    assert capsys.readouterr() == ("", "")


def test_bash_takes_the_script(tmp_path: Path) -> None:
    script = 'eval "$(denv completion bash)"; COMP_WORDS=(denv rollout pro); COMP_CWORD=2; _denv_completion denv; echo "${COMPREPLY[*]}"'
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=60, env={"PATH": path, "DENV_HOME": str(tmp_path)}, check=True
    )
    assert (done.stdout, done.stderr) == ("promote\n", "")
