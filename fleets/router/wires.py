"""How an engine's prefill hands a request over to its decode, as far as a router has a hand in it: one class for each protocol.

vLLM over NIXL: prefill first; it says where its KV lies, and decode is told so. SGLang: both at once; they find each other by a number
that the router makes up. Where prefill's part is over before decode is asked, `handed` reads it out of prefill's answer.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Protocol

from fleets.domain.ports import SIDE_CHANNEL
from fleets.router.openai import Ask

_NEEDED = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")
_ROOM_BITS = 63
_SAMPLES_BITS = 10  # SGLang counts on from the room for further samples


class Host(Protocol):
    """A prefill replica, as far as decode must know it."""

    @property
    def address(self) -> tuple[str, int]:
        """Where it serves HTTP."""


class Wire(Protocol):
    """One protocol. Bodies are what the client sent, and what is added to them."""

    @property
    def concurrent(self) -> bool:
        """Whether both legs must be under way at once."""

    @property
    def local_prefill(self) -> bool:
        """Whether decode can do without prefill."""

    def meeting(self, ask: Ask, prefill: Host) -> Mapping[str, Any]:
        """What both legs of one request are told, so that they meet; nothing where prefill comes first."""

    def handed(self, reply: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What prefill's answer adds to decode's body; None when there is no KV to fetch."""


def usable(params: object) -> dict[str, Any] | None:
    """Prefill's parameters, if a decode can use them; None when there is nothing to fetch.

    An engine that is given half of them waits for ever, and vLLM's core dies when the client then leaves.
    """
    if not isinstance(params, dict):
        return None
    blocks = params.get("remote_block_ids")
    if not isinstance(blocks, list) or not any(blocks) or any(params.get(name) in (None, "") for name in _NEEDED):
        return None
    return params


class Nixl:
    """vLLM's NixlConnector, pulled by decode. The simulated engine and whoever serves DeepInfer speak it too."""

    concurrent = False
    local_prefill = True

    def meeting(self, ask: Ask, prefill: Host) -> Mapping[str, Any]:
        return {}

    def handed(self, reply: Mapping[str, Any]) -> Mapping[str, Any] | None:
        params = usable(reply.get("kv_transfer_params"))
        return None if params is None else {"kv_transfer_params": params}


class Bootstrap:
    """SGLang's: prefill's bootstrap server, and a room there. A decode without a room answers 400, so it never works alone."""

    concurrent = True
    local_prefill = False

    def meeting(self, ask: Ask, prefill: Host) -> Mapping[str, Any]:
        host, port = prefill.address[0], prefill.address[1] + SIDE_CHANNEL
        room = random.getrandbits(_ROOM_BITS - _SAMPLES_BITS) << _SAMPLES_BITS
        count = ask.prompts
        if count == 1:
            return {"bootstrap_host": host, "bootstrap_port": port, "bootstrap_room": room}
        rooms = [room + index for index in range(count)]
        return {"bootstrap_host": [host] * count, "bootstrap_port": [port] * count, "bootstrap_room": rooms}

    def handed(self, reply: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return None


NIXL = Nixl()
WIRES: Mapping[str, Wire] = {"vllm-nixl": NIXL, "sglang-bootstrap": Bootstrap()}
