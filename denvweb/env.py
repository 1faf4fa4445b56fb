"""Every setting that the environment can give, read once and typed. `NAME_FILE` names a file that holds the value."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit


def read(name: str, default: str = "") -> str:
    """The value of NAME, or the content of the file that NAME_FILE names (so that a secret needs not be in the environment)."""
    path = os.environ.get(f"{name}_FILE")
    if path:
        return Path(path).read_text(encoding="utf-8").strip()
    return os.environ.get(name, default)


def read_bool(name: str, default: bool = False) -> bool:
    """`1`, `true`, `yes` and `on` are true."""
    text = read(name)
    return text.lower() in {"1", "true", "yes", "on"} if text else default


def read_list(name: str, default: tuple[str, ...] = ()) -> list[str]:
    """A list that is written with commas."""
    text = read(name)
    return [part.strip() for part in text.split(",") if part.strip()] if text else list(default)


KNOWN_KEY = "insecure-development-key"


def require_secret_key(key: str, *, for_others: bool) -> None:
    """ValueError where others reach denv and its key is one that everybody knows: with it anybody signs links and reads stored secrets."""
    if for_others and key in ("", KNOWN_KEY):
        raise ValueError(
            "DENV_HTTPS_ONLY is set and DENV_SECRET_KEY is not: set it, or DENV_SECRET_KEY_FILE, to 50 random characters or more"
        )


def home() -> Path:
    """Where denv keeps data, logs and credentials: DENV_HOME, or `~/.denv`."""
    return Path(read("DENV_HOME") or Path.home() / ".denv")


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """The parts of a `postgresql://` URL."""

    name: str
    user: str
    password: str
    host: str
    port: str
    options: dict[str, str]


def parse_database_url(url: str) -> DatabaseUrl:
    """Split a URL; a socket folder may stand in `?host=`, as libpq has it."""
    parts = urlsplit(url)
    if parts.scheme not in {"postgres", "postgresql"}:
        raise ValueError(f"DATABASE_URL must start with postgresql://, not {parts.scheme or url!r}; denv runs on PostgreSQL only")
    options = dict(parse_qsl(parts.query))
    return DatabaseUrl(
        name=unquote(parts.path.lstrip("/")) or "denv",
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        host=options.pop("host", unquote(parts.hostname or "")),
        port=str(parts.port or options.pop("port", "")),
        options=options,
    )
