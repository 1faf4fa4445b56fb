"""What denv relies on in an engine that speaks vLLM's protocol, as assertions at its socket.

The same functions run against the simulated engine in the normal suite and against vLLM itself in the vLLM lane, so that neither can
drift from the other unseen. Each takes a `Trio`: one aggregated engine, one prefill, one decode, of one model.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx

from tests.integration.engine_peers import CHAT, COMPLETIONS, KEEP, Peer, Trio, until

MESSAGES = [{"role": "user", "content": "Hello world, how are you today? " * 8}]
USAGE = {"prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details"}
DETAILS = {"cached_tokens", "created_cache_tokens", "multimodal_tokens"}
CHOICE = {"index", "logprobs", "finish_reason", "stop_reason", "token_ids", "routed_experts"}
ANSWER = {"id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage"}
ANSWER |= {"kv_transfer_params", "ec_transfer_params", "metrics"}
PARAMS: dict[str, type | tuple[type, ...]] = {
    "do_remote_prefill": bool,
    "do_remote_decode": bool,
    "remote_block_ids": list,
    "remote_engine_id": str,
    "remote_request_id": str,
    "remote_host": str,
    "remote_port": int,
    "tp_size": int,
    "dcp_size": int,
    "pp_size": int,
    "remote_num_tokens": int,
    "remote_blocks_expiry_time": (float, type(None)),
    "transfer_mode": str,
    "remote_prefill_cached_tokens": int,
}


# ---- answers ----


def completion_body(trio: Trio) -> None:
    answer = trio.whole.post(COMPLETIONS, {"prompt": "Hello", "max_tokens": 3, "ignore_eos": True}, **{"X-Request-Id": "contract-1"})
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) == ANSWER
    assert (body["id"], body["object"], body["model"]) == ("cmpl-contract-1", "text_completion", trio.whole.model)
    assert set(body["choices"][0]) == CHOICE | {"text", "prompt_logprobs", "prompt_token_ids"}
    assert (body["choices"][0]["finish_reason"], body["choices"][0]["token_ids"]) == ("length", None)
    assert set(body["usage"]) == USAGE | {"completion_tokens_details"}
    assert set(body["usage"]["prompt_tokens_details"]) == DETAILS
    assert body["usage"]["completion_tokens"] == 3
    assert body["usage"]["total_tokens"] == 3 + body["usage"]["prompt_tokens"]


def token_ids_when_asked(trio: Trio) -> None:
    prompt = trio.fresh(50, 1)
    body = {"prompt": prompt, "max_tokens": 4, "ignore_eos": True, "return_token_ids": True, "temperature": 0}
    (choice,) = trio.whole.post(COMPLETIONS, body).json()["choices"]
    assert choice["prompt_token_ids"] == prompt
    assert len(choice["token_ids"]) == 4
    frames = trio.whole.frames(COMPLETIONS, body)
    assert frames[0]["choices"][0]["prompt_token_ids"] == prompt
    assert [token for frame in frames for token in frame["choices"][0]["token_ids"]] == choice["token_ids"]
    chat = trio.whole.frames(CHAT, {"messages": MESSAGES, "max_tokens": 3, "ignore_eos": True, "return_token_ids": True})
    assert len(chat[0]["prompt_token_ids"]) > 10
    assert sum(len(frame["choices"][0]["token_ids"]) for frame in chat[1:]) == 3


def chat_body(trio: Trio) -> None:
    answer = trio.whole.post(CHAT, {"messages": MESSAGES, "max_tokens": 3, "ignore_eos": True}, **{"X-Request-Id": "contract-2"})
    body = answer.json()
    assert set(body) == ANSWER | {"prompt_logprobs", "prompt_token_ids", "prompt_text"}
    assert (body["id"], body["object"]) == ("chatcmpl-contract-2", "chat.completion")
    assert set(body["choices"][0]) == CHOICE | {"message"}
    message = body["choices"][0]["message"]
    assert set(message) == {"role", "content", "refusal", "annotations", "audio", "function_call", "reasoning"}
    assert message["role"] == "assistant"


def ends_once(frames: list[dict[str, Any]], tokens: int) -> None:
    """A frame for each token, or fewer where a busy engine puts several into one; the last says why it ended."""
    reasons = [frame["choices"][0]["finish_reason"] for frame in frames]
    assert 1 <= len(frames) <= tokens
    assert reasons == [None] * (len(frames) - 1) + ["length"]


def completion_frames(trio: Trio) -> None:
    body = {"prompt": "Hello", "max_tokens": 3, "ignore_eos": True}
    frames = trio.whole.frames(COMPLETIONS, body)
    head = {"id", "object", "created", "model", "choices"}
    assert {*map(frozenset, frames[:-1])} <= {frozenset(head)}
    assert set(frames[-1]) == head | {"system_fingerprint"}
    for frame in frames:
        choice = {"index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids"}
        assert set(frame["choices"][0]) == choice
    ends_once(frames, 3)
    *told, usage = trio.whole.frames(COMPLETIONS, body | {"stream_options": {"include_usage": True}})
    assert {*map(frozenset, told)} == {frozenset(head)}
    assert set(usage) == head | {"usage", "system_fingerprint"}
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3


def chat_frames(trio: Trio) -> None:
    body = {"messages": MESSAGES, "max_tokens": 3, "ignore_eos": True, "stream_options": {"include_usage": True}}
    role, *said, usage = trio.whole.frames(CHAT, body)
    assert set(role) == {"id", "object", "created", "model", "choices", "prompt_token_ids", "prompt_text"}
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert set(role["choices"][0]) == {"index", "delta", "logprobs", "finish_reason"}
    assert all(set(frame["choices"][0]["delta"]) == {"content"} for frame in said)
    ends_once(said, 3)
    assert ["stop_reason" in frame["choices"][0] for frame in said] == [False] * (len(said) - 1) + [True]
    assert set(usage["usage"]) == USAGE
    assert {"cached_tokens"} <= set(usage["usage"]["prompt_tokens_details"]) <= DETAILS  # in a stream vLLM leaves out what is null
    assert usage["usage"]["completion_tokens"] == 3


def several_choices(trio: Trio) -> None:
    """Every choice says its role before any says a word."""
    frames = trio.whole.frames(CHAT, {"messages": MESSAGES, "max_tokens": 2, "ignore_eos": True, "n": 2, "temperature": 0.7})
    assert [frame["choices"][0]["index"] for frame in frames[:2]] == [0, 1]
    assert all("role" in frame["choices"][0]["delta"] for frame in frames[:2])
    body = trio.whole.post(COMPLETIONS, {"prompt": [[9] * 5, [10] * 6], "max_tokens": 2, "ignore_eos": True}).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (11, 4)


def an_answer_is_cut_at_the_context(trio: Trio) -> None:
    body = {"prompt": trio.fresh(trio.context - 40, 2), "max_tokens": 500, "ignore_eos": True}
    answer = trio.whole.post(COMPLETIONS, body).json()
    assert answer["usage"]["completion_tokens"] == 40
    assert answer["choices"][0]["finish_reason"] == "length"


# ---- refusals ----


def errors(trio: Trio) -> None:
    """Status, type and param of OpenAI's error object; the sentences are each engine's own."""
    bad, invalid = "BadRequestError", "Bad Request"
    cases: list[tuple[str, dict[str, Any], tuple[int, str, str | None]]] = [
        (COMPLETIONS, {"model": "nobody", "prompt": "a"}, (404, "NotFoundError", "model")),
        (COMPLETIONS, {}, (400, bad, "prompt")),
        (COMPLETIONS, {"prompt": ""}, (400, bad, "prompt")),
        (COMPLETIONS, {"prompt": 5}, (400, invalid, "body.prompt")),
        (COMPLETIONS, {"prompt": [9] * (trio.context + 100), "max_tokens": 5}, (400, bad, "input_tokens")),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, (400, bad, "max_tokens")),
        (COMPLETIONS, {"prompt": "a", "max_tokens": "x"}, (400, invalid, "body.max_tokens")),
        (COMPLETIONS, {"prompt": "a", "n": 0}, (400, bad, None)),
        (COMPLETIONS, {"prompt": "a", "n": "x"}, (400, invalid, "body.n")),
        (COMPLETIONS, {"prompt": "a", "n": 2, "temperature": 0}, (400, bad, None)),
        (COMPLETIONS, {"prompt": "a", "temperature": -1}, (400, bad, "temperature")),
        (COMPLETIONS, {"prompt": "a", "stop": ["a"] * 20}, (400, invalid, "body.stop")),
        (COMPLETIONS, {"prompt": "a", "stream_options": {"include_usage": True}}, (400, bad, "stream_options")),
        (CHAT, {}, (400, invalid, "body.messages")),
        (CHAT, {"messages": "x"}, (400, invalid, "body.messages")),
        (CHAT, {"messages": []}, (400, bad, None)),
    ]
    for path, body, expected in cases:
        answer = trio.whole.post(path, body)
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}, body
        assert (answer.status_code, error["type"], error["param"]) == expected, body
        assert error["code"] == answer.status_code


def bodies_that_are_no_json(trio: Trio) -> None:
    head = {"content-type": "application/json"}
    for content, param in ((b"{nope", "body.1"), (b"[1]", "body")):
        answer = httpx.post(trio.whole.url + COMPLETIONS, content=content, headers=head, timeout=10)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["param"]) == (400, "Bad Request", param), error


def paths_that_are_not_there(trio: Trio) -> None:
    for path in ("/nope", "/v1/nope"):
        assert (trio.whole.get(path).status_code, trio.whole.get(path).json()) == (404, {"detail": "Not Found"})
    answer = trio.whole.get(COMPLETIONS)
    assert (answer.status_code, answer.json(), answer.headers["allow"]) == (405, {"detail": "Method Not Allowed"}, "POST")


# ---- pages ----


def pages(trio: Trio) -> None:
    health = trio.whole.get("/health")
    assert (health.status_code, health.content) == (200, b"")
    assert "version" in trio.whole.get("/version").json()
    listed = trio.whole.get("/v1/models").json()
    (card,) = listed["data"]
    assert (listed["object"], card["id"], card["object"], card["max_model_len"]) == ("list", trio.whole.model, "model", trio.context)
    assert set(card) == {"id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"}
    assert card["permission"][0]["object"] == "model_permission"


def metric_names_and_types(trio: Trio) -> None:
    """Every metric that denv's engines have in common, under the name, the type and the labels that vLLM gives it."""
    for peer in (trio.whole, trio.prefill, trio.decode):
        page = peer.get("/metrics")
        assert page.headers["content-type"].startswith("text/plain; version=")
        types = dict(line.split(" ")[2:4] for line in page.text.splitlines() if line.startswith("# TYPE vllm:"))
        absent = {trio.whole: ("nixl", "kv_fetch"), trio.prefill: ("kv_fetch",)}.get(peer, ())  # what has no meaning there
        known = {name: kind for name, kind in trio.metric_types.items() if not any(word in name for word in absent)}
        assert {name: types.get(name) for name in known} == known
        sample = next(line for line in page.text.splitlines() if line.startswith("vllm:num_requests_running{"))
        assert sample.startswith(f'vllm:num_requests_running{{engine="0",model_name="{peer.model}"}} ')


def counters_count(trio: Trio) -> None:
    before = {name: trio.whole.metric(name) for name in ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")}
    trio.whole.post(COMPLETIONS, {"prompt": trio.fresh(70, 3), "max_tokens": 5, "ignore_eos": True})
    until(lambda: trio.whole.metric("vllm:prompt_tokens_total") - before["vllm:prompt_tokens_total"] == 70, 5, "70 prompt tokens")
    assert trio.whole.metric("vllm:generation_tokens_total") - before["vllm:generation_tokens_total"] == 5


# ---- KV ----


def handover(trio: Trio) -> None:
    """Prefill's parameters, given to decode word for word, make it say what one engine says; the KV comes from there."""
    prompt = trio.fresh(150, 4)
    reply = trio.kept(prompt, **{"X-Request-Id": "contract-3"})
    params = reply["kv_transfer_params"]
    assert {name: isinstance(params[name], kind) for name, kind in PARAMS.items()} == dict.fromkeys(PARAMS, True), params
    assert (params["do_remote_prefill"], params["do_remote_decode"], params["transfer_mode"]) == (True, False, "pull")
    assert (params["remote_num_tokens"], len(params["remote_block_ids"])) == (150, 1)
    assert params["remote_request_id"].startswith("cmpl-contract-3-0-")
    assert (reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]) == (1, "length")
    moved = trio.decode.metric("vllm:nixl_bytes_transferred_sum")
    body = {"prompt": prompt, "max_tokens": 12, "ignore_eos": True, "temperature": 0}
    answer = trio.decode.post(COMPLETIONS, body | {"kv_transfer_params": params}, **{"X-Request-Id": "contract-3"}).json()
    alone = trio.whole.post(COMPLETIONS, body).json()
    assert answer["choices"][0]["text"] == alone["choices"][0]["text"]
    assert answer["kv_transfer_params"] is None
    assert answer["usage"]["prompt_tokens"] == 150
    until(lambda: trio.decode.metric("vllm:nixl_bytes_transferred_sum") > moved, 15, "bytes of KV are counted")
    until(lambda: trio.prefill.idle() and trio.decode.idle(), 5, "both let go of the KV")


def chat_handover_names_its_request(trio: Trio) -> None:
    body = {"messages": MESSAGES, "max_tokens": 1, "stream": False, "kv_transfer_params": KEEP}
    reply = trio.prefill.post(CHAT, body, **{"X-Request-Id": "contract-4"}).json()
    params = reply["kv_transfer_params"]
    assert params["remote_request_id"].startswith("chatcmpl-contract-4-")
    frames = trio.decode.frames(CHAT, {"messages": MESSAGES, "max_tokens": 3, "ignore_eos": True, "kv_transfer_params": params})
    ends_once(frames[1:], 3)


def decode_alone_computes_it_itself(trio: Trio) -> None:
    body = {"prompt": trio.fresh(90, 5), "max_tokens": 6, "ignore_eos": True, "temperature": 0}
    assert (
        trio.decode.post(COMPLETIONS, body).json()["choices"][0]["text"] == trio.whole.post(COMPLETIONS, body).json()["choices"][0]["text"]
    )


def kv_that_does_not_come(trio: Trio) -> None:
    """The head of a stream goes out before the KV is on board, so a failure comes as an event in a stream that began well."""
    prompt = trio.fresh(80, 6)
    params = trio.kept(prompt)["kv_transfer_params"] | {"remote_engine_id": "nobody", "remote_port": 1}
    body = {"prompt": prompt, "max_tokens": 5, "kv_transfer_params": params}
    frames = trio.decode.frames(COMPLETIONS, body)
    assert set(frames[-1]) == {"error"}
    assert (set(frames[-1]["error"]), frames[-1]["error"]["code"]) == ({"message", "type", "param", "code"}, 500)
    answer = trio.decode.post(COMPLETIONS, body | {"prompt": trio.fresh(80, 7)})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (500, "InternalServerError", 500)
    assert trio.decode.get("/health").status_code == 200
    until(lambda: trio.decode.metric("vllm:nixl_num_failed_transfers_total") > 0, 15, "failed transfers are counted")


def a_client_that_leaves_a_stream(trio: Trio) -> None:
    """The engine stops computing and lets go of the KV."""
    body = {"model": trio.whole.model, "prompt": trio.fresh(100, 8), "max_tokens": 3000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", trio.whole.url + COMPLETIONS, json=body, timeout=10) as answer:
        assert next(answer.iter_lines()).startswith("data: {")
    until(trio.whole.idle, 5, "idle")


def a_client_that_leaves_before_the_first_byte(trio: Trio) -> None:
    """Decode lets go of its own blocks, and of prefill's, which it has promised to fetch."""
    prompt = trio.fresh(1500, 9)
    body = {"model": trio.decode.model, "prompt": prompt, "max_tokens": 500, "kv_transfer_params": trio.kept(prompt)["kv_transfer_params"]}
    content = json.dumps(body).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    host, _, port = trio.decode.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as client:
        client.sendall(head.encode() + content)
    until(lambda: trio.decode.idle() and trio.prefill.idle(), trio.lease_s + 5, "both let go of the KV")


def a_client_that_leaves_during_prefill(trio: Trio) -> None:
    body = {"model": trio.prefill.model, "prompt": trio.fresh(3500, 10), "max_tokens": 1, "kv_transfer_params": KEEP}
    with suppress(httpx.ReadTimeout):
        httpx.post(trio.prefill.url + COMPLETIONS, json=body, timeout=httpx.Timeout(5, read=0.005))
    until(trio.prefill.idle, trio.lease_s + 5, "idle")


def blocks_that_are_not_there(trio: Trio) -> None:
    """The transfer fails, and the engine lives."""
    prompt = trio.fresh(80, 11)
    params = trio.kept(prompt)["kv_transfer_params"] | {"remote_block_ids": [[10**6] * 3]}
    assert trio.decode.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 2, "kv_transfer_params": params}).status_code == 500
    decode_alone_computes_it_itself(trio)


def nobody_to_fetch_from(trio: Trio) -> None:
    """Another engine at that address, or a host that no one knows: the request fails after some seconds, and the engine lives."""
    for seed, wrong in enumerate(({"remote_engine_id": "somebody-else"}, {"remote_engine_id": "nobody", "remote_host": "host.invalid"})):
        prompt = trio.fresh(80, 30 + seed)
        params = trio.kept(prompt)["kv_transfer_params"] | wrong
        assert trio.decode.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 2, "kv_transfer_params": params}).status_code == 500
        assert trio.decode.get("/health").status_code == 200


def a_request_of_another_name(trio: Trio) -> None:
    """The KV comes, for only its blocks are looked at; but prefill is not told that it may let go of it before the lease is over."""
    prompt = trio.fresh(120, 12)
    params = trio.kept(prompt)["kv_transfer_params"] | {"remote_request_id": "cmpl-somebody-0-00000000"}
    body = {"prompt": prompt, "max_tokens": 8, "ignore_eos": True, "temperature": 0}
    answer = trio.decode.post(COMPLETIONS, body | {"kv_transfer_params": params}).json()
    assert answer["choices"][0]["text"] == trio.whole.post(COMPLETIONS, body).json()["choices"][0]["text"]
    assert trio.prefill.metric("vllm:kv_cache_usage_perc") > 0
    until(trio.prefill.idle, trio.lease_s + 5, "the lease is over")


def a_handover_is_believed_twice(trio: Trio) -> None:
    """It gives the first prompt's KV to another prompt: no error, and a wrong text. Why a router must use it once."""
    first, second = trio.fresh(150, 13), trio.fresh(150, 14)
    params = trio.kept(first)["kv_transfer_params"]
    body = {"max_tokens": 12, "ignore_eos": True, "temperature": 0}
    for prompt in (first, second):
        answer = trio.decode.post(COMPLETIONS, body | {"prompt": prompt, "kv_transfer_params": dict(params)})
        alone = trio.whole.post(COMPLETIONS, body | {"prompt": prompt}).json()["choices"][0]["text"]
        assert (answer.status_code, answer.json()["choices"][0]["text"] == alone) == (200, prompt is first)


def kv_is_fetched_after_its_lease_without_a_sign(trio: Trio) -> None:
    """Prefill frees it and counts it; decode reads what lies there and says 200. Why a router must know the time."""
    prompt = trio.fresh(120, 15)
    until(trio.prefill.idle, trio.lease_s + 5, "earlier leases are over")
    before = trio.prefill.metric("vllm:nixl_num_kv_expired_reqs_total")
    params = trio.kept(prompt)["kv_transfer_params"]
    assert trio.prefill.metric("vllm:kv_cache_usage_perc") > 0
    kept_s = -time.monotonic()
    until(trio.prefill.idle, trio.lease_s + 5, "the lease is over")
    assert kept_s + time.monotonic() > trio.lease_s * 0.8
    until(lambda: trio.prefill.metric("vllm:nixl_num_kv_expired_reqs_total") > before, 15, "it is counted")
    failed = trio.decode.metric("vllm:nixl_num_failed_transfers_total")
    answer = trio.decode.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 2, "kv_transfer_params": params})
    assert (answer.status_code, trio.decode.metric("vllm:nixl_num_failed_transfers_total")) == (200, failed)
    until(lambda: trio.prefill.metric("vllm:nixl_num_notifications_after_expiry_total") > 0, 15, "prefill hears of it too late")


# ---- what an engine does not survive: each takes a decode and the id of its process ----


def dead(peer: Peer) -> bool:
    try:
        return peer.get("/health").status_code != 200
    except httpx.TransportError:
        return True


def half_a_handover_kills(trio: Trio, pid: int) -> None:
    """It waits for ever, and when its client leaves the engine ends."""
    prompt = trio.fresh(80, 16)
    params = {name: value for name, value in trio.kept(prompt)["kv_transfer_params"].items() if name != "remote_engine_id"}
    body = {"model": trio.decode.model, "prompt": prompt, "max_tokens": 2, "kv_transfer_params": params}
    try:
        answer = httpx.post(trio.decode.url + COMPLETIONS, json=body, timeout=1)
        raise AssertionError(f"it answered {answer.status_code}")
    except httpx.ReadTimeout:
        until(lambda: dead(trio.decode), 20, "it ends")


def too_few_blocks_kill(trio: Trio, pid: int) -> None:
    prompt = trio.fresh(80, 17)
    params = trio.kept(prompt)["kv_transfer_params"]
    params["remote_block_ids"] = [params["remote_block_ids"][0][:1]]
    answer = trio.decode.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 2, "kv_transfer_params": params})
    assert answer.status_code == 500
    until(lambda: dead(trio.decode), 20, "it ends")


def sigterm_lets_a_stream_end(trio: Trio, pid: int) -> None:
    """With the shutdown timeout that denv gives it. New requests are refused meanwhile, in whatever way."""
    body = {"model": trio.decode.model, "prompt": trio.fresh(40, 18), "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", trio.decode.url + COMPLETIONS, json=body, timeout=30) as answer:
        lines = answer.iter_lines()
        next(lines)
        os.kill(pid, signal.SIGTERM)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    until(lambda: dead(trio.decode), 20, "it ends")


FATAL: tuple[Callable[[Trio, int], None], ...] = (half_a_handover_kills, too_few_blocks_kill, sigterm_lets_a_stream_end)
CONTRACT: tuple[Callable[[Trio], None], ...] = (
    completion_body,
    token_ids_when_asked,
    chat_body,
    completion_frames,
    chat_frames,
    several_choices,
    an_answer_is_cut_at_the_context,
    errors,
    bodies_that_are_no_json,
    paths_that_are_not_there,
    pages,
    metric_names_and_types,
    counters_count,
    handover,
    chat_handover_names_its_request,
    decode_alone_computes_it_itself,
    a_client_that_leaves_a_stream,
    a_client_that_leaves_before_the_first_byte,
    a_client_that_leaves_during_prefill,
    kv_that_does_not_come,
    blocks_that_are_not_there,
    nobody_to_fetch_from,
    a_request_of_another_name,
    a_handover_is_believed_twice,
    kv_is_fetched_after_its_lease_without_a_sign,
)
