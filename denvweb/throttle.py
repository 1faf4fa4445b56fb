"""How often one caller may ask: a bucket of tokens each, in this process's memory, so that it holds with Redis down too."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from django.conf import settings
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from denvweb.core.errors import TooOftenError
from denvweb.models import ApiToken

if TYPE_CHECKING:
    from rest_framework.views import APIView  # imports its throttles, so it cannot be imported by one

_BURST_S = 10.0  # so many seconds' worth may come at once
_CALLERS_MAX = 10_000  # the bucket of whoever was away longest is forgotten, which makes it full again
_buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # caller -> (tokens left, monotonic time of that)


def take(caller: str, *, per_s: float, burst: float, now_mono_s: float) -> float:
    """Take one token; 0 when there was one, else the seconds until there is."""
    left, at_mono_s = _buckets.pop(caller, (burst, now_mono_s))
    left = min(burst, left + (now_mono_s - at_mono_s) * per_s)
    wait_s = 0.0 if left >= 1 else (1 - left) / per_s
    _buckets[caller] = (left - 1 if left >= 1 else left, now_mono_s)
    if len(_buckets) > _CALLERS_MAX:
        _buckets.popitem(last=False)
    return wait_s


def _wait_s(caller: str, per_s: float) -> float:
    return take(caller, per_s=per_s, burst=per_s * _BURST_S, now_mono_s=time.monotonic())


def refusal_of(user: object) -> TooOftenError | None:
    """For views that do without the framework: what a person is told who has no token left; the bucket is that of their session."""
    wait_s = _wait_s(f"user:{user}", settings.API_REQUESTS_PER_S)
    return TooOftenError(math.ceil(wait_s)) if wait_s else None


class CallerThrottle(BaseThrottle):
    """One bucket a token, else a person, else an address."""

    wait_s = 0.0
    bucket = ""  # of what has one of its own

    @property
    def per_s(self) -> float:
        """How often, in the long run."""
        return float(settings.API_REQUESTS_PER_S)

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Whether the caller has a token left."""
        if isinstance(request.auth, ApiToken):
            caller = request.auth.pk
        else:
            caller = f"user:{request.user.pk}" if request.user else f"address:{request.META.get('REMOTE_ADDR')}"
        self.wait_s = _wait_s(f"{self.bucket}{caller}", self.per_s)
        return not self.wait_s

    def wait(self) -> float:
        """Whole seconds, for Retry-After."""
        return float(math.ceil(self.wait_s))


class HeavyThrottle(CallerThrottle):
    """For what takes the web process a second of its core, such as a simulation."""

    bucket = "heavy:"

    @property
    def per_s(self) -> float:
        """A hundredth of what is light: one in two seconds unless set otherwise."""
        return super().per_s / 100
