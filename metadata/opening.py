"""Open a metadata store by its URL. Only this module knows both kinds of stores."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from octavo.metadata.credentials import read_credentials
from octavo.metadata.paths import is_safe_name
from octavo.metadata.store import BadMetadataUrl, MetadataStore

if TYPE_CHECKING:
    from octavo.tls.contexts import Certificates

SESSION_TIMEOUT_MS = 6000
ZOOKEEPER_PORT = 2181
ZOOKEEPER_TLS_PORT = 2281
_FORMS = (
    "a metadata URL is zk://host:port[,host:port…]/chroot for ZooKeeper (zks:// with TLS), "
    "or file:///absolute/path/octavo.db for one machine"
)
_HOST = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?\Z")


def open_store(
    url: str,
    *,
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
    credentials_file: str = "",
    tls: Certificates | None = None,
) -> MetadataStore:
    """Open the store; `tls` is for `zks://`; without a CA the machine's CAs are trusted.

    Raises `BadMetadataUrl`, `BadMetadataCredentials`, `TlsError`.
    """
    scheme, separator, rest = url.partition("://")
    match scheme if separator else "":
        case "file":
            from octavo.metadata.embedded import EmbeddedStore  # a process needs one kind

            path = _file_path(url)
            return EmbeddedStore(path, session_timeout_ms=session_timeout_ms)
        case "zk" | "zks":
            from octavo.metadata.zookeeper import ZooKeeperStore

            secured = scheme == "zks"
            port = ZOOKEEPER_TLS_PORT if secured else ZOOKEEPER_PORT
            hosts, chroot = _zookeeper_parts(url, rest, port)
            return ZooKeeperStore(
                hosts,
                chroot,
                session_timeout_ms=session_timeout_ms,
                credentials=read_credentials(credentials_file) if credentials_file else None,
                tls=_context_of(tls) if secured else None,
            )
        case _:
            raise BadMetadataUrl(f"{url!r} names no metadata store: {_FORMS}")


def _file_path(url: str) -> str:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise BadMetadataUrl(f"{url!r} names no file: {_FORMS}")
    return path


def _context_of(tls: Certificates | None) -> Callable[[], ssl.SSLContext]:
    """Return a function that returns the present context. Raises `TlsError`."""
    if tls is not None and tls.client is not None:
        found = tls

        def present() -> ssl.SSLContext:
            assert found.client is not None
            return found.client

        return present
    from octavo.tls.contexts import client_context

    context = client_context()
    return lambda: context


def _zookeeper_parts(url: str, rest: str, usual_port: int) -> tuple[list[str], str]:
    """Return the hosts (`host:port`) and the chroot (empty or `/a/b`)."""
    authority, _, chroot = rest.partition("/")
    hosts = []
    for item in authority.split(","):
        match = _HOST.match(item)
        port = int(match["port"] or usual_port) if match else 0
        if match is None or not 0 < port < 65536:
            raise BadMetadataUrl(f"{url!r}: {item!r} is not host:port; {_FORMS}")
        hosts.append(f"{match['host']}:{port}")
    chroot = chroot.rstrip("/")
    if chroot and not all(map(is_safe_name, chroot.split("/"))):
        raise BadMetadataUrl(f"{url!r}: {chroot!r} is not a chroot; {_FORMS}")
    return hosts, f"/{chroot}" if chroot else ""
