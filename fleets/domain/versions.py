"""Which agents may talk to which control planes."""

from __future__ import annotations

from denvweb.core.errors import ConflictError
from fleets.domain.protocol import PROTOCOL_VERSION

OLDEST = 1  # that is still understood
AHEAD_MAX = 1  # an agent that is upgraded first: fields that are not known here are left unread


def version_check(version: int, *, ours: int = PROTOCOL_VERSION, oldest: int = OLDEST) -> None:
    """ConflictError `agent-too-new` or `agent-too-old`, with the cure."""
    if version > ours + AHEAD_MAX:
        raise ConflictError(
            f"This agent speaks version {version} of the protocol, and the control plane version {ours}: upgrade the control plane first, "
            f"or install the agent of its release. The engines go on meanwhile.",
            code="agent-too-new",
        )
    if version < oldest:
        raise ConflictError(
            f"This agent speaks version {version} of the protocol, and the control plane understands {oldest} and later: upgrade the agent "
            "(`pip install '.[agent]'` in the newer denv's folder, then start it again). The engines go on meanwhile, and are adopted.",
            code="agent-too-old",
        )
