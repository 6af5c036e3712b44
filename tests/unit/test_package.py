"""The package, its supply chain, and the compose files."""

from __future__ import annotations

import dataclasses
import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tarfile
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from packaging.requirements import Requirement

import octavo
from octavo.bookie.config import BookieConfig
from octavo.broker.config import BrokerConfig
from octavo.broker.http.config import HttpConfig
from octavo.ledger.options import LedgerOptions
from octavo.settings import NOT_SETTINGS, ProcessConfig, load
from tests.supply_chain.audit import Asked, ask, verdict
from tests.supply_chain.bill import installed, lacking, list_of

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT: dict[str, Any] = PYPROJECT["project"]
PACKAGES: list[str] = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
REQUIRED: list[str] = sorted(
    {
        *PYPROJECT["build-system"]["requires"],
        *PROJECT["dependencies"],
        *(one for extra in PROJECT["optional-dependencies"].values() for one in extra),
    }
)


def test_the_license_that_is_named_is_the_one_that_is_there() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert PROJECT["license-files"] == ["LICENSE"]
    text = (ROOT / "LICENSE").read_text()
    assert text.split()[:4] == ["Apache", "License", "Version", "2.0,"]
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_changelog_begins_with_this_version() -> None:
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest
    assert newest[1] == octavo.__version__


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_that_it_is_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


@pytest.mark.parametrize("text", [one for one in REQUIRED if not one.startswith("octavo")])
def test_a_clone_of_today_builds_in_a_year(text: str) -> None:
    """The next release that may break us is excluded, and the tests' own versions are allowed."""
    required = Requirement(text)
    assert any(one.operator == "<" for one in required.specifier), "no upper bound"
    try:
        installed = version(required.name)
    except PackageNotFoundError:
        return  # an optional one, or one for building only
    assert required.specifier.contains(installed, prereleases=True)


# The installed package: one name among a user's own modules, whatever their names.
LAYERS = ("bookie", "broker", "ledger", "metadata", "protocol")


def call(*command: str | Path, folder: Path, **environment: str) -> str:
    left_out = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    inherited = {name: value for name, value in os.environ.items() if name not in left_out}
    done = subprocess.run(
        [str(one) for one in command],
        cwd=folder,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(folder: Path, into: Path, kind: str) -> Path:
    call(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", into, folder=folder)
    (found,) = into.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    call(sys.executable, "-m", "venv", "--without-pip", folder, folder=ROOT)
    found = folder / "bin" / "python"
    call(
        *(sys.executable, "-m", "pip", "--python", found, "install", "--quiet", "--no-deps"),
        *("--no-index", wheel),
        folder=ROOT,
    )
    (site,) = folder.glob("lib/python*/site-packages")
    # A plain path: .pth files in there, such as an editable install's, are not read.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return found


@pytest.fixture
def users_folder(tmp_path: Path) -> Path:
    """A user's project, whose modules have names like those of our layers."""
    for layer in LAYERS:
        if layer in ("broker", "bookie"):
            (tmp_path / layer).mkdir()
            (tmp_path / layer / "__init__.py").write_text("MINE = True\n")
        else:
            (tmp_path / f"{layer}.py").write_text("MINE = True\n")
    return tmp_path


@pytest.mark.long
def test_a_users_own_modules_are_theirs_and_ours_are_ours(python: Path, users_folder: Path) -> None:
    asked = (
        "import sys\n"
        "from octavo import Client\n"
        "import octavo.bookie.node, octavo.broker.broker, octavo.ledger.client\n"
        "import octavo.cli.main, octavo.metadata.embedded, octavo.protocol.frames\n"
        "import bookie, broker, ledger, metadata, protocol\n"
        "assert all(one.MINE for one in (bookie, broker, ledger, metadata, protocol))\n"
        "print(octavo.__file__, octavo.bookie.node.__name__, Client.__name__)\n"
    )
    (users_folder / "asked.py").write_text(asked)
    told = call(python, "asked.py", folder=users_folder).split()
    assert told[1:] == ["octavo.bookie.node", "Client"]
    assert Path(told[0]).is_relative_to(python.parent.parent), "not the clone's"
    assert "octavo" in call(python.parent / "octavo", "--version", folder=users_folder)


@pytest.mark.long
@pytest.mark.parametrize("layer", LAYERS)
def test_nobody_imports_a_layer_by_its_short_name(layer: str, python: Path, tmp_path: Path) -> None:
    asked = f"import importlib.util; print(importlib.util.find_spec({layer!r}))"
    assert call(python, "-c", asked, folder=tmp_path).strip() == "None"


def test_the_wheel_has_every_module_once_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"octavo", "pyspark_octavo"}
    found = sorted(name for name in names if name.endswith(".py"))
    there = []
    for package in ("octavo", "pyspark_octavo"):
        for folder, _, files in os.walk(ROOT / package, followlinks=True):
            inside = Path(folder).relative_to(ROOT).as_posix()
            there += [f"{inside}/{one}" for one in files if one.endswith(".py")]
    assert found == sorted(there)
    assert all(f"octavo/{layer}/__init__.py" in found for layer in LAYERS)
    assert "octavo/py.typed" in names


def test_a_wheel_made_of_the_source_archive_is_the_same(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(built(ROOT, tmp_path, "sdist")) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (folder,) = (tmp_path / "unpacked").iterdir()
    other = built(folder, tmp_path / "other", "wheel")
    names = [zipfile.ZipFile(one).namelist() for one in (wheel, other)]
    assert sorted(names[0]) == sorted(names[1])


# The list of Octavo's parts is complete, and an audit without data does not report success.
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


# Settings and metrics in compose/ exist in bookies and brokers.
COMPOSE = ROOT / "compose"
METRICS = (ROOT / "docs" / "operations.md").read_text().split("## Metrics")[1]
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
KINDS: dict[str, Any] = {
    "bookie": BookieConfig,
    "broker": BrokerConfig,
    "http": HttpConfig,
    "ledger": LedgerOptions,
    "": ProcessConfig,
}
SETTINGS = NOT_SETTINGS | {
    f"OCTAVO_{section}_{field.name}".replace("__", "_").upper()
    for section, kind in KINDS.items()
    for field in dataclasses.fields(kind)
}
KNOWN_METRICS = set(re.findall(r"`((?:bookie|octavo)_\w+)`", METRICS.split("## Settings")[0]))
EXPRESSIONS = re.compile(r"\b((?:bookie|octavo)_\w+)")


def metrics_in(expression: str) -> set[str]:
    """Return the metrics that a PromQL expression reads; for a histogram's series its name."""
    found = set(EXPRESSIONS.findall(expression))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((COMPOSE / "prometheus" / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    return found


def kubernetes() -> list[dict[str, Any]]:
    folder = COMPOSE / "kubernetes"
    return [part for path in folder.glob("*.yaml") for part in yaml.safe_load_all(path.read_text())]


def workloads() -> list[dict[str, Any]]:
    return [one for one in kubernetes() if one["kind"] in ("StatefulSet", "Deployment")]


def compose_schema() -> jsonschema_rs.Draft7Validator:
    text = (ROOT / "tests/fixtures/compose-spec/compose-spec.json").read_text()
    return jsonschema_rs.Draft7Validator(json.loads(text))


def test_the_file_is_of_the_compose_specification() -> None:
    found = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    problems = [
        f"{error.instance_path}: {error.message}" for error in compose_schema().iter_errors(found)
    ]
    assert not problems


def test_a_word_that_compose_does_not_know_is_found() -> None:
    found = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    found["services"]["broker-1"]["depend_on"] = ["zookeeper"]
    (problem,) = compose_schema().iter_errors(found)
    assert "depend_on" in problem.message


def test_zookeeper_ends_sessions_soon_after_their_timeout_wherever_we_configure_it() -> None:
    (of_kubernetes,) = (
        {one["name"]: one.get("value") for one in container["env"]}
        for workload in workloads()
        for container in workload["spec"]["template"]["spec"]["containers"]
        if container["name"] == "zookeeper"
    )
    for environment in (services()["zookeeper"]["environment"], of_kubernetes):
        tick_ms = int(environment["ZOO_TICK_TIME"])
        extra = dict(one.split("=") for one in environment["ZOO_CFG_EXTRA"].split())
        assert 1.5 * tick_ms <= 100, "half of what a take-over may take beyond the session"
        assert int(environment["ZOO_INIT_LIMIT"]) * tick_ms == 10_000
        assert int(environment["ZOO_SYNC_LIMIT"]) * tick_ms == 4_000
        assert int(extra["maxSessionTimeout"]) >= ProcessConfig().session_timeout_ms


def test_every_variable_is_a_setting() -> None:
    told = {name for service in services().values() for name in service.get("environment", {})}
    for path in (COMPOSE / "systemd").glob("*.env"):
        told |= set(re.findall(r"^(\w+)=", path.read_text(), re.MULTILINE))
    for workload in workloads():
        for container in workload["spec"]["template"]["spec"]["containers"]:
            told |= {variable["name"] for variable in container.get("env", [])}
    assert {name for name in told if name.startswith("OCTAVO_")} <= SETTINGS
    assert len({name for name in told if name.startswith("OCTAVO_")}) > 5


def toml_files() -> dict[str, str]:
    found = {str(path.relative_to(COMPOSE)): path.read_text() for path in COMPOSE.rglob("*.toml")}
    maps = [one for one in kubernetes() if one["kind"] == "ConfigMap"]
    return found | {name: text for one in maps for name, text in one["data"].items()}


@pytest.mark.parametrize("text", toml_files().values(), ids=list(toml_files()))
def test_every_settings_file_loads(text: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("OCTAVO_BOOKIE_ADVERTISED_HOST", "bookie-1")
    monkeypatch.setenv("OCTAVO_BROKER_ADVERTISED_HOST", "broker-1")
    monkeypatch.setenv("OCTAVO_BOOKIE_JOURNAL_DIRECTORIES", "/data/journal")
    monkeypatch.setenv("OCTAVO_BOOKIE_LEDGER_DIRECTORIES", "/data/ledgers")
    file = tmp_path / "octavo.toml"
    file.write_text(text)
    for section, kind in KINDS.items():
        load(kind, section, file=file)
    assert tomllib.loads(text)["bookie"]["admin_port"] == 9181


def test_bookies_have_ids_volumes_and_racks_of_their_own() -> None:
    bookies = {name: one for name, one in services().items() if name.startswith("bookie-")}
    ids = {one["environment"]["OCTAVO_BOOKIE_BOOKIE_ID"] for one in bookies.values()}
    volumes = {one["volumes"][1] for one in bookies.values()}
    racks = {one["environment"]["OCTAVO_BOOKIE_RACK"] for one in bookies.values()}
    assert ids == set(bookies)
    assert volumes == {f"{name}:/var/lib/octavo" for name in bookies}
    assert (len(bookies), len(racks)) == (5, 2)


def test_every_node_is_scraped() -> None:
    jobs = yaml.safe_load((COMPOSE / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    targets = {target for job in jobs for target in job["static_configs"][0]["targets"]}
    nodes = {name for name in services() if name.startswith(("bookie-", "broker-"))}
    ports = {"bookie": 9181, "broker": 8080}
    assert targets == {f"{name}:{ports[name.split('-')[0]]}" for name in nodes}


def test_stops_are_given_their_time() -> None:
    """A process ends a hanging stop after 40 s; it may not be killed before that."""
    for name, service in services().items():
        if name.startswith(("bookie-", "broker-")):
            assert service["stop_grace_period"] == "45s"
    for workload in workloads():
        spec = workload["spec"]["template"]["spec"]
        if workload["metadata"]["name"] in ("bookie", "broker"):
            assert spec["terminationGracePeriodSeconds"] == 45
        assert spec["enableServiceLinks"] is False  # OCTAVO_…_PORT of a service is no setting
    for path in (COMPOSE / "systemd").glob("*.service"):
        assert "\nTimeoutStopSec=45\n" in path.read_text()


def test_dashboard_and_alerts_read_metrics_that_exist() -> None:
    dashboard = json.loads((COMPOSE / "grafana" / "dashboards" / "octavo.json").read_text())
    expressions = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])
    ]
    expressions += [rule["expr"] for rule in alerts()]
    expressions += re.findall(r"```promql\n(.*?)```", RUNBOOK, re.DOTALL)
    for expression in expressions:
        assert metrics_in(expression) <= KNOWN_METRICS, expression
    assert len(expressions) > 40


def test_the_runbook_has_a_section_for_each_alert_and_no_other() -> None:
    assert set(re.findall(r"^### (Octavo\w+)", RUNBOOK, re.MULTILINE)) == {
        rule["alert"] for rule in alerts()
    }


# ---- what a process that was taken over may do to its machine


def test_containers_have_no_rights_that_they_do_not_need() -> None:
    for name, service in services().items():
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name
        for key in ("network_mode", "pid", "ipc", "cap_add", "devices"):
            assert key not in service, name
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} is reached from this machine only"
        for volume in service.get("volumes", []):
            source, _, options = volume.partition(":")
            assert not source.startswith("/"), "nothing of the machine but what lies beside"
            assert source.startswith(".") == options.endswith(":ro"), name
        if name.startswith("zookeeper"):
            continue
        assert service["cap_drop"] == ["ALL"], name
        if name == "grafana":
            continue
        assert service["read_only"] is True, name
        if name != "prometheus":
            assert service["user"] == "10001:10001", name
            assert service["tmpfs"], name


def test_the_image_runs_as_its_own_user_by_number() -> None:
    for path in (COMPOSE / "Dockerfile", COMPOSE / "spark" / "Dockerfile"):
        stages = re.split(r"^FROM ", path.read_text(), flags=re.MULTILINE)
        assert re.findall(r"^USER (.*)$", stages[-1], re.MULTILINE)[-1] == "10001:10001", path
        assert not re.search(
            r"^ADD |curl|wget|--trusted-host|chmod", path.read_text(), re.MULTILINE
        )
    last = (COMPOSE / "Dockerfile").read_text().rsplit("FROM ", 1)[1]
    assert "COPY --from=build /opt/octavo /opt/octavo" in last, "of root, so that it is not changed"
    assert "--chown" not in last


def test_pods_satisfy_the_restricted_profile() -> None:
    (namespace,) = (one for one in kubernetes() if one["kind"] == "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for workload in workloads():
        spec = workload["spec"]["template"]["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        pod = spec["securityContext"]
        assert pod["runAsNonRoot"] is True
        assert pod["runAsUser"] >= 1000
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            found = container["securityContext"]
            assert found["allowPrivilegeEscalation"] is False
            assert found["capabilities"] == {"drop": ["ALL"]}
            assert found.get("readOnlyRootFilesystem", False) is (container["name"] != "zookeeper")
        for volume in spec.get("volumes", []):
            assert "hostPath" not in volume


def test_pods_are_reached_by_those_who_need_them() -> None:
    policies = {
        one["metadata"]["name"]: one["spec"]
        for one in kubernetes()
        if one["kind"] == "NetworkPolicy"
    }
    assert policies.pop("nobody") == {"podSelector": {}, "policyTypes": ["Ingress"]}
    ports = {
        workload["spec"]["template"]["metadata"]["labels"]["app"]: {
            port["name"]
            for container in workload["spec"]["template"]["spec"]["containers"]
            for port in container["ports"]
        }
        for workload in workloads()
    }
    assert policies.keys() == ports.keys()
    for name, spec in policies.items():
        assert spec["podSelector"] == {"matchLabels": {"app": name}}
        opened = {port["port"] for rule in spec["ingress"] for port in rule["ports"]}
        assert opened == ports[name]
        for rule in spec["ingress"]:
            assert "from" in rule or name == "broker"


def units() -> list[Path]:
    return sorted((COMPOSE / "systemd").glob("*.service"))


@pytest.mark.parametrize("unit", units(), ids=lambda unit: unit.name)
def test_services_may_write_to_their_own_folder_alone(unit: Path) -> None:
    text = unit.read_text()
    found = dict(re.findall(r"^(\w+)=(.*)$", text.split("[Service]")[1], re.MULTILINE))
    assert found["User"] == "octavo"
    assert found["ProtectSystem"] == "strict"
    assert found["CapabilityBoundingSet"] == ""
    assert found["UMask"] == "0077"
    for name in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices", "PrivateUsers"):
        assert found[name] == "true", name
    assert "ReadWritePaths" not in found
    assert ("StateDirectory" in found) is unit.name.startswith("octavo-bookie")


@pytest.mark.parametrize("unit", units(), ids=lambda unit: unit.name)
def test_systemd_finds_little_that_services_could_do_to_a_machine(unit: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("no systemd-analyze here")
    done = subprocess.run(
        [tool, "security", "--offline=yes", "--no-pager", "--threshold=15", str(unit)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
