"""Build an `Authenticator`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from octavo.metadata.secret import cluster_secret
from octavo.metadata.store import MetadataStore
from octavo.security.identity.api_keys import parse_api_keys
from octavo.security.identity.authenticator import Authenticator, Files, Keys
from octavo.security.identity.certificates import parse_revoked
from octavo.security.identity.files import WatchedFile
from octavo.security.identity.foreign import ForeignTokens, KeysOfFile, KeySource
from octavo.security.identity.jwks import Fetch, Jwks
from octavo.security.identity.jwt_keys import parse_keys
from octavo.security.identity.tokens import TOKEN_KEY_USE
from octavo.security.identity.users import Users
from octavo.security.settings import SecurityConfig

SALT_KEY_USE = "salts"
T = TypeVar("T")


async def open_authenticator(
    config: SecurityConfig,
    store: MetadataStore,
    clock: Callable[[], int],
    rng: random.Random,
    fetch: Fetch,
) -> Authenticator:
    """Build it from settings, key files and secret; the caller starts it.

    `clock` returns milliseconds since 1970. `rng` must be unpredictable. `fetch` bounds time and
    length. Raises `SecurityError` for files that cannot be used, `MetadataUnavailable`,
    `BadRecord`.
    """
    files = Files(
        _watched(config, "revoked_file", parse_revoked),
        _watched(config, "api_keys_file", parse_api_keys),
        _watched(config, "jwt_keys_file", parse_keys),
    )
    source: KeySource | None = None
    if files.jwt_keys is not None:
        source = KeysOfFile(files.jwt_keys)
    elif config.jwks_url:
        source = Jwks(
            config.jwks_url,
            fetch,
            refresh_s=config.jwks_refresh_ms / 1000,
            retry_s=config.jwks_retry_ms / 1000,
        )
    secret = await cluster_secret(store, rng=rng)
    return Authenticator(
        config,
        keys=Keys(secret.key(TOKEN_KEY_USE), secret.key(SALT_KEY_USE)),
        users=Users(store),
        files=files,
        foreign=None if source is None else ForeignTokens(config, source),
        clock=clock,
        rng=rng,
    )


def _watched(
    config: SecurityConfig, setting: str, parse: Callable[[bytes], T]
) -> WatchedFile[T] | None:
    path: str = getattr(config, setting)
    return WatchedFile(setting, path, parse) if path else None
