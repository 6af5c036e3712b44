"""The supervisor of a standalone cluster: start its processes, watch them, restart them.

`stop` ends brokers first, so that they can close their partitions. A lock file, which the kernel
frees, keeps a second supervisor away. If the supervisor crashes, its children stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import structlog

from octavo.metadata.gather_all import gather_all
from octavo.process.spec import LOG_BYTES_MAX, LOG_FILES_MAX, SESSION_TIMEOUT_MS, ProcessSpec
from octavo.protocol.backoff import Backoff
from octavo.protocol.codes import OctavoError, Scope
from octavo.standalone import ports
from octavo.standalone.child import Child, ChildFailed, is_child
from octavo.standalone.cluster_file import ClusterFile, Member, NoCluster, read_cluster

if TYPE_CHECKING:
    from octavo.metadata.store import MetadataStore

log = structlog.get_logger()

RESTART_PAUSE_S = 0.5
RESTART_PAUSE_S_MAX = 30.0
SMALLER: Mapping[str, Mapping[str, Any]] = {
    "bookie": {"write_cache_bytes_max": 16 << 20, "read_cache_bytes_max": 8 << 20},
    "broker": {"tail_cache_bytes_max": 16 << 20, "read_ahead_bytes_max": 16 << 20},
}
"""Caches smaller than the defaults: five processes share a machine, with 500 MB in all."""
STARTS_MAX = 4
"""How often a start is tried that loses its metadata session because the machine is too busy."""
ORPHANS_TIMEOUT_S = 45.0
CERTIFICATE_DAYS = 365
FIRST_ADMIN = "user:admin"
TOKEN_FILE_NAME = "admin.token"
STEADY_S = 60.0
"""After this time, a member that dies is restarted after the shortest pause again."""


class FolderUnusable(OctavoError):
    name = "folder-unusable"
    scope = Scope.PROCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`sections` overrides single settings of bookies and brokers."""

    folder: Path
    bookies: int = 3
    brokers: int = 2
    host: str = "127.0.0.1"
    port_base: int | None = None
    metadata_url: str = ""
    """Empty: the embedded store in the folder."""
    metadata_credentials_file: str = ""
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    restart: bool = True
    log_level: str = "info"
    log_bytes_max: int = LOG_BYTES_MAX
    log_files_max: int = LOG_FILES_MAX
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    make_certificates: bool = False
    """All ports speak TLS; make a CA and certificates in the folder, unless they exist."""
    secure: bool = False
    """Only `FIRST_ADMIN`, whose token is in the folder, is allowed anything."""


def _read_only_because(facts: Mapping[str, Any]) -> str:
    return str(facts.get("read_only_because") or "")


def _write_private(path: Path, text: str) -> None:
    """Write a file that only this user may read; by rename, so it is never half written."""
    draft = path.with_suffix(".tmp")
    draft.unlink(missing_ok=True)
    with open(draft, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
    draft.rename(path)


class Supervisor:
    def __init__(
        self,
        plan: Plan,
        on_change: Callable[[Member], None] | None = None,
        make_child: Callable[[str, ProcessSpec, Path], Child] = Child,
    ) -> None:
        self.plan = plan
        self._make_child = make_child
        folder = plan.folder.absolute()
        self._folder = folder
        self._on_change = on_change
        self._children: dict[str, Child] = {}
        self._held: set[str] = set()
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._former: ClusterFile | None = None
        self._lock: IO[str] | None = None
        self._tls: Mapping[str, Any] = plan.sections.get("tls", {})
        self.cluster = ClusterFile(
            folder=str(folder),
            metadata_url=plan.metadata_url or f"file://{folder / 'metadata.db'}",
            supervisor_pid=os.getpid(),
        )

    async def start(self) -> None:
        self._take_folder()
        try:
            await self._until_orphans_gone()
            self._prepare_tls()
            members = [("bookie", n) for n in range(1, self.plan.bookies + 1)]
            members += [("broker", n) for n in range(1, self.plan.brokers + 1)]
            ports.check_ports(self.plan.host, self._fixed_ports(members))
            children = [self._plan_child(kind, number) for kind, number in members]
            await self._prepare_metadata()
            await gather_all(self._start_child(child) for child in children)
        except BaseException:
            await self.stop()
            raise
        self._note(replace(self.cluster, ready=True))

    async def add_bookie(self) -> Member:
        number = len(self.cluster.of_kind("bookie")) + 1
        ports.check_ports(self.plan.host, self._fixed_ports([("bookie", number)]))
        child = self._plan_child("bookie", number)
        await self._start_child(child)
        return self._member(child.name)

    def hold(self, name: str) -> None:
        self._held.add(name)

    async def resume(self, name: str) -> None:
        self._held.discard(name)
        child = self._children[name]
        if not child.pid:
            await self._start_child(child)

    def signal(self, name: str, number: signal.Signals) -> None:
        self._children[name].signal(number)

    async def stop(self) -> None:
        watchers = list(self._watchers.values())
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        self._watchers.clear()
        for kind in ("broker", "bookie"):
            children = [child for child in self._children.values() if child.kind == kind]
            await asyncio.gather(*(child.stop() for child in children))
            for child in children:
                self._change(replace(self._member(child.name), pid=0, state="stopped"))
        if self._lock is not None:
            self._note(replace(self.cluster, ready=False))
            self._lock.close()
            self._lock = None

    def _take_folder(self) -> None:
        try:
            for name in ("", "logs", "conf"):
                (self._folder / name).mkdir(parents=True, exist_ok=True)
            self._lock = open(self._folder / "supervisor.lock", "a+")  # noqa: SIM115
        except OSError as error:
            raise FolderUnusable(
                f"data folder {self._folder} is not writable: {error.strerror}; "
                "choose another folder with --data"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "unknown"
            self._lock.close()
            self._lock = None
            raise FolderUnusable(
                f"data folder {self._folder} is in use by another standalone cluster "
                f"(pid {holder}); stop it, or choose another folder with --data"
            ) from None
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()
        with contextlib.suppress(NoCluster):
            self._former = read_cluster(self._folder)

    async def _until_orphans_gone(self) -> None:
        """Wait until the children of a killed supervisor have noticed it and stopped."""
        deadline = time.monotonic() + ORPHANS_TIMEOUT_S
        for member in self._former.members if self._former else ():
            while is_child(member.pid) and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    def _prepare_tls(self) -> None:
        from octavo.tls.authority import Authority, own_names
        from octavo.tls.contexts import certificates_of
        from octavo.tls.settings import TlsConfig

        if self.plan.make_certificates:
            folder = self._folder / "tls"
            authority, _ = Authority.opened(folder)
            certificate, key = folder / "node.pem", folder / "node.key"
            if not certificate.exists() and not key.exists():
                authority.issue("node", [*own_names(), self.plan.host], days=CERTIFICATE_DAYS)
            files = {"ca": authority.file, "certificate": certificate, "key": key}
            self._tls = {**self._tls, **{name: str(path) for name, path in files.items()}}
        config = TlsConfig(**self._tls)
        config.check_node()
        certificates_of(config)  # raises an error that names the bad file
        if config.serves:
            shown = (config.ca, *((config.certificate, config.key) if config.mutual else ()))
            self.cluster = replace(self.cluster, shown=shown)

    async def _prepare_metadata(self) -> None:
        """Make the store's root records, before all processes try it at once; repeated if the
        session ends.
        """
        from octavo.metadata.store import SessionExpired

        for left in reversed(range(STARTS_MAX)):
            try:
                await self._make_root_records()
                break
            except SessionExpired as error:
                if not left:
                    raise
                log.warning("metadata_session_lost", reason=str(error))

    async def _make_root_records(self) -> None:
        from octavo.metadata.ledgers import LedgerStore
        from octavo.metadata.opening import open_store
        from octavo.tls.contexts import certificates_of
        from octavo.tls.settings import TlsConfig

        store = open_store(
            self.cluster.metadata_url,
            session_timeout_ms=self.plan.session_timeout_ms,
            credentials_file=self.plan.metadata_credentials_file,
            tls=certificates_of(TlsConfig(**self._tls)),
        )
        await store.start()
        try:
            await LedgerStore(store).initialize()
            await self._prepare_security(store)
        finally:
            await store.close()

    async def _prepare_security(self, store: MetadataStore) -> None:
        """Secure the cluster if the plan says so, and keep the administrator's token fresh."""
        from octavo.metadata.secret import cluster_secret
        from octavo.security.identity.tokens import TOKEN_KEY_USE, issue
        from octavo.security.policy import PolicyStore, secured

        policies = PolicyStore(store)
        if self.plan.secure:
            await policies.change(
                lambda record: record if record.secured else secured(record, FIRST_ADMIN)
            )
        path, now_s = self._folder / TOKEN_FILE_NAME, time.time()
        if not (self.plan.secure or path.exists()):
            return
        ttl_s = CERTIFICATE_DAYS * 86_400
        if not path.exists() or path.stat().st_mtime + ttl_s / 2 < now_s:
            key = (await cluster_secret(store)).key(TOKEN_KEY_USE)
            _write_private(path, issue(key, FIRST_ADMIN, ttl_s=ttl_s, now_s=now_s) + "\n")
        self.cluster = replace(self.cluster, token_file=str(path))

    def _plan_child(self, kind: str, number: int) -> Child:
        name = f"{kind}-{number}"
        former = self._former.member(name) if self._former else None
        port = self._port(kind, number, name, former.port if former else ports.FREE)
        admin_port = ports.FREE
        plan = self.plan
        own: dict[str, Any] = {**SMALLER[kind], "host": plan.host, "port": port, f"{kind}_id": name}
        if kind == "bookie":
            data = self._folder / name
            before = former.admin_port if former else ports.FREE
            admin_port = self._port("admin", number, name, before)
            own |= {
                "admin_port": admin_port,
                "journal_directories": [str(data / "journal")],
                "ledger_directories": [str(data / "ledgers")],
            }
        sections = {
            kind: {**own, **plan.sections.get(kind, {})},
            "tls": dict(self._tls),
            "security": {
                **({"required": True} if plan.secure else {}),
                **plan.sections.get("security", {}),
            },
        }
        if kind == "broker":
            sections |= {
                name: dict(plan.sections.get(name, {})) for name in ("http", "ledger", "keys")
            }
        spec = ProcessSpec(
            name=name,
            metadata_url=self.cluster.metadata_url,
            metadata_credentials_file=plan.metadata_credentials_file,
            session_timeout_ms=plan.session_timeout_ms,
            log_level=plan.log_level,
            log_bytes_max=plan.log_bytes_max,
            log_files_max=plan.log_files_max,
            sections=sections,
        )
        child = self._children[name] = self._make_child(kind, spec, self._folder)
        log = str(child.log_path)
        self._change(Member(name=name, kind=kind, port=port, admin_port=admin_port, log=log))
        return child

    def _fixed_ports(self, members: Iterable[tuple[str, int]]) -> dict[str, int]:
        base = self.plan.port_base
        found: dict[str, int] = {}
        for kind, number in members:
            name = f"{kind}-{number}"
            found[name] = ports.port_of(kind, number, base)
            if kind == "bookie":
                found[f"the admin port of {name}"] = ports.port_of("admin", number, base)
        return found

    def _port(self, kind: str, number: int, name: str, former: int) -> int:
        """Choose a port; of free ports prefer the last run's, so that URLs stay the same."""
        host = self.plan.host
        port = ports.port_of(kind, number, self.plan.port_base)
        if port != ports.FREE:
            return port
        if former != ports.FREE:
            with contextlib.suppress(ports.PortInUse):
                ports.check_ports(host, {name: former})
                return former
        return ports.free_port(host)

    async def _start_child(self, child: Child) -> None:
        facts = await self._until_started(child)
        member = self._member(child.name)
        address = str(facts.get("url") or facts.get("address") or "")
        self._change(
            replace(
                member,
                pid=child.pid,
                state="running",
                address=address,
                read_only_because=_read_only_because(facts),
            )
        )
        watcher = asyncio.create_task(self._keep_alive(child), name=f"watch {child.name}")
        self._watchers[child.name] = watcher

    async def _until_started(self, child: Child) -> dict[str, Any]:
        """Start the child; again, if it loses its metadata session. Raises `ChildFailed`."""
        for left in reversed(range(STARTS_MAX)):
            try:
                return await child.start()
            except ChildFailed as error:
                if not (left and error.lost_session):
                    raise
                log.warning("child_start_repeated", child=child.name, reason=str(error))
        raise AssertionError

    async def _keep_alive(self, child: Child) -> None:
        """Watch the child, also after an error of the supervisor itself (such as a full disk)."""
        while True:
            try:
                await self._watch(child)
                return
            except Exception as error:
                log.error(
                    "child_watch_failed", child=child.name, reason=repr(error), exc_info=error
                )
                await asyncio.sleep(RESTART_PAUSE_S)

    async def _watch(self, child: Child) -> None:
        # Random, so that children that died together do not restart together.
        pauses = Backoff(RESTART_PAUSE_S, RESTART_PAUSE_S_MAX, random.Random())
        while True:
            started = time.monotonic()
            await child.wait()
            log.warning("child_died", child=child.name, how=child.exit_text)
            self._change(replace(self._member(child.name), pid=0, state="dead"))
            if not self.plan.restart or child.name in self._held:
                return
            if time.monotonic() - started > STEADY_S:
                pauses.reset()
            while True:
                await asyncio.sleep(pauses.next_s())
                try:
                    facts = await child.start()
                    break
                except (ChildFailed, OSError) as error:
                    log.warning("child_restart_failed", child=child.name, reason=str(error))
            member = self._member(child.name)
            log.info("child_restarted", child=child.name, restarts=member.restarts + 1)
            self._change(
                replace(
                    member,
                    pid=child.pid,
                    state="running",
                    restarts=member.restarts + 1,
                    read_only_because=_read_only_because(facts),
                )
            )

    def _member(self, name: str) -> Member:
        found = self.cluster.member(name)
        assert found is not None, name
        return found

    def _change(self, member: Member) -> None:
        self._note(self.cluster.with_member(member))
        if self._on_change is not None:
            self._on_change(member)

    def _note(self, cluster: ClusterFile) -> None:
        self.cluster = cluster
        if self._lock is not None:
            cluster.write()
