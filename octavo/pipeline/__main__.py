"""Jobs without the `octavo` command: `python -m octavo.pipeline JOB …`, and for `spark-submit`.

    spark-submit --master spark://host:7077 octavo/pipeline/__main__.py verify flights

The package must be there for the driver's and the executors' Python (docs/spark.md).
"""

from __future__ import annotations

import sys

from octavo.cli.main import main

if __name__ == "__main__":
    main(["pipeline", *sys.argv[1:]])
