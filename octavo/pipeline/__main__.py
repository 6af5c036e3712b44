"""Run a job without the `octavo` command, by `python -m` or `spark-submit`:

spark-submit --master spark://host:7077 octavo/pipeline/__main__.py verify flights
"""

from __future__ import annotations

import sys

from octavo.cli.main import main

if __name__ == "__main__":
    main(["pipeline", *sys.argv[1:]])
