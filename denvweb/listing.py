"""What the lists of the REST API share: filters of the query string that are checked, times, and pages behind a cursor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn, TypeVar

from django.core.validators import MaxValueValidator, MinValueValidator
from rest_framework import serializers
from rest_framework.request import Request

from denvweb.core.words import did_you_mean

MOST_PER_PAGE = 500
_EARLIEST, _LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)  # what every database and zone can hold

T = TypeVar("T")


class ListQuery(serializers.Serializer[Any]):
    """`?limit=50`: what every list takes. Those below add their filters; one that is left out, or empty, filters nothing."""

    limit = serializers.IntegerField(default=50, min_value=1, max_value=MOST_PER_PAGE, help_text="how many, at most")


def _cursor() -> serializers.CharField:
    """As it was given, blanks at its ends and all."""
    return serializers.CharField(default="", allow_blank=True, trim_whitespace=False, max_length=300, help_text="`next` of the page before")


class NamesQuery(ListQuery):
    """A list that is short as a rule, in the order of names: a page holds all that most installations have."""

    limit = serializers.IntegerField(default=MOST_PER_PAGE, min_value=1, max_value=MOST_PER_PAGE, help_text="how many, at most")
    after = _cursor()


class LatestQuery(ListQuery):
    """The same, newest first."""

    limit = serializers.IntegerField(default=MOST_PER_PAGE, min_value=1, max_value=MOST_PER_PAGE, help_text="how many, at most")
    before = _cursor()


class WordField(serializers.CharField):
    """A filter by a word; empty for none."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**{"default": "", "allow_blank": True, "max_length": 127, **more})


class ChoiceOfField(serializers.ChoiceField):
    """A filter by one of these words; empty for none."""

    def __init__(self, choices: Sequence[str], **more: Any) -> None:
        super().__init__(choices=choices, **{"default": "", "allow_blank": True, **more})

    def fail(self, key: str, **kwargs: Any) -> NoReturn:
        """A refusal that names the words, and the one that was meant."""
        if key == "invalid_choice":
            word, known = str(kwargs["input"]), [str(choice) for choice in self.choices]
            raise serializers.ValidationError(f"{word[:60]} is not one of {', '.join(known)}{did_you_mean(word, known)}", code=key)
        super().fail(key, **kwargs)


class FlagField(ChoiceOfField):
    """A filter by yes or no, `true` or `false`; None, for none, when empty."""

    def __init__(self, **more: Any) -> None:
        super().__init__(("true", "false"), default=None, **more)

    def to_internal_value(self, data: Any) -> Any:
        """True, False, or None."""
        word = super().to_internal_value(data)
        return word == "true" if word else None


class MomentField(serializers.DateTimeField):
    """A filter by time, ISO 8601; one without a zone is UTC."""

    def __init__(self, **more: Any) -> None:
        bounds = [MinValueValidator(_EARLIEST), MaxValueValidator(_LATEST)]
        super().__init__(**{"default": None, "default_timezone": UTC, "validators": bounds, **more})


class TimedQuery(ListQuery):
    """The same for what happened at a time."""

    since = MomentField(help_text="not before this")
    until = MomentField(help_text="before this")


def checked(query: type[serializers.Serializer[Any]], request: Request) -> dict[str, Any]:
    """The filters of a request by name, or 400 with what is wrong with each."""
    checker = query(data=request.query_params.dict())
    checker.is_valid(raise_exception=True)
    return dict(checker.validated_data)


def by_name(rows: Iterable[T], request: Request, key: Callable[[T], str]) -> tuple[tuple[T, ...], str | None]:
    """A page (NamesQuery) of a list that was read whole, and its `next`; `key` is unique. A row that is gone by now is no matter."""
    wanted = checked(NamesQuery, request)
    left = sorted((row for row in rows if key(row) > wanted["after"]), key=key)
    return cut(left, wanted["limit"], key)


def time_key(at: datetime, id: str) -> str:
    """A key of rows that are in the order of a time."""
    return f"{at.astimezone(UTC):%Y%m%dT%H%M%S.%f}.{id}"


def by_time(rows: Iterable[T], request: Request, key: Callable[[T], str]) -> tuple[tuple[T, ...], str | None]:
    """The same with the last one first (LatestQuery); `key` is a `time_key`."""
    wanted = checked(LatestQuery, request)
    left = sorted((row for row in rows if not wanted["before"] or key(row) < wanted["before"]), key=key, reverse=True)
    return cut(left, wanted["limit"], key)


def cut(found: Sequence[T], limit: int, cursor: Callable[[T], object]) -> tuple[tuple[T, ...], str | None]:
    """A page of `limit`, of which one more was read to know whether there is a next one; and where that begins."""
    shown = tuple(found[:limit])
    return shown, str(cursor(shown[-1])) if len(found) > limit else None
