"""Chunked framing (RFC 9112, 7.1) of engines' answers, by hand: most reads hold whole chunks, and then nothing is copied."""

from __future__ import annotations

import re

SIZES_MAX = 4096
LINE_MAX_BYTES = 1024  # of a chunk's size with its extensions, or of a trailer field
_SIZE = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n\x00]*)?\Z")
_BACKSLASH = 0x5C
_TEXT_MARKS = (b'"content":"', b'"text":"', b'"content": "', b'"text": "', b'"reasoning_content":"')

_sizes: dict[bytes, int] = {}  # sizes by their line: a lookup is cheaper than a number


class ChunkError(Exception):
    """Not chunked framing."""


def size_of(line: bytes) -> int:
    """The size that a chunk's first line says, without its CRLF. Raises ChunkError."""
    size = _sizes.get(line)
    if size is None:
        found = _SIZE.match(line)
        if found is None:
            raise ChunkError("a chunk has no size")
        size = int(found[1], 16)
        if len(_sizes) < SIZES_MAX and len(line) <= 8:
            _sizes[line] = size
    return size


def whole_chunks(data: bytes) -> int:
    """How far `data` is chunks that each end with an event of a stream: 0 when not all of it is.

    The last chunk, of size 0, counts when there is no trailer; then the result is negative.
    """
    at, total = 0, len(data)
    find, sizes = data.find, _sizes
    while at < total:
        stop = find(b"\r\n", at, at + 16)
        if stop < 0:
            return 0
        size = sizes.get(data[at:stop])
        if size is None:
            return 0
        if not size:
            return -total if stop + 4 == total and data.endswith(b"\r\n\r\n") else 0
        at = stop + size + 4
        if data[at - 4 : at] != b"\n\n\r\n":
            return 0
    return at if at == total else 0


def text_chunks(data: bytes, before: bytes, after: bytes) -> tuple[int, int]:
    """How many chunks `data` begins with that are each one event with these bytes around its text, and where they end.

    The text is a JSON string without any escaped quotation mark, and not empty. `after` ends with the chunk's own CRLF.
    """
    at, total, count = 0, len(data), 0
    find, sizes, least, head = data.find, _sizes, len(before) + len(after) - 2, len(before)
    while at < total:
        stop = find(b"\r\n", at, at + 12)
        size = sizes.get(data[at:stop])
        if size is None or size <= least:
            break
        start = stop + 2
        end = start + size + 2
        if end > total or not data.startswith(before, start) or not data.endswith(after, start, end):
            break
        if find(b'"', start + head, end - len(after)) >= 0:
            break
        at = end
        count += 1
    return count, at


def template_of(data: bytes) -> tuple[bytes, bytes] | None:
    """What is around the text of the first chunk; None when it is not one event with a text. Raises ChunkError."""
    start = data.find(b"\r\n", 0, 12) + 2
    if start < 2:
        return None
    end = start + size_of(data[: start - 2]) + 2
    if data[end - 4 : end] != b"\n\n\r\n" or not data.startswith(b"data: {", start) or data.find(b"\n", start, end - 4) >= 0:
        return None
    for mark in _TEXT_MARKS:
        at = data.find(mark, start, end)
        if at >= 0:
            at += len(mark)
            quote = data.find(b'"', at, end)
            if quote <= at or data[quote - 1] == _BACKSLASH:  # an empty text, or one with an escaped quotation mark
                return None
            return data[start:at], data[quote:end]
    return None


class Unchunker:
    """Takes chunked bytes in any pieces."""

    __slots__ = ("_left", "_line", "_trailer", "done", "rest")

    def __init__(self) -> None:
        self._left = -1  # bytes of the chunk that are still to come, with its CRLF; -1: its first line is next
        self._line = b""  # the beginning of a line
        self._trailer = False
        self.done = False
        self.rest = b""  # what came behind the end

    @property
    def between(self) -> bool:
        """Nothing of a chunk has begun."""
        return self._left < 0 and not self._line and not self._trailer

    def feed(self, data: bytes) -> bytes:
        """The content that came with `data`. Raises ChunkError."""
        parts: list[bytes] = []
        if self._line:
            data, self._line = self._line + data, b""
        at, total = 0, len(data)
        while at < total and not self.done:
            if self._left >= 0:
                at = self._content(data, at, parts)
                continue
            stop = data.find(b"\r\n", at)
            if stop < 0:
                self._line = data[at:]
                if len(self._line) > LINE_MAX_BYTES:
                    raise ChunkError("a chunk's line does not end")
                break
            self._new_line(data[at:stop])
            at = stop + 2
        if self.done:
            self.rest = data[at:]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _new_line(self, line: bytes) -> None:
        if self._trailer:
            self.done = not line
            return
        size = size_of(line)
        if size:
            self._left = size + 2
        else:
            self._trailer = True

    def _content(self, data: bytes, at: int, parts: list[bytes]) -> int:
        """Take what there is of the present chunk; returns where it ends in `data`."""
        have = len(data) - at
        content = min(max(0, self._left - 2), have)
        if content:
            parts.append(data[at : at + content] if content < len(data) else data)
            at += content
            self._left -= content
        end = min(len(data) - at, self._left) if self._left <= 2 else 0
        if end:
            if data[at : at + end] != b"\r\n"[2 - self._left :][:end]:
                raise ChunkError("a chunk is longer than its size")
            at += end
            self._left -= end
            if not self._left:
                self._left = -1
        return at


def content_of(data: bytes) -> bytes:
    """The content of whole chunks."""
    return Unchunker().feed(data)
