"""OpenAI's requests read, and its errors written, as vLLM does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from fleets.engines.sim.tokens import count, encode_chat, encode_ids, encode_text

_MAX_CHOICES = 128
_MAX_STOPS = 4
_DEFAULT_COMPLETION_TOKENS = 16  # what OpenAI's completions endpoint takes when max_tokens is left out
_SCHEMA = "Bad Request"  # the type of errors that vLLM's schema finds before it reads what is asked


class RequestError(Exception):
    """A request that cannot be served, with its HTTP status."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param = status, message, kind, param

    @property
    def body(self) -> bytes:
        """The error in OpenAI's envelope."""
        return orjson.dumps({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}})


class Room(NamedTuple):
    """Where SGLang's prefill and decode of one prompt meet: prefill's bootstrap server, and a number there."""

    host: str
    port: int
    number: int


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
    rooms: tuple[Room, ...]  # one for each prompt, or none
    return_token_ids: bool


def read_generation(body: bytes | bytearray, *, chat: bool, model: str, context_tokens: int) -> Generation:
    """Parse a body; RequestError says what is wrong with it, as vLLM would."""
    data = _object(body)
    limit, choices = _limit(data, chat), _integer(data, "n")
    stops, prompts = _stops(data.get("stop")), _chat_prompt(data) if chat else _prompts(data)
    if data.get("model") not in (model, None):
        raise RequestError(404, f"The model `{data['model']}` does not exist. Valid aliases: {model}.", "NotFoundError", "model")
    _check_numbers(data, choices, limit, context_tokens)
    for packed in prompts:
        _check_length(count(packed), context_tokens)
    stream_options = data.get("stream_options")
    if stream_options is not None and data.get("stream") is not True:
        raise RequestError(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    kv = data.get("kv_transfer_params")
    return Generation(
        chat=chat,
        prompts=prompts,
        choices=1 if choices is None else choices,
        stream=data.get("stream") is True,
        include_usage=isinstance(stream_options, dict) and stream_options.get("include_usage") is True,
        max_tokens=limit,
        min_tokens=_integer(data, "min_tokens") or 0,
        ignore_eos=data.get("ignore_eos") is True,
        stop=stops,
        kv=kv if isinstance(kv, dict) else None,
        rooms=_rooms(data, len(prompts)),
        return_token_ids=data.get("return_token_ids") is True,
    )


def _rooms(data: dict[str, Any], prompts: int) -> tuple[Room, ...]:
    """SGLang's fields: single values, or lists as long as the batch."""
    values = [data.get(f"bootstrap_{name}") for name in ("host", "port", "room")]
    if values[2] is None:
        return ()
    hosts, ports, numbers = (value if isinstance(value, list) else [value] * prompts for value in values)
    if not len(hosts) == len(ports) == len(numbers) == prompts:
        raise RequestError(400, "bootstrap_host, bootstrap_port and bootstrap_room must be as long as the batch")
    return tuple(Room(str(host), int(port), int(number)) for host, port, number in zip(hosts, ports, numbers, strict=True))


def _object(body: bytes | bytearray) -> dict[str, Any]:
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(400, f"the body is no JSON: {error}", _SCHEMA, f"body.{error.pos}") from error
    if not isinstance(data, dict):
        raise RequestError(400, "the body is no JSON object", _SCHEMA, "body")
    return data


def _chat_prompt(data: dict[str, Any]) -> tuple[bytes, ...]:
    messages = data.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise RequestError(400, "`messages` must be a list of messages", _SCHEMA, "body.messages")
    if not messages:
        raise RequestError(400, "`messages` must hold at least one message")
    return (encode_chat(messages),)


def _prompts(data: dict[str, Any]) -> tuple[bytes, ...]:
    """A text, a list of token ids, or a list of either."""
    prompt = data.get("prompt")
    if prompt is None or prompt in ("", []):
        raise RequestError(400, "`prompt` must be there, and not empty", param="prompt")
    if isinstance(prompt, str):
        return (encode_text(prompt),)
    if isinstance(prompt, list):
        if all(type(item) is int for item in prompt):
            return (encode_ids(prompt),)
        if all(isinstance(item, str) and item for item in prompt):
            return tuple(encode_text(item) for item in prompt)
        if all(isinstance(item, list) and item and all(type(token) is int for token in item) for item in prompt):
            return tuple(encode_ids(item) for item in prompt)
    raise RequestError(400, "`prompt` must be a text, a list of token ids, or a list of these", _SCHEMA, "body.prompt")


def _limit(data: dict[str, Any], chat: bool) -> int | None:
    for name in ("max_completion_tokens", "max_tokens") if chat else ("max_tokens",):
        if data.get(name) is not None:
            return _integer(data, name)
    return None if chat else _DEFAULT_COMPLETION_TOKENS


def _check_numbers(data: dict[str, Any], choices: int | None, limit: int | None, context_tokens: int) -> None:
    if limit is not None and limit < 1:
        raise RequestError(400, f"max_tokens must be at least 1, got {limit}.", param="max_tokens")
    if limit is not None and limit > context_tokens:
        raise RequestError(400, f"max_tokens={limit} cannot be greater than max_model_len={context_tokens}.", param="max_tokens")
    if choices is not None and not 1 <= choices <= _MAX_CHOICES:
        raise RequestError(400, f"n must be from 1 to {_MAX_CHOICES}, got {choices}.")
    least = _integer(data, "min_tokens") or 0
    if least < 0 or (limit is not None and least > limit):
        raise RequestError(400, f"min_tokens must be from 0 to max_tokens={limit}, got {least}.")
    temperature = data.get("temperature")
    if temperature is not None and (type(temperature) not in (int, float)):
        raise RequestError(400, "temperature must be a number", _SCHEMA, "body.temperature")
    if temperature == 0 and (choices or 1) > 1:
        raise RequestError(400, f"n must be 1 when using greedy sampling, got {choices}.")
    if temperature is not None and temperature < 0:
        raise RequestError(400, f"temperature must be non-negative, got {temperature}.", param="temperature")


def _check_length(prompt_tokens: int, context_tokens: int) -> None:
    """A prompt must leave room for one token; an answer is cut at the context's end."""
    if prompt_tokens > context_tokens:
        raise RequestError(
            400,
            f"This model's maximum context length is {context_tokens} tokens. However, your prompt contains {prompt_tokens} input tokens, "
            "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt.",
            param="input_tokens",
        )
    if prompt_tokens == context_tokens:
        raise RequestError(400, "max_tokens must be at least 1, got 0.", param="max_tokens")


def _integer(data: dict[str, Any], name: str) -> int | None:
    value = data.get(name)
    if value is not None and type(value) is not int:
        raise RequestError(400, f"{name} must be a whole number, not {value!r}", _SCHEMA, f"body.{name}")
    return value


def _stops(value: object) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    if len(stops) > _MAX_STOPS or not all(isinstance(stop, str) for stop in stops):
        raise RequestError(400, f"`stop` must be a text or a list of up to {_MAX_STOPS}", _SCHEMA, "body.stop")
    return tuple(stop for stop in stops if stop)
