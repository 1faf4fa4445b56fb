"""Requests as a client sends them, to a router or straight to an engine."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

import httpx

SAID = 48  # tokens of an answer
LENGTHS = (20, 33, 64, 100, 257, 1000, 2500)


def prompt(tokens: int, seed: int) -> list[int]:
    """Token ids that the tokenizer learned, never the same for two seeds, so that no cache knows them."""
    source = random.Random(seed)
    return [source.randrange(8, 471) for _ in range(tokens)]


def ask(url: str, model: str, tokens: list[int], **more: Any) -> httpx.Response:
    """One completion, greedy, not streamed."""
    body = {"model": model, "prompt": tokens, "max_tokens": SAID, "temperature": 0, "ignore_eos": True, "return_token_ids": True} | more
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60)


def said(answer: httpx.Response) -> list[int]:
    """Its token ids."""
    assert answer.status_code == 200, f"{answer.status_code} {answer.text}"
    ids: list[int] = answer.json()["choices"][0]["token_ids"]
    return ids


def stream(url: str, model: str, tokens: list[int]) -> list[int]:
    """The token ids of one streamed completion, greedy; AssertionError with what came instead."""
    body = {
        "model": model,
        "prompt": tokens,
        "max_tokens": SAID,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
    }
    ids: list[int] = []
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
        assert answer.status_code == 200, f"{answer.status_code} {answer.read()!r}"
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                assert "error" not in chunk, f"in the stream: {chunk}"
                ids += [token for choice in chunk["choices"] for token in choice["token_ids"]]
    return ids


@dataclass(frozen=True, slots=True)
class Streamed:
    """A chat that was streamed: its text, its last finish reason, its usage."""

    text: str
    finish: str | None
    usage: dict[str, Any] | None
    done: bool


def chat(url: str, model: str, messages: list[dict[str, str]], **more: Any) -> Streamed:
    """A streamed chat, greedy."""
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 24, "stream": True}
    body |= {"stream_options": {"include_usage": True}} | more
    text, finish, usage, done = "", None, None, False
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            done = done or line == "data: [DONE]"
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                assert "error" not in chunk, chunk
                usage = chunk.get("usage") or usage
                for choice in chunk["choices"]:
                    text += choice["delta"].get("content") or ""
                    finish = choice["finish_reason"] or finish
    return Streamed(text, finish, usage, done)
