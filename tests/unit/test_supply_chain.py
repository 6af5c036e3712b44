"""The list of Octavo's parts is complete, and an audit without data does not report success."""

from __future__ import annotations

import http.server
import json
import re
import socket
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.supply_chain.audit import Asked, ask, verdict
from tests.supply_chain.bill import ROOT, installed, lacking, list_of

BILL = {"components": [{"name": "idna", "version": "3.6"}, {"name": "yarl", "version": "1.18.3"}]}
ADVISORY = {
    "id": "PYSEC-2024-60", "aliases": ["CVE-2024-3651"], "details": "slow",
    "published": "2024-07-07T18:15:00Z", "modified": "2024-07-11T17:42:00Z",
    "affected": [
        {
            "package": {"ecosystem": "PyPI", "name": "idna"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "3.7"}]}],
            "versions": ["3.6"],
        }
    ],
}  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_list_names_every_package_with_its_version() -> None:
    """For this environment, by the tool that makes the real list; nothing is fetched."""
    python = Path(sys.executable)
    bill = list_of(python)
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "octavo"
    assert lacking(bill, python) == []
    listed = {one["name"].lower(): one for one in bill["components"]}
    assert listed["aiohttp"]["version"] == version("aiohttp")
    assert listed["aiohttp"]["purl"] == f"pkg:pypi/aiohttp@{version('aiohttp')}"
    del bill["components"][bill["components"].index(listed["aiohttp"])]
    listed["kazoo"]["version"] = "1.0"
    assert lacking(bill, python) == [
        "aiohttp, which pyproject.toml names",
        f"aiohttp {version('aiohttp')}, which is installed",
        f"kazoo {version('kazoo')}, which is installed",
    ]


def test_what_is_installed_is_seen() -> None:
    found = installed(Path(sys.executable))
    assert found["aiohttp"] == version("aiohttp")
    assert found["prometheus-client"] == version("prometheus-client"), "by its name at the index"


@pytest.fixture
def database() -> Iterator[str]:
    """An advisory database that knows one bad version of a package."""

    class Osv(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            is_bad = asked["package"]["name"] == "idna" and asked["version"] == "3.6"
            body = json.dumps({"vulns": [ADVISORY]} if is_bad else {}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Osv)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1/query"
    server.shutdown()
    server.server_close()


def test_a_known_vulnerability_is_told_by_its_names(database: str) -> None:
    told = verdict(ask(BILL, "--vulnerability-service", "osv", "--osv-url", database))
    assert told.known_bad
    assert not told.unknown
    assert "idna 3.6: PYSEC-2024-60 CVE-2024-3651, mended in 3.7" in told.text
    assert "2 packages asked about, 1 with" in told.text


def test_good_versions_are_good(database: str) -> None:
    good = {"components": [{"name": "idna", "version": "3.7"}]}
    told = verdict(ask(good, "--vulnerability-service", "osv", "--osv-url", database))
    assert told == ("1 packages asked about, 0 with known vulnerabilities", False, False)


def test_a_database_out_of_reach_is_not_a_clean_list() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1/query"
        told = verdict(ask(BILL, "--vulnerability-service", "osv", "--osv-url", url))
    assert told.unknown
    assert not told.known_bad
    assert told.text.startswith("NOT AUDITED: the advisory database was not in reach (")
    assert "0 with" not in told.text


def test_packages_that_the_database_does_not_know_are_not_counted_as_good() -> None:
    """An index without advisories answers so, and pip-audit says that nothing was found."""
    none: list[dict[str, Any]] = [{"name": "idna", "skip_reason": "Dependency not found on PyPI"}]
    some = [*none, {"name": "yarl", "version": "1.18.3", "vulns": []}]
    assert verdict(Asked(none, "")).text.startswith("NOT AUDITED")
    told = verdict(Asked(some, ""))
    assert told.unknown
    assert told.text.endswith("NOT AUDITED, unknown to the database: idna")


def test_ci_asks_with_no_rights_and_by_actions_that_nobody_can_exchange() -> None:
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}, path
        for job in workflow["jobs"].values():
            for step in job["steps"]:
                assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step.get("uses", "")) or step[
                    "run"
                ].startswith("make "), step
