"""Runs a job without the `octavo` command: `python -m octavo.pipeline JOB …`, or `spark-submit`.

    spark-submit --master spark://host:7077 octavo/pipeline/__main__.py verify flights

The Python of the driver and of every executor needs the package octavo (docs/spark.md).
"""

from __future__ import annotations

import sys

from octavo.cli.main import main

if __name__ == "__main__":
    main(["pipeline", *sys.argv[1:]])
