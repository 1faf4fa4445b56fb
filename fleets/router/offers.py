"""What one engine says that it serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleets.router import openai

ASK_EVERY_S = 30.0  # adapters come and go while an engine runs
REQUEST = b"GET /v1/models HTTP/1.1\r\nhost: engine\r\n\r\n"
MODELS_MAX = 1024  # of one engine


@dataclass(frozen=True, slots=True)
class Offer:
    """What one engine says of a model; where it has it from is no business of clients."""

    parent: str = ""  # of an adapter
    context_tokens: int | None = None  # prompt and answer together


Offers = Mapping[str, Offer]


def offers_of(body: bytes) -> Offers:
    """An engine's answer; empty when it is none."""
    data = (openai.json_object(body) or {}).get("data")
    cards = [card for card in data if isinstance(card, dict)] if isinstance(data, list) else []
    found: dict[str, Offer] = {}
    for card in cards[:MODELS_MAX]:
        name, parent, context = card.get("id"), card.get("parent"), card.get("max_model_len")
        if isinstance(name, str) and name:
            found[name] = Offer(parent if isinstance(parent, str) else "", context if type(context) is int and context > 0 else None)
    return found
