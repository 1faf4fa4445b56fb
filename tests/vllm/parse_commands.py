"""Run by vLLM's own Python: hands every command line on standard input to the parser of `vllm serve`; says which it refuses."""

from __future__ import annotations

import json
import sys

from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> int:
    """Exit status: how many were refused."""
    parser = FlexibleArgumentParser()
    ServeSubcommand().subparser_init(parser.add_subparsers(dest="command"))
    refused = 0
    for name, argv in json.load(sys.stdin).items():
        try:
            parser.parse_args(argv[1:])
        except SystemExit:
            refused += 1
            print(f"refused: {name}: {' '.join(argv)}")
    return refused


if __name__ == "__main__":
    sys.exit(main())
