"""docker-compose.yml and Dockerfile name only what is there: programs, flags, settings, services, volumes, secrets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OWN = sorted(name for name, service in SERVICES.items() if str(service["image"]).startswith("denv:"))
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
# Keys of a service, by the Compose Specification; only those that are in use here.
SERVICE_KEYS = {
    "build", "cap_drop", "command", "depends_on", "environment", "healthcheck", "hostname", "image", "init", "ports", "restart", "secrets",
    "security_opt", "stop_grace_period", "volumes",
}  # fmt: skip
HEALTHCHECK_KEYS = {"test", "interval", "timeout", "retries", "start_period"}
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}
DURATION = re.compile(r"(\d+(ms|s|m|h))+")


def expanded(text: str) -> str:
    """`${NAME:-default}` as Compose reads it when NAME is not set, and `$$` as a dollar."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text).replace("$$", "$")


@cache
def help_of(program: tuple[str, ...]) -> str:
    """What a program prints for --help; it must exist and start."""
    here = {"python": (sys.executable,), "denv": (sys.executable, "-m", "denvweb.cli.main")}
    argv = (*here[program[0]], *program[1:], "--help")
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "denvweb.settings", "COLUMNS": "200"}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def program_of(command: list[str]) -> tuple[tuple[str, ...], list[str]]:
    """The words that name the program and its subcommand, and its flags."""
    words = [expanded(word) for word in command]
    if words[0] == "denv":
        return tuple(words[:2]), words[2:]
    assert words[1] == "-m"
    if words[2] == "celery":
        return tuple(words[:5]), words[5:]
    return tuple(words[: 4 if words[2] == "django" else 3]), words[4 if words[2] in {"django", "uvicorn"} else 3 :]


@pytest.mark.parametrize("name", OWN)
def test_commands_exist_and_have_their_flags(name: str) -> None:
    program, words = program_of(SERVICES[name]["command"])
    text = help_of(program)
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    assert [flag for flag in flags if not re.search(rf"{re.escape(flag)}\b", text)] == []


def test_every_program_of_denv_is_there() -> None:
    assert {"bootstrap", "web", "worker", "beat", "router", "agent"} == set(OWN)
    assert {"postgres", "valkey"} == set(SERVICES) - set(OWN)
    assert SERVICES["postgres"]["image"] == "postgres:18"
    assert SERVICES["valkey"]["image"] == "valkey/valkey:9"


@pytest.mark.parametrize("name", OWN)
def test_every_variable_is_a_setting(name: str) -> None:
    read = set()
    for path in (ROOT / "denvweb").glob("*.py"):
        read |= set(re.findall(r"env\.read(?:_bool|_list)?\(\s*\"([A-Z_]+)\"", path.read_text(encoding="utf-8")))
    given = {variable.removesuffix("_FILE") for variable in SERVICES[name].get("environment", {})}
    assert given - read == set()


def test_secrets_are_files_and_every_reference_resolves() -> None:
    for name, service in SERVICES.items():
        assert set(service) <= SERVICE_KEYS, name
        assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"])
        for variable, value in service.get("environment", {}).items():
            if variable.endswith("_FILE"):
                assert value.removeprefix("/run/secrets/") in service["secrets"], (name, variable)
            else:
                assert "PASSWORD" not in variable and "SECRET" not in variable, "secrets come as files"
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in COMPOSE["volumes"], (name, volume)
    assert "/secrets/" in (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    assert "secrets" in (ROOT / ".dockerignore").read_text(encoding="utf-8").split()


def test_services_wait_for_what_they_need() -> None:
    for name, service in SERVICES.items():
        for other, wait in service.get("depends_on", {}).items():
            assert other in SERVICES
            assert wait["condition"] in CONDITIONS
            if wait["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other], (name, other)
            if wait["condition"] == "service_completed_successfully":
                assert SERVICES[other]["restart"] == "no", "a service that is started again never completes"
    for name in ("web", "worker", "beat", "router", "agent"):
        assert "bootstrap" in SERVICES[name]["depends_on"], "it needs tables or tokens"


def test_health_is_looked_at_where_it_can_be() -> None:
    for name in ("postgres", "valkey", "web", "worker", "router"):
        check = SERVICES[name]["healthcheck"]
        assert set(check) <= HEALTHCHECK_KEYS
        assert check["test"][0] in {"CMD", "CMD-SHELL"}
        assert all(DURATION.fullmatch(check[key]) for key in ("interval", "timeout"))


def test_programs_find_the_control_plane_and_their_tokens() -> None:
    hosts = expanded(SERVICES["web"]["environment"]["DENV_ALLOWED_HOSTS"]).split(",")
    fleet = SERVICES["bootstrap"]["command"][-1]
    for name, token in (("router", "router.token"), ("agent", f"join-{fleet}.token")):
        command = [expanded(word) for word in SERVICES[name]["command"]]
        assert f"--token-file=/var/lib/denv/credentials/{token}" in command
        assert "--control=http://web:8080" in command
        assert "denv-home:/var/lib/denv:ro" in SERVICES[name]["volumes"]
        assert "secrets" not in SERVICES[name], "the data plane has no business with the database"
    assert "web" in hosts
    assert any(f"fleet={fleet}," in word for word in SERVICES["agent"]["command"])
    assert "denv-home:/var/lib/denv" in SERVICES["bootstrap"]["volumes"]
    assert "DENV_HOME=/var/lib/denv" in DOCKERFILE


def test_published_ports_are_on_loopback() -> None:
    """Whoever wants denv on a network puts a proxy with TLS before it."""
    for service in SERVICES.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_the_image_is_what_the_lock_says_and_does_not_run_as_root() -> None:
    lines = DOCKERFILE.splitlines()
    assert "FROM python:3.11-slim" in lines
    assert any("-r requirements.lock" in line for line in lines)
    users = [line for line in lines if line.startswith("USER ")]
    assert users == ["USER denv"]
    assert lines.index("USER denv") > max(index for index, line in enumerate(lines) if line.startswith(("RUN", "COPY")))
    assert not any(line.startswith("ENTRYPOINT") for line in lines), "each service names its whole command"
    for service in OWN:
        assert SERVICES[service]["build"] == "."
