"""The flags of `denv router`: one frozen dataclass, and an argument parser made from its fields."""

from __future__ import annotations

import argparse
import dataclasses
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from denvweb import env
from denvweb.core.errors import InvalidError
from denvweb.core.flags import FlagParser


@dataclass(frozen=True, slots=True)
class Config:
    """All that a router process is told. Each field is the flag `--name` and the variable `DENV_ROUTER_NAME`."""

    stage: Annotated[str, "the stage to serve, `model/stage`"] = ""
    port: Annotated[int, "where clients connect; 0 takes a free port"] = 8000
    host: Annotated[str, "the address to listen on"] = "127.0.0.1"
    advertise: Annotated[str, "the host name that clients reach this router by; empty: the address it listens on"] = ""
    control: Annotated[str, "URL of the control plane"] = "http://127.0.0.1:8080"
    token_file: Annotated[str, "file with a router token"] = ""
    state_dir: Annotated[str, "where the last table is kept; empty: DENV_HOME/router"] = ""
    name: Annotated[str, "this router's name; empty: host name and port"] = ""
    session_header: Annotated[str, "requests with the same value of this header stay on one release"] = "x-session-id"
    reuse_port: Annotated[bool, "several router processes share the port (SO_REUSEPORT)"] = False
    processes: Annotated[int, "router processes that share the port; each takes a core, and reports under its own name"] = 1
    max_connections: Annotated[int, "connections of clients; more are told to come back"] = 10_000
    max_body_bytes: Annotated[int, "longest request body"] = 64 << 20
    max_header_bytes: Annotated[int, "longest request head"] = 64 << 10
    connect_deadline_s: Annotated[float, "to connect to an engine"] = 2.0
    prefill_deadline_s: Annotated[float, "for the answer of a prefill leg, to which each prompt token adds `prefill-token-deadline-s`"] = (
        15.0
    )
    prefill_token_deadline_s: Annotated[float, "added to the prefill deadline for each token to be computed"] = 0.001
    first_byte_deadline_s: Annotated[float, "for the first byte of a decode leg's stream"] = 60.0
    total_deadline_s: Annotated[float, "for a whole request"] = 1800.0
    prefill_inflight: Annotated[int, "prefill legs in flight for each prefill replica; more wait in the router"] = 16
    queue_limit: Annotated[int, "requests that may wait for prefill in one unit; more get status 429"] = 512
    queue_deadline_s: Annotated[float, "longest wait for prefill"] = 30.0
    eject_after: Annotated[int, "failures in a row that take a replica out"] = 3
    hung_after_s: Annotated[float, "an engine with requests that makes no step for so long is taken out, and replaced; 0: never"] = 10.0
    tokenizer: Annotated[
        str, "a `tokenizer.json`, or `hf://org/name@revision`, to count prompts with in place of the recipe's; wants denv[tokenizers]"
    ] = ""
    prefix_blocks: Annotated[int, "prompt blocks that the prefix index remembers"] = 200_000
    drain_deadline_s: Annotated[float, "after SIGTERM, for requests in flight to end"] = 60.0
    peers: Annotated[int, "processes that share the port, this one included; set by `--processes`"] = 1
    peer_index: Annotated[int, "which of them this one is; set by `--processes`"] = 0
    peer_board: Annotated[str, "file through which they tell each other their load; set by `--processes`"] = ""
    access_log: Annotated[str, "file for one JSON line a request, opened anew on SIGHUP; `-` is standard output, empty is none"] = ""
    tls_cert: Annotated[str, "PEM file with this router's certificate chain: clients then speak HTTPS; read anew on SIGHUP"] = ""
    tls_key: Annotated[str, "PEM file with the certificate's private key; empty: it is in `--tls-cert`"] = ""
    tracing: Annotated[bool, "write OpenTelemetry spans, to where the OTEL_ variables say"] = False
    gauge_every_s: Annotated[float, "between two looks at the engines' KV use"] = 1.0
    report_every_s: Annotated[float, "between two reports to the control plane"] = 1.0

    @property
    def label(self) -> str:
        """The name that the control plane knows this router by."""
        return self.name or f"{socket.gethostname()}:{self.port}"

    @property
    def table_path(self) -> Path:
        """Where the last table is kept."""
        folder = Path(self.state_dir) if self.state_dir else env.home() / "router"
        return folder / f"table-{self.stage.replace('/', '_')}.json"

    def token(self) -> str:
        """The bearer token, from its file or DENV_ROUTER_TOKEN; read anew each time, so that it can be replaced under a running router."""
        if self.token_file:
            return Path(self.token_file).read_text(encoding="utf-8").strip()
        return env.read("DENV_ROUTER_TOKEN")


def _types() -> dict[str, tuple[Any, str]]:
    hints = get_type_hints(Config, include_extras=True)
    return {item.name: (get_args(hints[item.name])[0], get_args(hints[item.name])[1]) for item in dataclasses.fields(Config)}


def _truth(text: str) -> bool:
    return text.lower() in {"1", "true", "yes", "on"}


def _from_env(name: str, kind: Any) -> Any:
    text = env.read(f"DENV_ROUTER_{name.upper()}")
    if not text:
        return None
    return _truth(text) if kind is bool else kind(text)


def parser() -> argparse.ArgumentParser:
    """The argument parser, one flag for each field of `Config`."""
    made = FlagParser(prog="denv router", description="The OpenAI-compatible request router of one stage.")
    defaults = Config()
    for name, (kind, about) in _types().items():
        default = getattr(defaults, name)
        shown = f"{about} (default: {default})" if default not in ("", False) else about
        flag = f"--{name.replace('_', '-')}"
        if kind is bool:
            made.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=about)
        else:
            made.add_argument(flag, type=kind, default=None, help=shown.replace("%", "%%"))
    return made


def parse(argv: Sequence[str]) -> Config:
    """Flags first, then the environment, then the defaults."""
    given = vars(parser().parse_args(argv))
    values: dict[str, Any] = {}
    for name, (kind, _) in _types().items():
        value = given[name] if given[name] is not None else _from_env(name, kind)
        if value is not None:
            values[name] = value
    config = Config(**values)
    if "/" not in config.stage:
        raise InvalidError("--stage must name a stage as `model/stage`", code="stage-missing")
    return config
