"""OpenAI's requests read, and its errors written, as vLLM does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from fleets.engines.sim.tokens import count, encode_chat, encode_ids, encode_text

_MAX_CHOICES = 128
_MAX_STOPS = 16
_DEFAULT_COMPLETION_TOKENS = 16  # what OpenAI's completions endpoint takes when max_tokens is left out


class RequestError(Exception):
    """A request that cannot be served, with its HTTP status."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param = status, message, kind, param

    @property
    def body(self) -> bytes:
        """The error in OpenAI's envelope."""
        return orjson.dumps({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}})


@dataclass(frozen=True, slots=True)
class Generation:
    """What a client asks for, checked. `max_tokens` is None when it sets no limit."""

    chat: bool
    prompts: tuple[bytes, ...]  # packed tokens
    choices: int
    stream: bool
    include_usage: bool
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stop: tuple[str, ...]
    kv: dict[str, Any] | None
    return_token_ids: bool


def read_generation(body: bytes | bytearray, *, chat: bool, model: str, context_tokens: int) -> Generation:
    """Parse a body; RequestError says what is wrong with it."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(400, f"the body is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise RequestError(400, "the body is no JSON object")
    if data.get("model") not in (model, None):
        raise RequestError(404, f"The model `{data['model']}` does not exist.", "NotFoundError", "model")
    prompts = _chat_prompt(data) if chat else _prompts(data)
    limit = _limit(data, chat)
    choices = _whole(data, "n", 1, 1, _MAX_CHOICES)
    for packed in prompts:
        _check_length(count(packed), limit, context_tokens)
    stream_options = data.get("stream_options")
    kv = data.get("kv_transfer_params")
    return Generation(
        chat=chat,
        prompts=prompts,
        choices=choices,
        stream=data.get("stream") is True,
        include_usage=isinstance(stream_options, dict) and stream_options.get("include_usage") is True,
        max_tokens=limit,
        min_tokens=_whole(data, "min_tokens", 0, 0, context_tokens),
        ignore_eos=data.get("ignore_eos") is True,
        stop=_stops(data.get("stop")),
        kv=kv if isinstance(kv, dict) else None,
        return_token_ids=data.get("return_token_ids") is True,
    )


def _chat_prompt(data: dict[str, Any]) -> tuple[bytes, ...]:
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise RequestError(400, "`messages` must be a list of at least one message", param="messages")
    return (encode_chat(messages),)


def _prompts(data: dict[str, Any]) -> tuple[bytes, ...]:
    """A text, a list of token ids, or a list of either."""
    prompt = data.get("prompt")
    if isinstance(prompt, str) and prompt:
        return (encode_text(prompt),)
    if isinstance(prompt, list) and prompt:
        if all(type(item) is int for item in prompt):
            return (encode_ids(prompt),)
        if all(isinstance(item, str) and item for item in prompt):
            return tuple(encode_text(item) for item in prompt)
        if all(isinstance(item, list) and item and all(type(token) is int for token in item) for item in prompt):
            return tuple(encode_ids(item) for item in prompt)
    raise RequestError(400, "`prompt` must be a text, a list of token ids, or a list of these, and not empty", param="prompt")


def _limit(data: dict[str, Any], chat: bool) -> int | None:
    for name in ("max_completion_tokens", "max_tokens") if chat else ("max_tokens",):
        if data.get(name) is not None:
            return _whole(data, name, 1, 1, 2**31)
    return None if chat else _DEFAULT_COMPLETION_TOKENS


def _check_length(prompt_tokens: int, limit: int | None, context_tokens: int) -> None:
    if prompt_tokens + (limit or 1) > context_tokens:
        raise RequestError(
            400,
            f"This model's maximum context length is {context_tokens} tokens. However, you requested {limit or 1} output tokens and your "
            f"prompt contains at least {prompt_tokens} input tokens, for a total of at least {prompt_tokens + (limit or 1)} tokens.",
        )


def _whole(data: dict[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = data.get(name)
    if value is None:
        return default
    if type(value) is not int or not least <= value <= most:
        raise RequestError(400, f"{name} must be a whole number from {least} to {most}, not {value!r}", param=name)
    return value


def _stops(value: object) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    if len(stops) > _MAX_STOPS or not all(isinstance(stop, str) for stop in stops):
        raise RequestError(400, f"`stop` must be a text or a list of up to {_MAX_STOPS}", param="stop")
    return tuple(stop for stop in stops if stop)
