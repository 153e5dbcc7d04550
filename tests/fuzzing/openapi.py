"""Requests that schemathesis makes of the OpenAPI document, against a live node
(`pip install 'millrace[fuzz]'`): `make fuzz-openapi SECONDS=600`.

No request, right or wrong, is answered by a 5xx; no answer differs from the schema that the document has for
it; and nothing reaches the log as an error. The type of the content is not checked: what the parser of HTTP
refuses itself is answered in plain text.
"""

import argparse
import logging
import subprocess
import sys

from e2e.raw_peer import others_are_served
from fuzzing.inputs import Errors, node, warm_up

CHECKS = ("not_a_server_error", "response_schema_conformance")
# They end the node's service, answer for as long as somebody listens, or are errors that somebody reports.
LEFT_OUT = "drain|/remove|/live|/tail|/cluster/|/pipelines/"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--examples", type=int, default=1_000, help="of each operation, at most")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    errors = Errors()
    logging.getLogger().addHandler(errors)
    with node() as broker:
        warm_up(broker)
        url = f"http://127.0.0.1:{broker.ports['http']}/openapi.json"
        words = [
            *("run", url, "--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing"),
            *("--exclude-path-regex", LEFT_OUT, "--max-time", str(given.seconds)),
            *("--max-examples", str(given.examples), "--seed", str(given.seed)),
            *(
                "--auth",
                "root:pw",
                "--continue-on-failure",
                "--no-color",
                "--warnings",
                "off",
                "--request-timeout",
                "60",
            ),
        ]
        command = [sys.executable, "-m", "schemathesis.cli", *words]
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        print(done.stdout)
        others_are_served(broker)
    for text in errors.found[:5]:
        print(f"error in the log: {text}")
    # Without failures its status is 1 as well where a connection was reset, as it is behind a request line of
    # more than 64 KiB: the parser refuses that and leaves the rest unread.
    return 1 if "= FAILURES =" in done.stdout or errors.found else 0


if __name__ == "__main__":
    raise SystemExit(main())
