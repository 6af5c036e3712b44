"""Settings and metrics in compose/ exist in bookies and brokers.

Compose, systemd and Kubernetes files and the dashboard name settings and metrics in their own
formats; nothing else would notice when one is renamed.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from octavo.bookie.config import BookieConfig
from octavo.broker.config import BrokerConfig
from octavo.broker.http.config import HttpConfig
from octavo.ledger.options import LedgerOptions
from octavo.settings import NOT_SETTINGS, ProcessConfig, load

ROOT = Path(__file__).resolve().parents[2]
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
