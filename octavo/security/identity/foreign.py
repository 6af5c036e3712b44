"""Tokens of another issuer: believed if one of its keys signed them, and they are for us."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from octavo.security.identity.files import WatchedFile
from octavo.security.identity.jwks import Jwks
from octavo.security.identity.jwt_keys import KeySet, fitting, verify_signature
from octavo.security.identity.token_form import Claims, Token, checked_claims
from octavo.security.principal import Unauthenticated
from octavo.security.settings import SecurityConfig


class KeySource(Protocol):
    """Where an issuer's keys come from."""

    async def find(self, token: Token) -> KeySet:
        """Those that may have signed it."""


class KeysOfFile:
    """The keys of `jwt_keys_file`."""

    def __init__(self, file: WatchedFile[KeySet]) -> None:
        self._file = file

    async def find(self, token: Token) -> KeySet:
        """Those that may have signed it."""
        return fitting(self._file.value, token)


class ForeignTokens:
    """Verifies them."""

    def __init__(self, config: SecurityConfig, source: KeySource) -> None:
        self._config, self._source = config, source

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever keys come or go by themselves."""
        if isinstance(self._source, Jwks):
            self._source.on_change(listener)

    async def start(self) -> None:
        """From now on follow the keys."""
        if isinstance(self._source, Jwks):
            await self._source.start()

    async def close(self) -> None:
        """May be called twice."""
        if isinstance(self._source, Jwks):
            await self._source.close()

    async def verify(self, token: Token, now_s: float) -> Claims:
        """What it says. Raises `Unauthenticated`."""
        config = self._config
        # First what costs nothing: a token that is not for us is not worth a question to others.
        claims = checked_claims(
            token.claims,
            issuer=config.jwt_issuer,
            audience=config.jwt_audience,
            now_s=now_s,
            principal_claim=config.jwt_principal_claim,
            groups_claim=config.jwt_groups_claim,
        )
        keys = await self._source.find(token)
        if not keys:
            raise Unauthenticated("the token names no key of its issuer that is known here")
        verify_signature(token, keys)
        return claims
