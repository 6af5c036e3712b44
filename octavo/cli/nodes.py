"""`octavo bookie`, `octavo broker`, `octavo zookeeper`: single processes of a real cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.options import BadOption, Config, Host, Metadata, NodeName, Port, Sets, parse_sets

if TYPE_CHECKING:
    from octavo.security.keys.config import KeysConfig
    from octavo.security.settings import SecurityConfig
    from octavo.tls.settings import TlsConfig

AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help="Start although folders are empty or damaged; answer 'unknown' for lost entries.",
    ),
]
AcceptNewFolders = Annotated[
    bool,
    typer.Option(
        "--accept-new-folders",
        help="Accept empty ledger folders at the end of the list.",
    ),
]
AcceptOlder = Annotated[
    bool,
    typer.Option(
        "--accept-older-metadata",
        help="Start although the metadata is an older copy; give up newer ledgers.",
    ),
]


def bookie(
    context: typer.Context,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Folder; contains DATA/journal and DATA/ledgers."),
    ] = None,
    metadata: Metadata = None,
    host: Host = None,
    port: Port = None,
    bookie_id: NodeName = None,
    rack: Annotated[
        str | None, typer.Option(help="Its rack, e.g. /dc1/rack7. Default: unknown.")
    ] = None,
    journal: Annotated[
        list[Path] | None,
        typer.Option(help="Journal folder, best on a separate device. Default: DATA/journal."),
    ] = None,
    ledgers: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of entry logs and index. Default: DATA/ledgers."),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Take no new entries.")] = False,
    accept_new_folders: AcceptNewFolders = False,
    accept_loss: AcceptLoss = False,
    accept_older_metadata: AcceptOlder = False,
    end_limbo: Annotated[
        int | None,
        typer.Option(
            metavar="LEDGER",
            help="Ledgers up to this id were copied or given up: answer 'no such entry' again.",
        ),
    ] = None,
    config: Config = None,
    sets: Sets = None,
) -> None:
    """Run a bookie, which keeps ledgers on disk, or examine and repair one.

    \b
    Example:
      octavo bookie --data /var/lib/octavo/b1 --metadata zk://127.0.0.1:2181/octavo --port 3181
    """
    if context.invoked_subcommand is not None:
        return
    from octavo.bookie.config import BookieConfig, FoldersMissing
    from octavo.process.bookie import serve_bookie
    from octavo.settings import load

    folder = data.absolute() if data is not None else None
    flags: dict[str, Any] = {
        "host": host,
        "port": port,
        "bookie_id": bookie_id,
        "rack": rack,
        "journal_directories": _folders(journal, folder, "journal"),
        "ledger_directories": _folders(ledgers, folder, "ledgers"),
        "read_only": read_only or None,
        "accept_new_folders": accept_new_folders or None,
        "accept_data_loss": accept_loss or None,
        "accept_older_metadata": accept_older_metadata or None,
        "limbo_ended_through": end_limbo,
        **parse_sets(sets),
    }
    try:
        settings = load(BookieConfig, "bookie", file=config, flags=flags)
    except FoldersMissing as error:
        raise BadOption(
            f"the bookie needs folders: give --data DIR, or --journal DIR and --ledgers DIR, "
            f"or a settings file with --config ({error})"
        ) from error
    name = settings.bookie_id or f"{settings.advertised_host or settings.host}:{settings.port}"
    sections = {"bookie": settings, "tls": _tls(config), "security": _security(config)}
    _serve(serve_bookie, name, metadata, config, sections)


def broker(
    context: typer.Context,
    metadata: Metadata = None,
    host: Host = None,
    port: Port = None,
    broker_id: NodeName = None,
    advertised_host: Annotated[
        str | None, typer.Option(help="The host name by which others reach it. Default: --host.")
    ] = None,
    config: Config = None,
    sets: Sets = None,
) -> None:
    """Run a broker, which serves topics; list or drain brokers.

    \b
    Example:
      octavo broker --metadata zk://127.0.0.1:2181/octavo --port 8080
    """
    if context.invoked_subcommand is not None:
        return
    from octavo.broker.config import BrokerConfig
    from octavo.broker.http.config import HttpConfig
    from octavo.ledger.options import LedgerOptions
    from octavo.process.broker import serve_broker
    from octavo.security.settings import SecurityConfig
    from octavo.settings import load

    flags = {
        "host": host,
        "port": port,
        "broker_id": broker_id,
        "advertised_host": advertised_host,
        **parse_sets(sets),
    }
    settings = load(BrokerConfig, "broker", file=config, flags=flags)
    name = settings.broker_id or f"{settings.advertised_host or settings.host}:{settings.port}"
    sections = {
        "broker": settings,
        "http": load(HttpConfig, "http", file=config),
        "ledger": load(LedgerOptions, "ledger", file=config),
        "tls": _tls(config),
        "keys": _keys(config),
        "security": load(SecurityConfig, "security", file=config),
    }
    _serve(serve_broker, name, metadata, config, sections)


def _tls(config: Path | None) -> TlsConfig:
    """Load the TLS settings: a node needs a certificate to use TLS."""
    from octavo.settings import load
    from octavo.tls.contexts import certificates_of
    from octavo.tls.settings import TlsConfig

    tls = load(TlsConfig, "tls", file=config)
    tls.check_node()
    certificates_of(tls)  # raises an error that names the bad file
    return tls


def _security(config: Path | None) -> SecurityConfig:
    from octavo.security.settings import SecurityConfig
    from octavo.settings import load

    return load(SecurityConfig, "security", file=config)


def _keys(config: Path | None) -> KeysConfig:
    from octavo.keys import key_source
    from octavo.security.keys.config import KeysConfig
    from octavo.settings import load

    keys = load(KeysConfig, "keys", file=config)
    key_source(keys)  # raises if it is unusable
    return keys


def _folders(given: list[Path] | None, data: Path | None, name: str) -> list[str] | None:
    if given:
        return [str(path.absolute()) for path in given]
    return [str(data / name)] if data is not None else None


def _serve(
    main: Any, name: str, metadata: str | None, config: Path | None, sections: dict[str, Any]
) -> None:
    from octavo.metadata.opening import open_store
    from octavo.process.life import run_process
    from octavo.process.spec import ProcessSpec, to_plain
    from octavo.settings import ProcessConfig, load

    common = load(ProcessConfig, "", file=config, flags={"metadata_url": metadata})
    if not common.metadata_url:
        raise BadOption(
            "which metadata store? give --metadata zk://host:port/chroot, or "
            "OCTAVO_METADATA_URL, or metadata_url in the settings file"
        )
    # Raises for a bad URL or credentials file.
    open_store(common.metadata_url, credentials_file=common.metadata_credentials_file)
    spec = ProcessSpec(
        name=name,
        metadata_url=common.metadata_url,
        metadata_credentials_file=common.metadata_credentials_file,
        session_timeout_ms=common.session_timeout_ms,
        log_format=common.log_format,
        log_level=common.log_level,
        log_file=common.log_file,
        log_bytes_max=common.log_bytes_max,
        log_files_max=common.log_files_max,
        sections={section: to_plain(value) for section, value in sections.items()},
    )
    code = run_process(main, spec)
    if code:
        raise typer.Exit(code)


def zookeeper(
    data: Annotated[Path, typer.Option("--data", help="Its data folder.")] = Path("zookeeper-data"),
    port: Annotated[
        int | None, typer.Option(help="Port; 0 takes any free one. Default: 2181, with TLS 2281.")
    ] = None,
    tls: Annotated[
        bool, typer.Option("--tls", help="Speak only TLS, with certificates in DATA/tls.")
    ] = False,
) -> None:
    """Run a ZooKeeper server for development (needs Java; jars from PySpark or Debian).

    \b
    Example:
      octavo zookeeper --data /tmp/zk --port 2181
    """
    import asyncio

    from octavo.cli.zookeeper import run_zookeeper

    if port is None:
        port = 2281 if tls else 2181
    asyncio.run(run_zookeeper(data.absolute(), port, tls=tls))
