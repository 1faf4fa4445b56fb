"""How an engine's prefill hands a request over to its decode, as far as a router has a hand in it: one class for each protocol.

vLLM whose decode pulls over NIXL, and TensorRT-LLM: prefill first; it says where its KV lies, and decode is told so. SGLang, and vLLM
whose prefill pushes: both at once; they find each other by a name that the router makes up.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Protocol

from fleets.domain.ports import SIDE_CHANNEL
from fleets.router import openai
from fleets.router.openai import Ask

_ROOM_BITS = 63
_LEAST_REQUEST_ID = 2**42  # TensorRT-LLM keeps smaller ones for itself
_REQUEST_IDS = ("ctx_request_id", "disagg_request_id")
_GOES_ON = ("length", "not_finished")
_SAMPLES_BITS = 10  # SGLang counts on from the room for further samples


class Host(Protocol):
    """A prefill replica, as far as decode must know it."""

    @property
    def address(self) -> tuple[str, int]:
        """Where it serves HTTP."""

    @property
    def engine_id(self) -> str:
        """Of its process, as its agent named it."""

    @property
    def tensor_parallel(self) -> int:
        """Its width, where the agent's name is its KV identity too; else 0."""


class Wire(Protocol):
    """One protocol. Bodies are what the client sent, and what is added to them."""

    @property
    def concurrent(self) -> bool:
        """Whether both legs are under way at once, if they can find each other."""

    @property
    def local_prefill(self) -> bool:
        """Whether decode can do without prefill."""

    @property
    def keeps(self) -> bool:
        """Whether prefill, once it has answered, keeps the KV until decode has it."""

    @property
    def owed(self) -> bool:
        """Whether a decode that waits for KV keeps its blocks until the KV comes, whoever hangs up."""

    def meeting(self, ask: Ask, prefill: Host, name: str) -> Mapping[str, Any] | None:
        """What decode is told, so that both legs of one try meet; `name` is that of the try alone. None: prefill has to come first."""

    def prefill_body(self, ask: Ask, meeting: Mapping[str, Any]) -> bytes:
        """The body of the leg to prefill; `meeting` is empty where it comes first."""

    def is_all(self, reply: Mapping[str, Any]) -> bool:
        """Whether prefill has said all that there is to say, so that nothing is left for decode."""

    def handed(self, ask: Ask, reply: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What prefill's answer adds to decode's body; None when there is no KV to fetch."""


def usable(params: object) -> dict[str, Any] | None:
    """Prefill's parameters, if a decode can use them; None when there is nothing to fetch.

    An engine that is given half of them waits for ever, and vLLM's core dies when the client then leaves.
    """
    if not isinstance(params, dict):
        return None
    get = params.get
    blocks = get("remote_block_ids")
    if not isinstance(blocks, list) or not any(blocks):
        return None
    if not (get("remote_engine_id") and get("remote_request_id") and get("remote_host") and get("remote_port")):
        return None
    return params


class Nixl:
    """vLLM's NixlConnector, pulled by decode. The simulated engine and whoever serves DeepInfer speak it too."""

    concurrent = False
    local_prefill = True
    keeps = True
    owed = False

    def meeting(self, ask: Ask, prefill: Host, name: str) -> Mapping[str, Any] | None:
        return None

    def prefill_body(self, ask: Ask, meeting: Mapping[str, Any]) -> bytes:
        return openai.prefill_body(ask)

    def is_all(self, reply: Mapping[str, Any]) -> bool:
        return False

    def handed(self, ask: Ask, reply: Mapping[str, Any]) -> Mapping[str, Any] | None:
        params = usable(reply.get("kv_transfer_params"))
        return None if params is None else {"kv_transfer_params": params}


class NixlPush(Nixl):
    """vLLM's NixlPushConnector: decode tells prefill its blocks, and prefill writes them when it has computed them.

    They find each other by the request's id alone, so each try has one of its own. Where the router does not know prefill's KV
    identity (one for each data-parallel rank, or one made up by vLLM), prefill goes first and says it.
    """

    concurrent = True
    owed = True

    def meeting(self, ask: Ask, prefill: Host, name: str) -> Mapping[str, Any] | None:
        if not (prefill.engine_id and prefill.tensor_parallel):
            return None
        host, port = prefill.address
        params = {"do_remote_decode": False, "do_remote_prefill": True, "remote_engine_id": prefill.engine_id, "remote_request_id": name}
        params |= {"remote_host": host, "remote_port": port + SIDE_CHANNEL, "tp_size": prefill.tensor_parallel, "pp_size": 1}
        return {"kv_transfer_params": params}


class Mooncake(Nixl):
    """vLLM's MooncakeConnector: decode asks prefill's bootstrap server for its workers, and they write when they have computed."""

    concurrent = True
    owed = True

    def meeting(self, ask: Ask, prefill: Host, name: str) -> Mapping[str, Any] | None:
        host, port = prefill.address
        server = f"http://{f'[{host}]' if ':' in host else host}:{port + SIDE_CHANNEL}"
        params = {"do_remote_decode": False, "do_remote_prefill": True, "transfer_id": f"xfer-{name}"}
        return {"kv_transfer_params": params | {"remote_engine_id": prefill.engine_id, "remote_bootstrap_addr": server}}

    def prefill_body(self, ask: Ask, meeting: Mapping[str, Any]) -> bytes:
        return openai.transfer_body(ask, meeting["kv_transfer_params"]["transfer_id"])


class Bootstrap:
    """SGLang's: prefill's bootstrap server, and a room there. A decode without a room answers 400, so it never works alone."""

    concurrent = True
    local_prefill = False
    keeps = False
    owed = False

    def meeting(self, ask: Ask, prefill: Host, name: str) -> Mapping[str, Any] | None:
        host, port = prefill.address[0], prefill.address[1] + SIDE_CHANNEL
        room = random.getrandbits(_ROOM_BITS - _SAMPLES_BITS) << _SAMPLES_BITS
        count = ask.prompts
        if count == 1:
            return {"bootstrap_host": host, "bootstrap_port": port, "bootstrap_room": room}
        rooms = [room + index for index in range(count)]
        return {"bootstrap_host": [host] * count, "bootstrap_port": [port] * count, "bootstrap_room": rooms}

    def prefill_body(self, ask: Ask, meeting: Mapping[str, Any]) -> bytes:
        return openai.unstreamed_body(ask, meeting)

    def is_all(self, reply: Mapping[str, Any]) -> bool:
        return False

    def handed(self, ask: Ask, reply: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return None


class ContextFirst:
    """TensorRT-LLM's: the context server answers with the first token, the prompt's token ids and where the KV is.

    An answer that ends there (a stop word as its first token) is the whole one.
    """

    concurrent = False
    local_prefill = True
    keeps = True
    owed = False

    def meeting(self, ask: Ask, prefill: Host, name: str) -> Mapping[str, Any] | None:
        return None

    def prefill_body(self, ask: Ask, meeting: Mapping[str, Any]) -> bytes:
        number = _LEAST_REQUEST_ID + random.getrandbits(62)
        params = {"request_type": "context_only", "disagg_request_id": number, "schedule_style": 0}
        return openai.unstreamed_body(ask, {"disaggregated_params": params})

    def is_all(self, reply: Mapping[str, Any]) -> bool:
        choice = _only_choice(reply)
        return choice is not None and choice.get("finish_reason") not in _GOES_ON

    def handed(self, ask: Ask, reply: Mapping[str, Any]) -> Mapping[str, Any] | None:
        params, ids = (_only_choice(reply) or {}).get("disaggregated_params"), reply.get("prompt_token_ids")
        if not isinstance(params, dict) or not isinstance(ids, list) or any(type(params.get(name)) is not int for name in _REQUEST_IDS):
            return None
        told: dict[str, Any] = {"disaggregated_params": params | {"request_type": "generation_only"}}
        told["prompt_token_ids" if ask.chat else "prompt"] = ids
        return told | ({"ctx_usage": reply["usage"]} if "usage" in reply else {})


def _only_choice(reply: Mapping[str, Any]) -> dict[str, Any] | None:
    choices = reply.get("choices")
    return choices[0] if isinstance(choices, list) and len(choices) == 1 and isinstance(choices[0], dict) else None


NIXL = Nixl()
WIRES: Mapping[str, Wire] = {
    "vllm-nixl": NIXL,
    "vllm-nixl-push": NixlPush(),
    "vllm-mooncake": Mooncake(),
    "sglang-bootstrap": Bootstrap(),
    "trtllm-context-first": ContextFirst(),
}
