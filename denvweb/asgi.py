"""The web process: HTTP through Django, WebSockets through Channels."""

from __future__ import annotations

import os

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "denvweb.settings")
_http = get_asgi_application()

from fleets.api.consumers import websocket_urlpatterns  # noqa: E402  (models can be imported only now)

# Every socket authenticates by its Authorization header, which no page can set: the Origin, which agents do not send, adds nothing.
application = ProtocolTypeRouter({"http": _http, "websocket": URLRouter(websocket_urlpatterns)})
