"""A rank behind rank 0 of a simulated replica: it joins the gang, stays while the gang lives, and dies with it.

Stand-alone and of the standard library alone (`python -I -S`), because a 64-GPU replica has fifteen of these on one laptop.
Exit status: 3 when the gang broke, 4 when the leader was not there in time, 5 when it refused this rank.
"""

from __future__ import annotations

import os
import socket
import sys
import time

EXIT_GANG_BROKEN = 3
EXIT_NO_LEADER = 4
EXIT_REFUSED = 5
HANDSHAKE_S = 10.0
RETRY_FIRST_S = 0.1
RETRY_CAP_S = 1.0
SILENCE_BEATS = 6  # heartbeats missed in a row before the leader counts as gone


def say(text: str) -> None:
    """One line to the log, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def connect(host: str, port: int, deadline_s: float) -> socket.socket | None:
    """A connection to the leader, tried until the deadline; None when it never answered."""
    end = time.monotonic() + deadline_s
    wait_s = RETRY_FIRST_S
    while True:
        try:
            return socket.create_connection((host, port), timeout=HANDSHAKE_S)
        except OSError:
            if time.monotonic() + wait_s > end:
                return None
            time.sleep(wait_s)
            wait_s = min(RETRY_CAP_S, wait_s * 1.5)


def follow(link: socket.socket) -> int:
    """Answer each heartbeat until the leader goes; `ready` in the log once it says that the gang is complete."""
    pending = b""
    while True:
        try:
            data = link.recv(256)
        except OSError:
            return EXIT_GANG_BROKEN
        if not data:
            return EXIT_GANG_BROKEN
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            word, _, rest = line.partition(b" ")
            if word == b"no":
                say("the leader refuses this rank: " + rest.decode("ascii", "replace"))
                return EXIT_REFUSED
            if word == b"ok":
                link.settimeout(float(rest) * SILENCE_BEATS)
            elif word == b"go":
                say("ready")
            elif word == b"beat":
                try:
                    link.sendall(b"beat\n")
                except OSError:
                    return EXIT_GANG_BROKEN


def main(argv: list[str]) -> int:
    """`--leader HOST:PORT --rank I --replica ID --deadline-s S`."""
    flags = dict(zip(argv[::2], argv[1::2], strict=False))
    host, _, port = flags["--leader"].rpartition(":")
    link = connect(host, int(port), float(flags.get("--deadline-s", "600")))
    if link is None:
        say("the leader did not answer in time")
        return EXIT_NO_LEADER
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    hello = "join {} {} {}\n".format(flags["--replica"], flags["--rank"], os.getpid())
    try:
        link.sendall(hello.encode())
    except OSError:
        return EXIT_GANG_BROKEN
    status = follow(link)
    say("the gang is broken" if status == EXIT_GANG_BROKEN else "ended")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
