"""Django settings. What may differ between two installations comes from the environment (denvweb.env)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from denvweb import env
from denvweb.oidc import oidc_from_env

BASE_DIR = Path(__file__).resolve().parent.parent

DEBUG = env.read_bool("DENV_DEBUG")
SECRET_KEY = env.read("DENV_SECRET_KEY", env.KNOWN_KEY)
SECRET_KEY_FALLBACKS = env.read_list("DENV_SECRET_KEY_OLD")  # still read with, so that the key can be changed
ALLOWED_HOSTS = env.read_list("DENV_ALLOWED_HOSTS", ("127.0.0.1", "localhost", "[::1]"))
CSRF_FAILURE_VIEW = "denvweb.uncaught.csrf_failure"
CSRF_TRUSTED_ORIGINS = env.read_list("DENV_TRUSTED_ORIGINS")
HTTPS_ONLY = env.read_bool("DENV_HTTPS_ONLY")
env.require_secret_key(SECRET_KEY, for_others=HTTPS_ONLY)

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "django_htmx",
    "denvweb.apps.DenvwebConfig",
    "metrics.apps.MetricsConfig",
    "fleets.apps.FleetsConfig",
    "releases.apps.ReleasesConfig",
    "frontend.apps.FrontendConfig",
]

MIDDLEWARE = [
    "denvweb.middleware.RequestIdMiddleware",
    "denvweb.middleware.CleanUrlMiddleware",
    "denvweb.middleware.ProgramsMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "denvweb.static_files.StaticFilesMiddleware",
    "denvweb.middleware.ContentSecurityPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "denvweb.urls"
ASGI_APPLICATION = "denvweb.asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

_database = env.parse_database_url(env.read("DATABASE_URL", "postgresql://denv:denv@127.0.0.1:5432/denv"))
_pool_size = int(env.read("DENV_DB_POOL", "0"))
DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _database.name,
        "USER": _database.user,
        "PASSWORD": _database.password,
        "HOST": _database.host,
        "PORT": _database.port,
        "CONN_HEALTH_CHECKS": True,
        # A pool where DENV_DB_POOL says how large (the web process): under ASGI each request may run on another thread,
        # and a connection kept per thread would leak.
        "OPTIONS": {**_database.options, **({"pool": {"min_size": 1, "max_size": _pool_size, "timeout": 5}} if _pool_size else {})},
    }
}

REDIS_URL = env.read("REDIS_URL", "redis://127.0.0.1:6379/0")
CHANNEL_LAYERS: dict[str, dict[str, Any]] = {
    "default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": [REDIS_URL], "prefix": "denv"}}
}

PASSWORD_HASHERS = ["django.contrib.auth.hashers.Argon2PasswordHasher"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
# What everybody with an account may do with every model, beside what they are granted: a role of denvweb.access.
DEFAULT_ROLE = env.read("DENV_DEFAULT_ROLE", "viewer")

LOGIN_URL = "/login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login"

OIDC = oidc_from_env()  # the provider that people may sign in through, None for none

SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS_ONLY
SESSION_COOKIE_HTTPONLY = True
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS_ONLY else 0
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS_ONLY else None
X_FRAME_OPTIONS = "DENY"

LANGUAGE_CODE = "en"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"

STATIC_URL = "/static/"
WHITENOISE_USE_FINDERS = True  # nothing to collect by hand: the files are served from the packages that own them
WHITENOISE_AUTOREFRESH = DEBUG

API_REQUESTS_PER_S = float(env.read("DENV_API_REQUESTS_PER_S", "50"))  # of one caller, over time; ten seconds' worth at once

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["denvweb.auth.ApiTokenAuthentication", "denvweb.auth.ProvenSessionAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["denvweb.api.CleanJSONParser"],
    "DEFAULT_THROTTLE_CLASSES": ["denvweb.throttle.CallerThrottle"],
    "DEFAULT_SCHEMA_CLASS": "denvweb.openapi.DenvSchema",
    "EXCEPTION_HANDLER": "metrics.api.audit.exception_handler",
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "denv",
    "VERSION": "0.1.0",
    "DESCRIPTION": "The control plane's REST API. Everything that the dashboard and the denv command do.",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "POSTPROCESSING_HOOKS": ["drf_spectacular.hooks.postprocess_schema_enums", "denvweb.openapi.stream_add"],
    "ENUM_NAME_OVERRIDES": {
        "NodeState": "fleets.domain.types.NodeState",
        "ReplicaState": "fleets.domain.views.ReplicaState",
        "PoolRole": "fleets.domain.types.Role",
    },
}

DATA_UPLOAD_MAX_MEMORY_SIZE = 16 * 2**20  # a router's report after a long cut, or a spec file that is refused with a good message

PUBLIC_URL = env.read("DENV_PUBLIC_URL", "http://127.0.0.1:8080").rstrip("/")  # where people reach the dashboard; links in Slack begin so
SLACK_API_URL = env.read("DENV_SLACK_API_URL", "https://slack.com/api/")
SLACK_HOOKS_URL = env.read("DENV_SLACK_HOOKS_URL", "https://hooks.slack.com")

CELERY_BROKER_URL = REDIS_URL

LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"()": "denvweb.logs.LineFormatter"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": env.read("DENV_LOG_LEVEL", "INFO")},
    "loggers": {"django.request": {"level": "ERROR"}, "httpx": {"level": "WARNING"}, "uvicorn.access": {"level": "WARNING"}},
}
