"""One line a record, in UTC, with the request id where there is one; secrets are taken out."""

from __future__ import annotations

import logging
import re
import time
from contextvars import ContextVar

request_id: ContextVar[str] = ContextVar("request_id", default="")
proof: ContextVar[str] = ContextVar("proof", default="")  # how the caller proved who they are: `session`, `token tok-...`

_SECRET = re.compile(r"((?:Bearer\s+|tok-|join-|node-|router-)[\w-]{4,}\.|xox[a-z]-|xapp-)[\w-]{8,}")


class LineFormatter(logging.Formatter):
    """`2026-11-30T09:44:02Z INFO releases.reconcile [req-1] sentence`."""

    def format(self, record: logging.LogRecord) -> str:
        mark = f" [{request_id.get()}]" if request_id.get() else ""
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        head = f"{at} {record.levelname} {record.name}{mark} "
        text = head + record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return _SECRET.sub(r"\1***", text)
