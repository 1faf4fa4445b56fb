"""What the router reads and changes of OpenAI requests and answers: as little as possible, and never the text itself."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from denvweb.core.errors import InvalidError

GENERATE_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})

_ADDRESS = re.compile(r"(?:https?://)?(?:\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-fA-F:]+\]|localhost)(?::\d+)?[^\s\"']*|https?://[^\s\"']+")
_REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@dataclass(slots=True)
class Ask:
    """A generation request: its parsed body, and the bytes that came."""

    path: str
    body: bytes
    fields: dict[str, Any]
    model: str
    stream: bool
    wants_usage: bool  # the client itself asked for the usage chunk of its stream
    samples: int
    prompt: bytes  # rendered: what the prefix index hashes
    exact_tokens: int | None  # known when the client sent token ids


def parse(path: str, body: bytes) -> Ask:
    """Read a request body; InvalidError says what is wrong with it."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidError(f"the request body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(fields, dict):
        raise InvalidError("the request body must be a JSON object", code="invalid_json")
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidError("`model` must name a model", code="model_missing")
    options = fields.get("stream_options")
    prompt, exact = _chat_prompt(fields) if path == "/v1/chat/completions" else _plain_prompt(fields)
    samples = max(_positive(fields.get("n")), _positive(fields.get("best_of")))
    if exact is None and isinstance(fields.get("prompt"), list):
        samples = max(samples, len(fields["prompt"]))  # a batch of prompts is several sequences too
    return Ask(
        path=path,
        body=body,
        fields=fields,
        model=model,
        stream=fields.get("stream") is True,
        wants_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        samples=samples,
        prompt=prompt,
        exact_tokens=exact,
    )


def _positive(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def _chat_prompt(fields: dict[str, Any]) -> tuple[bytes, int | None]:
    messages = fields.get("messages")
    if not isinstance(messages, list):
        raise InvalidError("`messages` must be a list", code="messages_missing")
    parts: list[str] = []
    for message in messages:
        if not isinstance(message, dict):
            raise InvalidError("each of `messages` must be an object", code="messages_invalid")
        parts.append(str(message.get("role", "")))
        parts.append(_text(message.get("content")))
        if message.get("tool_calls"):
            parts.append(orjson.dumps(message["tool_calls"]).decode())
    head = orjson.dumps(fields["tools"]) if fields.get("tools") else b""
    return head + "\n".join(parts).encode("utf-8", "surrogatepass"), None


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_text(part.get("text") or part.get("image_url") or "") for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def _plain_prompt(fields: dict[str, Any]) -> tuple[bytes, int | None]:
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return prompt.encode("utf-8", "surrogatepass"), None
    if isinstance(prompt, list) and prompt:
        if all(type(token) is int and 0 <= token < 2**32 for token in prompt):
            return array("I", prompt).tobytes(), len(prompt)
        if isinstance(prompt[0], (str, list)):
            return "\n".join(part if isinstance(part, str) else str(part) for part in prompt).encode("utf-8", "surrogatepass"), None
    raise InvalidError("`prompt` must be a text or a list of token ids", code="prompt_missing")


def engine_body(ask: Ask, kv_transfer_params: Mapping[str, Any] | None) -> bytes:
    """The body of the leg that answers: the client's bytes, and what is added before its last brace.

    A client's own `kv_transfer_params` would let it point an engine at any address, so they are taken out.
    """
    extra: dict[str, Any] = {}
    if ask.stream and not ask.wants_usage:
        extra["stream_options"] = {**(ask.fields.get("stream_options") or {}), "include_usage": True}
    if kv_transfer_params is not None:
        extra["kv_transfer_params"] = kv_transfer_params
    if "kv_transfer_params" in ask.fields or ("stream_options" in extra and "stream_options" in ask.fields):
        kept = {name: value for name, value in ask.fields.items() if name != "kv_transfer_params"}
        return orjson.dumps({**kept, **extra})
    if not extra:
        return ask.body
    return ask.body.rstrip()[:-1] + b"," + orjson.dumps(extra)[1:]


def prefill_body(ask: Ask) -> bytes:
    """The body of a vLLM NIXL prefill leg: one token, not streamed, KV kept for a decode to come."""
    fields = {name: value for name, value in ask.fields.items() if name not in ("stream_options", "min_tokens")}
    fields["stream"] = False
    fields["max_tokens"] = 1
    if "max_completion_tokens" in fields:
        fields["max_completion_tokens"] = 1
    fields["kv_transfer_params"] = _REMOTE_DECODE
    return orjson.dumps(fields)


def release_body(ask: Ask, kv_transfer_params: Mapping[str, Any]) -> bytes:
    """A decode leg that nobody reads, for a client that left after prefill: it makes decode free the KV."""
    fields = {name: value for name, value in ask.fields.items() if name not in ("stream_options", "min_tokens")}
    fields["stream"] = False
    fields["max_tokens"] = 1
    if "max_completion_tokens" in fields:
        fields["max_completion_tokens"] = 1
    fields["kv_transfer_params"] = kv_transfer_params
    return orjson.dumps(fields)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; `cached` is how many prompt tokens needed no computing, None when the engine does not say."""

    prompt: int
    completion: int
    cached: int | None


def usage_of(answer: Mapping[str, Any]) -> Usage | None:
    """The usage of an answer or of a usage chunk."""
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(
        prompt=int(usage.get("prompt_tokens") or 0),
        completion=int(usage.get("completion_tokens") or 0),
        cached=int(cached) if isinstance(cached, int) else None,
    )


def json_object(data: bytes) -> dict[str, Any] | None:
    """The JSON object in `data`; None when there is none."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def error_body(message: str, *, kind: str, code: str, param: str | None = None) -> bytes:
    """OpenAI's error object."""
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def without_addresses(text: str) -> str:
    """An engine's message as a client may read it: engines' addresses are ours alone."""
    return _ADDRESS.sub("(engine)", text)


def engine_message(body: bytes) -> str:
    """The sentence in an engine's error body, fit for a client; empty when there is none."""
    answer = json_object(body)
    if answer is None:
        return ""
    inner = answer.get("error")
    message = inner.get("message") if isinstance(inner, dict) else answer.get("message") or answer.get("detail") or inner
    return without_addresses(message)[:2000] if isinstance(message, str) else ""
