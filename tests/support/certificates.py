"""Certificates for tests, made once per folder with the code behind `octavo certs`."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from octavo.tls import authority
from octavo.tls.authority import Authority, Made, own_names
from octavo.tls.contexts import Certificates
from octavo.tls.settings import TlsConfig


def make(folder: Path, name: str = "node", *names: str) -> Made:
    return Authority.opened(folder)[0].issue(name, names or own_names(), days=30)


def config(folder: Path, name: str = "node", **how: Any) -> TlsConfig:
    """Return the settings of a node with that certificate; make the certificate if it is
    missing."""
    if not (folder / f"{name}.pem").exists():
        make(folder, name)
    files = {"certificate": f"{folder}/{name}.pem", "key": f"{folder}/{name}.key"}
    return TlsConfig(**{**files, "ca": f"{folder}/ca.pem", **how})


def certificates(folder: Path, name: str = "node", **how: Any) -> Certificates:
    return Certificates(config(folder, name, **how))


def make_long_ago(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str) -> Made:
    """Make an expired certificate of a CA that is still valid."""
    signed_by, _ = Authority.opened(folder)
    now: datetime = authority._now()
    with monkeypatch.context() as patched:
        patched.setattr(authority, "_now", lambda: now - timedelta(days=3))
        return signed_by.issue(name, own_names(), days=1)


def renew(folder: Path, name: str = "node") -> None:
    for suffix in ("pem", "key"):
        (folder / f"{name}.{suffix}").unlink()
    make(folder, name)
