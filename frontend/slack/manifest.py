"""The Slack app as Slack's own manifest, so that setting it up is one paste (https://docs.slack.dev/app-manifests)."""

from __future__ import annotations

from typing import Any


def manifest(*, url: str, socket_mode: bool = False) -> dict[str, Any]:
    """For an installation that Slack reaches at `url`; with Socket Mode denv calls Slack, and no URL is needed."""
    command: dict[str, Any] = {
        "command": "/denv",
        "description": "See and steer rollouts",
        "usage_hint": "status | rollback | pause | resume | promote | approve MODEL/STAGE",
        "should_escape": False,
    }
    interactivity: dict[str, Any] = {"is_enabled": True}
    if not socket_mode:
        command["url"] = f"{url}/slack/command"
        interactivity["request_url"] = f"{url}/slack/interaction"
    return {
        "display_information": {"name": "denv", "description": "Rollouts of models: notices, and one click back"},
        "features": {"bot_user": {"display_name": "denv", "always_online": True}, "slash_commands": [command]},
        "oauth_config": {"scopes": {"bot": ["chat:write", "commands"]}},
        "settings": {
            "interactivity": interactivity,
            "org_deploy_enabled": False,
            "socket_mode_enabled": socket_mode,
            "token_rotation_enabled": False,
        },
    }
