"""The web process: HTTP through Django, WebSockets through Channels."""

from __future__ import annotations

import os

from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "denvweb.settings")
_http = get_asgi_application()

from fleets.api.consumers import websocket_urlpatterns  # noqa: E402  (models can be imported only now)

# The agents' socket has no Origin and carries its own credential; anything else must come from our own pages.
application = ProtocolTypeRouter({"http": _http, "websocket": AllowedHostsOriginValidator(URLRouter(websocket_urlpatterns))})
