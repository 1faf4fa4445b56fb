"""The web process: HTTP through Django, but for agents' reports; WebSockets through Channels."""

from __future__ import annotations

import gc
import os
from typing import Any

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.urls import get_resolver

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "denvweb.settings")
_http: Any = get_asgi_application()

from fleets.api import sync  # noqa: E402  (models can be imported only now)
from fleets.api.consumers import websocket_urlpatterns  # noqa: E402

_sync = sync.SyncApp()


async def _web(scope: sync.Scope, receive: sync.Receive, send: sync.Send) -> None:
    await (_sync if scope["path"] == sync.PATH else _http)(scope, receive, send)


# Every socket authenticates by its Authorization header, which no page can set, and refuses whoever comes with an Origin.
application = ProtocolTypeRouter({"http": _web, "websocket": URLRouter(websocket_urlpatterns)})

# All that is loaded by now stays. Left to itself the collector walks these hundred thousand objects again and again, always in the
# middle of somebody's request, which then takes 60 ms more; frozen, they are no longer its business. Requests leave few cycles.
get_resolver().url_patterns  # noqa: B018  (loads the pages and the API, which otherwise the first request does)
gc.collect()
gc.freeze()
gc.set_threshold(20_000, 20, 20)
