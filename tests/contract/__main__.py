"""Start a server with something in it, and let Schemathesis send it all that the document allows and much that it does not."""

from __future__ import annotations

import argparse
import subprocess
import sys


def main() -> int:
    """The exit code of Schemathesis."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemathesis", default="schemathesis", help="the program")
    parser.add_argument("--examples", default="25", help="of each operation")
    parser.add_argument("--seed", default="1")
    options = parser.parse_args()
    argv = [sys.executable, "-m", "tests.contract.serve"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stdin is not None
        url, token = server.stdout.readline().split()
        # `positive_data_acceptance` wants no 400 for what fits the schema. Asked of GETs alone it finds cursors that name nothing and
        # spans that are none (`since=soon`), each refused with its field; of POSTs, files that are no release and keys of other requests.
        # No schema can say either, so the check would only ever find those.
        # The stream never ends, so it is not asked; its tests are in tests/integration/test_metrics_api.py.
        answer = subprocess.run(
            [
                options.schemathesis, "run", f"{url}/api/schema/", "--url", url, "--header", f"Authorization: Bearer {token}",
                "--exclude-path", "/api/v1/stream", "--checks", "all",
                "--exclude-checks", "positive_data_acceptance", "--max-examples", options.examples, "--seed", options.seed,
                "--phases", "examples,coverage,fuzzing", "--request-timeout", "20", "--continue-on-failure",
            ],
            check=False,
        )  # fmt: skip
        server.stdin.close()  # which ends it
    return answer.returncode


if __name__ == "__main__":
    sys.exit(main())
