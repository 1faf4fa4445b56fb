"""The router's calls to the control plane; off the path of requests."""

from __future__ import annotations

import httpx

from denvweb.core.errors import UnavailableError
from fleets.router.config import Config


class Control:
    """A thin HTTP client with the router's token."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._http = httpx.AsyncClient(base_url=config.control, trust_env=False)

    def _headers(self) -> dict[str, str]:
        try:
            token = self._config.token()
        except OSError as error:
            raise UnavailableError(f"the router token cannot be read: {error}") from error
        return {"content-type": "application/json", **({"authorization": f"Bearer {token}"} if token else {})}

    async def get(self, path: str, *, deadline_s: float) -> tuple[int, bytes]:
        """Status and body; UnavailableError when there is no answer."""
        try:
            answer = await self._http.get(path, headers=self._headers(), timeout=deadline_s)
        except httpx.HTTPError as error:
            raise UnavailableError(f"the control plane does not answer: {error or type(error).__name__}") from error
        return answer.status_code, answer.content

    async def post(self, path: str, body: bytes, *, deadline_s: float) -> tuple[int, bytes]:
        """Status and body; UnavailableError when there is no answer."""
        try:
            answer = await self._http.post(path, content=body, headers=self._headers(), timeout=deadline_s)
        except httpx.HTTPError as error:
            raise UnavailableError(f"the control plane does not answer: {error or type(error).__name__}") from error
        return answer.status_code, answer.content

    async def close(self) -> None:
        """End the connections."""
        await self._http.aclose()
