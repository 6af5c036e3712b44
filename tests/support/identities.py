"""An `Authenticator` with a metadata store and a settable clock, and callers' credentials."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from octavo.metadata.opening import open_store
from octavo.metadata.secret import ClusterSecret, cluster_secret
from octavo.metadata.store import MetadataStore
from octavo.security.identity import tokens
from octavo.security.identity.authenticator import Authenticator
from octavo.security.identity.opening import open_authenticator
from octavo.security.identity.users import UserStore, scram_records
from octavo.security.principal import Identity, Shown
from octavo.security.settings import SecurityConfig

NOW_S = 1_800_000_000
RNG = random.Random(18)
PASSWORD = "correct horse"
_KEY = ec.generate_private_key(ec.SECP256R1())


async def no_network(url: str) -> bytes:
    raise AssertionError(f"asked for {url}")


class Lab:
    def __init__(
        self, store: MetadataStore, secret: ClusterSecret, config: SecurityConfig, fetch: Any
    ) -> None:
        self.store, self.secret, self.config, self._fetch = store, secret, config, fetch
        self.now_s = float(NOW_S)
        self.users = UserStore(store)
        self.authenticator: Authenticator

    async def start(self) -> None:
        self.authenticator = await open_authenticator(
            self.config, self.store, lambda: int(self.now_s * 1000), RNG, self._fetch
        )
        await self.authenticator.start()

    def token(self, principal: str = "user:alice", ttl_s: float = 3600, **how: Any) -> str:
        key = self.secret.key(tokens.TOKEN_KEY_USE)
        return tokens.issue(key, principal, ttl_s=ttl_s, now_s=self.now_s, **how)

    async def bearer(self, token: str, **shown: Any) -> Identity:
        return await self.authenticator.identify(Shown(f"Bearer {token}", **shown))

    async def basic(self, user: str, password: str, **shown: Any) -> Identity:
        return await self.authenticator.identify(Shown(basic(user, password), **shown))

    async def until_changed(self, generation: int) -> None:
        async with asyncio.timeout(10):
            await self.authenticator.until_changed(generation)

    async def with_user(self, name: str = "alice", **how: Any) -> None:
        generation = self.authenticator.generation
        await self.users.create(name, scram_records(PASSWORD, RNG), **how)
        await self.until_changed(generation)


@contextlib.asynccontextmanager
async def lab(tmp_path: Path, fetch: Any = no_network, **config: Any) -> AsyncIterator[Lab]:
    store = open_store(f"file://{tmp_path}/metadata.db")
    await store.start()
    try:
        made = Lab(store, await cluster_secret(store), SecurityConfig(**config), fetch)
        await made.start()
        try:
            yield made
        finally:
            await made.authenticator.close()
    finally:
        await store.close()


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def certificate(
    *subject: tuple[x509.ObjectIdentifier, str],
    cn: str | None = "alice",
    uris: tuple[str, ...] = (),
    serial: int = 7,
    days: int = 1,
) -> bytes:
    """Return a DER certificate that no CA signed: the handshake has checked that already."""
    parts = [x509.NameAttribute(oid, value) for oid, value in subject]
    if cn is not None:
        parts.append(x509.NameAttribute(NameOID.COMMON_NAME, cn))
    now = datetime.fromtimestamp(NOW_S, UTC)
    name = x509.Name(parts)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(_KEY.public_key())
        .serial_number(serial)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=days))
    )
    if uris:
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(one) for one in uris])
        made = made.add_extension(names, critical=False)
    return made.sign(_KEY, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def revocation_list(*serials: int) -> bytes:
    now = datetime.fromtimestamp(NOW_S, UTC)
    made = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "CA")]))
        .last_update(now)
        .next_update(now + timedelta(days=1))
    )
    for serial in serials:
        made = made.add_revoked_certificate(
            x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        )
    return made.sign(_KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
