"""All URLs: health, the REST API, what agents and routers use, and the pages."""

from __future__ import annotations

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path
from drf_spectacular.views import SpectacularAPIView

from denvweb import health
from frontend.pages.login import admin_login
from frontend.prometheus.view import PrometheusView

handler400, handler403 = "denvweb.uncaught.bad_request", "denvweb.uncaught.forbidden"
handler404, handler500 = "denvweb.uncaught.not_found", "denvweb.uncaught.server_error"

urlpatterns: list[URLPattern | URLResolver] = [
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("metrics", PrometheusView.as_view(), name="prometheus"),
    path("api/schema/", SpectacularAPIView.as_view(), name="schema"),
    path("api/v1/", include("denvweb.account")),
    path("api/v1/", include("denvweb.grants")),
    path("api/v1/", include("releases.api.urls")),
    path("api/v1/", include("fleets.api.urls")),
    path("api/v1/", include("metrics.api.urls")),
    path("api/v1/", include("frontend.api.urls")),
    path("", include("fleets.api.program_urls")),
    path("admin/login/", admin_login),
    path("admin/", admin.site.urls),
    path("", include("frontend.urls")),
]
