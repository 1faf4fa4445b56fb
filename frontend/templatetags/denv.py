"""Small pieces that every page uses: icons, badges, quantities in words."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

from django import template
from django.urls import get_script_prefix, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from denvweb.core import units
from denvweb.logs import request_id as current_request_id
from frontend import words
from frontend.words import Badge
from releases.domain.views import RolloutView

register = template.Library()


@register.simple_tag
@lru_cache(maxsize=128)
def icon(name: str) -> SafeString:
    """An icon of the sprite; the words beside it say the same."""
    return format_html('<svg class="i" aria-hidden="true"><use href="#i-{}"/></svg>', name)


@register.simple_tag
@lru_cache(maxsize=1024)
def badge(value: Badge) -> SafeString:
    """A state: colour, shape and word."""
    return format_html('<span class="badge" data-s="{}">{}{}</span>', value.tone, icon(value.icon), value.text)


@register.simple_tag
@lru_cache(maxsize=4096)
def rel(number: str | int, canary: bool = False, word: str = "") -> SafeString:
    """A release with its line: solid for the one you have, dashed for the one on trial."""
    return format_html('<span class="rel{}">{}{}</span>', " c" if canary else "", f"{word} " if word else "", number)


@register.simple_tag
def request_id() -> str:
    """The id that the logs carry for this very request."""
    return current_request_id.get()


@register.filter
def said(value: Badge) -> str:
    """A state in words alone."""
    return value.text


@register.filter
def stage_badge(stage: words.StageLook) -> Badge:
    """A stage's state."""
    return words.stage_badge(stage)


@register.filter
def rollout_badge(rollout: RolloutView) -> Badge:
    """A rollout's state."""
    return words.rollout_badge(rollout)


@register.filter
def replica_badge(state: str) -> Badge:
    """A replica's state."""
    return words.replica_badge(state)


@register.filter
def level_badge(level: str) -> Badge:
    """An event's level."""
    return words.level_badge(level)


@register.filter
def severity_badge(severity: str) -> Badge:
    """A finding's severity."""
    return words.severity_badge(severity)


@register.filter
def percent(ratio: float | None) -> str:
    """`0.19%`; `?` when unknown."""
    return "?" if ratio is None else units.format_ratio(ratio)


@register.filter
def share(ratio: float | None) -> str:
    """`10%` of the traffic; `?` when unknown."""
    return "?" if ratio is None else words.share(ratio)


@register.filter
def ms(seconds: float | None) -> str:
    """`1,120 ms`; `?` when unknown."""
    return "?" if seconds is None else units.format_ms(seconds)


@register.filter
def duration(seconds: float | None) -> str:
    """`3:20 min`; `?` when unknown."""
    return "?" if seconds is None else units.format_duration(seconds)


@register.filter
def odds(value: float | None) -> str:
    """`2.1`, as in "2.1 : 1"."""
    return "?" if value is None else words.odds(value)


@register.filter
def number_of(release: str) -> str:
    """`7` of `ds-flash@7`."""
    return words.number_of(release)


@register.filter
def count(value: float | None) -> str:
    """`1,204`, `15.2`; `?` when unknown."""
    if value is None:
        return "?"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


@register.filter
def rate(value: float | None) -> str:
    """`15.2`; empty when unknown."""
    return "" if value is None else f"{value:.1f}"


@register.filter
def clock(at: datetime | None) -> str:
    """`09:43:20`, in UTC."""
    return "-" if at is None else at.astimezone(UTC).strftime("%H:%M:%S")


@register.filter
def moment(at: datetime | None) -> str:
    """`27 Nov 18:40`, in UTC."""
    return "-" if at is None else at.astimezone(UTC).strftime("%-d %b %H:%M")


@register.filter
def iso(at: datetime | None) -> str:
    """What a `datetime` attribute holds."""
    return "" if at is None else at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@register.simple_tag
def href(name: str, *args: str | int) -> str:
    """`{% url %}` for lists of hundreds: an address that was worked out once is kept."""
    return _address(name, args, get_script_prefix())


@register.filter
def stage_url(stage: str) -> str:
    """Where the page of `ds-flash/prod-us` is."""
    return _address("stage", tuple(stage.split("/", 1)), get_script_prefix())


@lru_cache(maxsize=8192)
def _address(name: str, args: tuple[str | int, ...], prefix: str) -> str:
    """Working one out takes as long as drawing half a row; `prefix` is what all addresses begin with."""
    return reverse(name, args=args)


@register.filter
def model_of(stage: str) -> str:
    """`ds-flash` of `ds-flash/prod-us`."""
    return stage.partition("/")[0]


@register.filter
def name_of(stage: str) -> str:
    """`prod-us` of `ds-flash/prod-us`."""
    return stage.partition("/")[2]


@register.filter
def whole(value: float | None) -> str:
    """`1,120`; one digit more under ten, where it says something; `?` when unknown."""
    return words.whole(value)


@register.filter
def cent(ratio: float) -> str:
    """A share of 100 for an SVG attribute."""
    return f"{ratio * 100:.2f}".rstrip("0").rstrip(".")


@register.filter
def plain(value: float) -> str:
    """A number for an attribute: no separators, no needless digits."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


@register.filter
def capital(text: str) -> str:
    """A capital first, where a word stands first: names such as `itl-p99` and figures such as `n=1,204` stay as they are written."""
    text = text.strip()
    word = text.partition(" ")[0].rstrip(".,:;")
    return text[0].upper() + text[1:] if word.isalpha() else text


@register.filter
def sentence(text: str) -> str:
    """Words of a state machine as a sentence: a capital first, a stop at the end."""
    text = capital(text)
    return text + ("" if not text or text[-1] in ".!?…" else ".")
