"""Why somebody is not signed in."""

from __future__ import annotations

from denvweb.core.errors import ForbiddenError, UnavailableError


class SignInRefusedError(ForbiddenError):
    """What came back proves nobody, or somebody who is not let in; `who` is as much as was proved of them."""

    def __init__(self, detail: str, *, code: str, who: str = "nobody") -> None:
        super().__init__(detail, code=code)
        self.who = who


class ProviderError(UnavailableError):
    """The provider does not answer, or not as one does."""

    code = "provider-unavailable"
