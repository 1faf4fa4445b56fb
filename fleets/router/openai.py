"""What the router reads and changes of OpenAI requests and answers: as little as possible, and never the text itself."""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from denvweb.core.errors import InvalidError

EMBEDDINGS_PATH = "/v1/embeddings"  # these two are of aggregated pools alone: there is nothing to hand over
RESPONSES_PATH = "/v1/responses"
GENERATE_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", EMBEDDINGS_PATH, RESPONSES_PATH})
# What engines would have to keep for a next request, and each for itself. Its cure is the same for all.
NOT_STORED = "answers are not stored here, for any engine may get the next request: send the whole conversation in `input`"

# About a thousand tokens, by four bytes a token.
MEDIA_DIGEST_BYTES, MEDIA_REPEATS = 32, 64

_ADDRESS = re.compile(r"(?:https?://)?(?:\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-fA-F:]+\]|localhost)(?::\d+)?[^\s\"']*|https?://[^\s\"']+")
# What only a router may say: a client's own would let it point an engine at any address, or at another's KV.
_ROUTERS_OWN = frozenset({"kv_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room", "disaggregated_params"})
_REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


class Ask:
    """A generation request: its parsed body, and the bytes that came. The prompt is rendered when it is looked at."""

    __slots__ = (
        "_prompt", "adapted", "body", "chat", "exact_tokens", "fields", "model", "prompts", "reads_prompt", "responds", "samples", "stream",
        "wants_usage", "whole",
    )  # fmt: skip

    def __init__(self, body: bytes, fields: dict[str, Any], model: str, *, chat: bool) -> None:
        self.body = body
        self.fields = fields
        self.model = model
        self.chat = chat
        self.adapted = False  # it names another model than the stage's own: the same text has other KV there
        self.whole = False  # for an aggregated pool alone
        self.responds = False  # in the shapes of `/v1/responses`
        self.exact_tokens: int | None = None  # known when the client sent token ids
        self.prompts = 1  # of a batch
        self.samples = 1
        self.reads_prompt = False  # for the log-probabilities of the prompt, which no KV tells
        self._prompt: bytes | None = None
        self.stream = fields.get("stream") is True
        options = fields.get("stream_options")
        self.wants_usage = options is not None and isinstance(options, dict) and bool(options.get("include_usage"))  # for the client

    @property
    def prompt(self) -> bytes:
        """Rendered: what the prefix index hashes."""
        if self._prompt is None:
            render = _chat_prompt if self.chat else _responses_prompt if self.responds else _plain_prompt
            prompt = render(self.fields)
            self._prompt = b"%b\n%b" % (self.model.encode("utf-8", "surrogatepass"), prompt) if self.adapted else prompt
        return self._prompt


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
    chat = path == "/v1/chat/completions"
    ask = Ask(body, fields, model, chat=chat)
    if chat:
        _check_messages(fields.get("messages"))
    elif path == EMBEDDINGS_PATH:
        ask.whole, ask.stream = True, False
        _check_prompt(ask, fields.get("input"), "input")
    elif path == RESPONSES_PATH:
        ask.whole = ask.responds = ask.wants_usage = True  # its last event has the usage anyhow
        _check_responses(fields)
    else:
        _check_prompt(ask, fields.get("prompt"), "prompt")
    if "n" in fields or "best_of" in fields:
        ask.samples = max(ask.samples, _positive(fields.get("n")), _positive(fields.get("best_of")))
    if "prompt_logprobs" in fields or "echo" in fields:
        ask.reads_prompt = fields.get("prompt_logprobs") is not None or bool(fields.get("echo") and fields.get("logprobs"))
    return ask


def _written(value: object) -> bytes:
    """As JSON; InvalidError for what a client nested so deeply that it can be read and not written."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        raise InvalidError("the request body is nested too deeply", code="invalid_json") from error


def _check_messages(messages: object) -> None:
    if not isinstance(messages, list):
        raise InvalidError("`messages` must be a list", code="messages_missing")
    for message in messages:
        if not isinstance(message, dict):
            raise InvalidError("each of `messages` must be an object", code="messages_invalid")


def _check_responses(fields: Mapping[str, Any]) -> None:
    given = fields.get("input")
    if not isinstance(given, str) and not (isinstance(given, list) and given and all(isinstance(item, dict) for item in given)):
        raise InvalidError("`input` must be a text or a list of items", code="input_missing")
    for name in ("previous_response_id", "background"):
        if fields.get(name):
            raise InvalidError(f"`{name}` is not served: {NOT_STORED}", code="not_stored")


def _check_prompt(ask: Ask, prompt: object, name: str) -> None:
    if isinstance(prompt, str):
        return
    if not isinstance(prompt, list) or not prompt:
        raise InvalidError(f"`{name}` must be a text or a list of token ids", code=f"{name}_missing")
    if all(type(token) is int and 0 <= token < 2**32 for token in prompt):
        ask.exact_tokens = len(prompt)
    elif isinstance(prompt[0], (str, list)):
        ask.prompts = ask.samples = len(prompt)  # a batch of prompts is several sequences too
    else:
        raise InvalidError(f"`{name}` must be a text or a list of token ids", code=f"{name}_missing")


def _positive(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def _chat_prompt(fields: dict[str, Any]) -> bytes:
    parts: list[str] = []
    for message in fields["messages"]:
        parts.append(str(message.get("role", "")))
        content = message.get("content")
        parts.append(content if type(content) is str else _text(content))
        if message.get("tool_calls"):
            parts.append(_written(message["tool_calls"]).decode())
    head = _written(fields["tools"]) if fields.get("tools") else b""
    return head + "\n".join(parts).encode("utf-8", "surrogatepass")


def _responses_prompt(fields: dict[str, Any]) -> bytes:
    given = fields["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    parts = [str(fields.get("instructions") or "")]
    for item in items:
        known = item.get("content")
        parts += [str(item.get("role", "")), _text(known) if known is not None else _written(item).decode()]  # else a tool's, say
    head = _written(fields["tools"]) if fields.get("tools") else b""
    return head + "\n".join(parts).encode("utf-8", "surrogatepass")


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_part(part) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def _part(part: dict[str, Any]) -> str:
    """A text, or a stand-in for an image or the like: the same for the same one, and as long as what it costs in tokens, about.

    A picture of a megabyte is no prompt of a megabyte: taken for one it would spoil all estimates, and fill the index.
    """
    text = part.get("text")
    if isinstance(text, str):
        return text
    return hashlib.blake2b(_written(part), digest_size=MEDIA_DIGEST_BYTES).hexdigest() * MEDIA_REPEATS


def _plain_prompt(fields: dict[str, Any]) -> bytes:
    prompt = fields["prompt"] if "prompt" in fields else fields["input"]
    if isinstance(prompt, str):
        return prompt.encode("utf-8", "surrogatepass")
    if isinstance(prompt[0], (str, list)):
        return "\n".join(part if isinstance(part, str) else str(part) for part in prompt).encode("utf-8", "surrogatepass")
    return array("I", prompt).tobytes()


def engine_body(ask: Ask, added: Mapping[str, Any] | None) -> bytes:
    """The body of the leg that answers: the client's bytes, and what is added before its last brace."""
    fields = ask.fields
    usage = ask.stream and not ask.wants_usage
    replaced = added is not None and len(added) > 1 and not fields.keys().isdisjoint(added)  # a single one is always the router's own
    if replaced or not _ROUTERS_OWN.isdisjoint(fields) or (usage and "stream_options" in fields):
        kept = _cleared(fields)
        if usage:
            kept["stream_options"] = {**(fields.get("stream_options") or {}), "include_usage": True}
        return _written(kept if added is None else {**kept, **added})
    if added is None:
        return _without_brace(ask.body) + b',"stream_options":{"include_usage":true}}' if usage else ask.body
    return b"%b%b,%b" % (
        _without_brace(ask.body), b',"stream_options":{"include_usage":true}' if usage else b"", _written(added)[1:],
    )  # fmt: skip


def _cleared(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in _ROUTERS_OWN}


def _without_brace(body: bytes) -> bytes:
    """A JSON object up to its last brace; it is never empty, for it names a model."""
    return body[:-1] if body.endswith(b"}") else body.rstrip()[:-1]


def prefill_body(ask: Ask) -> bytes:
    """The body of a vLLM NIXL prefill leg: one token, not streamed, KV kept for a decode to come."""
    return _one_token(ask, _REMOTE_DECODE)


def transfer_body(ask: Ask, transfer_id: str) -> bytes:
    """The body of a vLLM Mooncake prefill leg. A first token that were the last (`stop`) would have it drop the KV, so there is none."""
    return _one_token(ask, {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id}, least=1)


def _one_token(ask: Ask, kv_transfer_params: Mapping[str, Any], *, least: int | None = None) -> bytes:
    fields = ask.fields.copy()
    fields.pop("stream_options", None)
    fields.pop("min_tokens", None)
    if least is not None:
        fields["min_tokens"] = least
    fields["stream"] = False
    fields["max_tokens"] = 1
    if "max_completion_tokens" in fields:
        fields["max_completion_tokens"] = 1
    fields["kv_transfer_params"] = kv_transfer_params
    return _written(fields)


def unstreamed_body(ask: Ask, added: Mapping[str, Any]) -> bytes:
    """The body of a prefill leg whose engine says a token and ends by itself: all that the client asks for, in one answer."""
    fields = _cleared(ask.fields)
    fields.pop("stream_options", None)
    return _written({**fields, "stream": False, **added})


def final_answer(reply: dict[str, Any], *, stream: bool, chat: bool, wants_usage: bool) -> tuple[bytes, bytes]:
    """Content type and body of an answer of one choice that came whole; in events for a client that wants a stream."""
    (choice,) = reply["choices"]
    shown = {name: value for name, value in choice.items() if name != "disaggregated_params"}
    body = {name: value for name, value in reply.items() if name != "prompt_token_ids"} | {"choices": [shown]}
    if not stream:
        return b"application/json", orjson.dumps(body)
    if chat:
        shown["delta"] = shown.pop("message")
        body["object"] = "chat.completion.chunk"
    usage = body.pop("usage", None)
    events = [body, *([body | {"choices": [], "usage": usage}] if wants_usage and usage else [])]
    return b"text/event-stream", b"".join(b"data: %b\n\n" % orjson.dumps(event) for event in events) + b"data: [DONE]\n\n"


class Usage(NamedTuple):
    """Tokens of one request; `cached` is how many prompt tokens needed no computing, None when the engine does not say."""

    prompt: int
    completion: int
    cached: int | None


def usage_of(answer: Mapping[str, Any]) -> Usage | None:
    """The usage of an answer or of a usage chunk."""
    usage = answer.get("usage")
    if type(usage) is not dict:
        return None
    if "input_tokens" in usage:  # the words of `/v1/responses`
        details, prompt, completion = usage.get("input_tokens_details"), usage["input_tokens"], usage.get("output_tokens")
    else:
        details, prompt, completion = usage.get("prompt_tokens_details"), usage.get("prompt_tokens"), usage.get("completion_tokens")
    cached = details.get("cached_tokens") if type(details) is dict else None
    return Usage(
        prompt if type(prompt) is int else 0, completion if type(completion) is int else 0, cached if type(cached) is int else None
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


def error_event(message: str, *, code: str, named: bool) -> bytes:
    """The last event of a stream that ended early; `named` as `/v1/responses` has them."""
    if named:
        return b"event: error\ndata: %b\n\n" % orjson.dumps({"type": "error", "code": code, "message": message, "param": None})
    return b"data: %b\n\n" % error_body(message, kind="server_error", code=code)


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
