"""Socket Mode: denv calls Slack, for installations that Slack cannot reach. The same requests, the same answers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from django.db import close_old_connections

from denvweb.core.errors import DenvError, UnavailableError
from frontend.slack import requests
from frontend.slack.app import SlackConfig, UsedError, slack_config

if TYPE_CHECKING:
    from slack_sdk.socket_mode.client import BaseSocketModeClient
    from slack_sdk.socket_mode.request import SocketModeRequest

log = logging.getLogger(__name__)


def connect() -> BaseSocketModeClient:
    """A connection that keeps itself up; UnavailableError when there is no app token."""
    from slack_sdk.socket_mode import SocketModeClient

    config = slack_config()
    if not config.app_token:
        raise UnavailableError("Socket Mode takes an app token (xapp-...); set one under Settings.", code="slack-not-set-up")
    client = SocketModeClient(app_token=config.app_token, web_client=config.client(), concurrency=2)
    client.socket_mode_request_listeners.append(lambda of, request: _take(config, of, request))
    client.connect()
    return client


def _take(config: SlackConfig, client: BaseSocketModeClient, request: SocketModeRequest) -> None:
    """Done and committed, then acknowledged. What is not acknowledged, Slack shows as failed to whoever asked."""
    from slack_sdk.socket_mode.response import SocketModeResponse

    try:
        answer = _answer(config, request)
    except UsedError:
        log.warning("Slack sent envelope %s a second time; it is not done again", request.envelope_id)
        return
    except DenvError as error:
        log.warning("a request from Slack was not taken: %s", error.detail)
        return
    finally:
        close_old_connections()
    client.send_socket_mode_response(SocketModeResponse(request.envelope_id, answer))


def _answer(config: SlackConfig, request: SocketModeRequest) -> dict[str, object] | None:
    data = request.payload
    if request.type == "slash_commands" and data.get("team_id") == config.team:
        return requests.command({name: str(value) for name, value in data.items()}, seen=request.envelope_id)
    if request.type == "interactive" and data.get("type") == "block_actions" and (data.get("team") or {}).get("id") == config.team:
        requests.click(data, seen=request.envelope_id)
    return None
