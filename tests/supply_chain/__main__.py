"""`python -m tests.supply_chain sbom`, or `audit`: exit code 1 for a known vulnerability.

When the database of advisories is out of reach, `audit` says so and ends with 0, or with 2 if
REQUIRE_ADVISORIES=1 demands it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from tests.supply_chain.audit import ask, verdict
from tests.supply_chain.bill import ROOT, install, lacking, list_of

DIST = ROOT / "dist"
BILL = DIST / "sbom.json"


def make_bill() -> int:
    python = install(DIST / "runtime")
    BILL.write_text(json.dumps(list_of(python), indent=1, sort_keys=True) + "\n")
    missing = lacking(json.loads(BILL.read_text()), python)
    for one in missing:
        print(f"{BILL.name} lacks {one}", file=sys.stderr)
    found = len(json.loads(BILL.read_text())["components"])
    print(f"{BILL.relative_to(ROOT)}: Octavo and {found} packages")
    return 1 if missing else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.supply_chain", description=__doc__)
    parser.add_argument("what", choices=("sbom", "audit"))
    what = parser.parse_args().what
    if what == "sbom":
        return make_bill()
    if not BILL.exists() and (failed := make_bill()):
        return failed
    told = verdict(ask(json.loads(BILL.read_text())))
    print(told.text)
    if told.known_bad:
        return 1
    return 2 if told.unknown and os.environ.get("REQUIRE_ADVISORIES") == "1" else 0


if __name__ == "__main__":
    sys.exit(main())
