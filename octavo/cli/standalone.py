"""`octavo standalone`: a whole cluster in one folder, from one command."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.options import BROKER_URL, DATA_FOLDER, AsJson, BadOption, Config, Sets, parse_sets
from octavo.cli.output import emit_json, emit_table, out, say
from octavo.process.spec import SESSION_TIMEOUT_MS

if TYPE_CHECKING:
    from octavo.standalone.cluster_file import ClusterFile, Member
    from octavo.standalone.supervisor import Plan

TOPIC_ENSEMBLE = 3
_CURL = ("--cacert", "--cert", "--key")
EXAMPLE = """\b
Examples:
  octavo standalone --data ./octavo-data
  octavo standalone --data /tmp/x --port-base 0 --json      (any free ports, one JSON line)
  octavo standalone --set bookie.journal_sync=false         (any setting of the processes)
  octavo standalone --data /tmp/z --secure                  (then: octavo acl allow …)
  octavo standalone --data /tmp/y --tls                     (and --set tls.mutual=true)
"""


def standalone(
    data: Annotated[
        Path, typer.Option("--data", envvar="OCTAVO_DATA", help="Folder for everything.")
    ] = DATA_FOLDER,
    bookies: Annotated[int, typer.Option(min=1, max=30, help="Number of bookies.")] = 3,
    brokers: Annotated[int, typer.Option(min=1, max=30, help="Number of brokers.")] = 2,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port_base: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65000,
            help="Brokers from N, bookies from N+50, their admin ports from N+100; 0: free ports. "
            "Default: 8080…, 3181…, 9181….",
            show_default=False,
        ),
    ] = None,
    metadata: Annotated[
        str, typer.Option(help="A metadata store instead of the embedded one (zk://…).")
    ] = "",
    session_timeout_ms: Annotated[
        int, typer.Option(min=500, help="How long a silent process keeps its partitions.")
    ] = SESSION_TIMEOUT_MS,
    restart: Annotated[
        bool, typer.Option("--restart/--no-restart", help="Restart processes that die.")
    ] = True,
    tls: Annotated[
        bool,
        typer.Option("--tls", help="All ports speak TLS, with certificates made in DATA/tls."),
    ] = False,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="Secure the cluster: --tls, and only user:admin may do anything; its token "
            "is in DATA/admin.token. Commands with --data DATA find it.",
        ),
    ] = False,
    config: Config = None,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """Run a whole cluster on this machine: metadata, three bookies, two brokers, in one folder."""
    import asyncio

    from octavo.credentials import credentials_file
    from octavo.settings import ProcessConfig, load
    from octavo.standalone.supervisor import Plan

    process = load(ProcessConfig, "", file=config)
    plan = Plan(
        folder=data,
        bookies=bookies,
        brokers=brokers,
        host=host,
        port_base=port_base,
        metadata_url=metadata,
        metadata_credentials_file=credentials_file(),
        session_timeout_ms=session_timeout_ms,
        restart=restart,
        log_bytes_max=process.log_bytes_max,
        log_files_max=process.log_files_max,
        sections=_sections(config, sets),
        make_certificates=tls or secure,
        secure=secure,
    )
    with asyncio.Runner() as runner:
        code = runner.run(_run(plan, as_json))
    if code:
        raise typer.Exit(code)


standalone.__doc__ = f"{standalone.__doc__}\n\n{EXAMPLE}"


_OWN = {
    "bookie": (
        *("host", "port", "admin_port", "bookie_id"),
        *("journal_directories", "ledger_directories"),
    ),
    "broker": ("host", "port", "broker_id"),
}


def _sections(config: Path | None, sets: list[str] | None) -> dict[str, dict[str, Any]]:
    from octavo.bookie.config import BookieConfig
    from octavo.broker.config import BrokerConfig
    from octavo.broker.http.config import HttpConfig
    from octavo.ledger.options import LedgerOptions
    from octavo.security.keys.config import KeysConfig
    from octavo.security.settings import SecurityConfig
    from octavo.settings import SECTIONS, SettingsError, chosen
    from octavo.tls.settings import TlsConfig

    flags: dict[str, dict[str, object]] = {}
    for name, value in parse_sets(sets).items():
        section, dot, setting = name.partition(".")
        if not dot or section not in SECTIONS:
            raise BadOption(
                f"--set {name}={value}: write section.name=value with one of the sections "
                + ", ".join(SECTIONS)
            )
        flags.setdefault(section, {})[setting] = value
    found: dict[str, dict[str, Any]] = {}
    kinds = (
        *(BookieConfig, BrokerConfig, HttpConfig, LedgerOptions, TlsConfig, KeysConfig),
        SecurityConfig,
    )
    for kind, section in zip(kinds, SECTIONS, strict=True):
        values = chosen(kind, section, file=config, flags=flags.get(section))
        for name in _OWN.get(section, ()):
            if name in values:
                raise SettingsError(
                    f"{section} setting {name} = {values[name]!r}: standalone chooses it for each "
                    f"process; use --data, --host and --port-base"
                )
        found[section] = values
    for name in ("certificate", "key", "ca", "crl"):
        if found["tls"].get(name):  # the processes may have another working folder
            found["tls"][name] = str(Path(found["tls"][name]).absolute())
    return found


async def _run(plan: Plan, as_json: bool) -> int:
    import asyncio
    import signal

    from octavo.logs import configure_logging
    from octavo.standalone.supervisor import Supervisor

    configure_logging(service="supervisor", form="console", level="warning")
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    started = loop.time()

    def on_change(member: Member) -> None:
        if supervisor.cluster.ready and member.state == "running" and member.restarts:
            say(f"{member.name} is back (pid {member.pid})")

    supervisor = Supervisor(plan, on_change)
    starting = asyncio.create_task(supervisor.start())
    asked = asyncio.create_task(stopped.wait())
    await asyncio.wait((starting, asked), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
    try:
        await starting
    except asyncio.CancelledError:
        return 130
    took_s = loop.time() - started
    _announce(supervisor.cluster, took_s, as_json)
    if plan.bookies < TOPIC_ENSEMBLE:
        say(
            f"with {plan.bookies} bookies, topics need --ensemble {plan.bookies} "
            f"--write-quorum {plan.bookies} (their default is {TOPIC_ENSEMBLE})"
        )
    await asked
    say("stopping …")
    await supervisor.stop()
    say("stopped")
    return 0


def _admin_url(member: Member, scheme: str) -> str:
    host = member.address.rpartition(":")[0]
    return f"{scheme}://{host}:{member.admin_port}" if member.admin_port else ""


def _how_commands_find_it(cluster: ClusterFile) -> str:
    """Return the `export` line that commands need to find the cluster; empty if they need none."""
    if cluster.token_file or cluster.shown:
        return f"\ncommands  export OCTAVO_DATA={shlex.quote(str(Path(cluster.folder).absolute()))}"
    if BROKER_URL in cluster.urls:
        return ""
    return f"\ncommands  export OCTAVO_URL={','.join(cluster.urls)}"


def _read_only_ones(cluster: ClusterFile) -> list[str]:
    return [
        f"{member.name} is read-only: {member.read_only_because}"
        for member in cluster.of_kind("bookie")
        if member.read_only_because
    ]


def _announce(cluster: ClusterFile, took_s: float, as_json: bool) -> None:
    warnings = _read_only_ones(cluster)
    bookies = len(cluster.of_kind("bookie"))
    is_writable = bookies - len(warnings) >= min(bookies, TOPIC_ENSEMBLE)
    if as_json:
        told = {**asdict(cluster), "ready": is_writable, "warnings": warnings}
        emit_json({"took_s": round(took_s, 3), **told})
        return
    for warning in warnings:
        out.print(f"warning: {warning}", markup=False, style="bold yellow")
    rows = [
        (
            member.name,
            member.address,
            _admin_url(member, cluster.urls[0].partition(":")[0]),
            str(member.pid),
            Path(member.log).name,
        )
        for member in cluster.members
    ]
    if is_writable:
        out.print(f"[bold green]ready[/] after {took_s:.1f} s, data in {cluster.folder}\n")
    else:
        out.print(
            f"started after {took_s:.1f} s, data in {cluster.folder}; nothing can be published: "
            f"{bookies - len(warnings)} of {bookies} bookies are writable, and a topic needs "
            f"{min(bookies, TOPIC_ENSEMBLE)}\n",
            markup=False,
            style="bold red",
        )
    emit_table(("process", "address", "admin", "pid", "log (in logs/)"), rows)
    url = cluster.urls[0]
    topic = f"{url}/v1/topics/public/greetings"
    shown = zip(_CURL, cluster.shown, strict=False)
    curl = " ".join(("curl", *(f"{how} {file}" for how, file in shown)))
    if cluster.token_file:
        curl += f' -H "Authorization: Bearer $(cat {cluster.token_file})"'
    out.print(
        f"\nmetadata  {cluster.metadata_url}"
        f"{_how_commands_find_it(cluster)}"
        f"\ncreate    {curl} -X PUT {topic}"
        f"\npublish   {curl} -d 'hello' {topic}/messages"
        f"\nread      {curl} '{topic}/messages?from=earliest'"
        f"\nAPI       {url}/openapi.json"
        "\n\nCtrl-C stops it; kill -9 loses nothing that was acknowledged.",
        markup=False,
    )
    sys.stdout.flush()
