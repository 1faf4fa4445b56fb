"""Draws a new generation for the nodes named on stdin, as services do, and prints when that was committed."""

from __future__ import annotations

import sys
import time


def main() -> None:
    import django

    django.setup()

    from fleets.services.launch import nodes_touch

    names = sys.stdin.read().split()
    began = time.time()
    nodes_touch(names)
    print(began)


if __name__ == "__main__":
    main()
