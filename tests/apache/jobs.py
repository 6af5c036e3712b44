"""`python -m tests.apache.jobs URL FOLDER`: jobs of `octavo pipeline`, all in one Spark session.

Each is the command with its arguments; a line reports its exit code.
"""

from __future__ import annotations

import sys

from octavo.cli.main import run
from octavo.pipeline.session import SparkOptions, session

JOBS = (
    ("audit",),
    ("verify", "quiet"),
    ("scrub",),
    ("compact", "quiet"),
    ("offload", "quiet", "--older-than-s", "0", "--drop-after-s", "0", "--to", "FOLDER"),
    ("verify", "quiet"),
)
"""The last job reads from where the job before it has put the data."""


def main() -> int:
    url, folder = sys.argv[1:]
    codes = []
    with session("jobs", SparkOptions()):
        for words in JOBS:
            given = [folder if word == "FOLDER" else word for word in words]
            codes.append(run(["pipeline", *given, "--url", url, "--json"]))
            print(f"JOB {' '.join(words)}: {codes[-1]}", flush=True)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
