"""Accept tokens of another issuer that are signed with its key and meant for us."""

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
    async def find(self, token: Token) -> KeySet: ...


class KeysOfFile:
    def __init__(self, file: WatchedFile[KeySet]) -> None:
        self._file = file

    async def find(self, token: Token) -> KeySet:
        return fitting(self._file.value, token)


class ForeignTokens:
    def __init__(self, config: SecurityConfig, source: KeySource) -> None:
        self._config, self._source = config, source

    def on_change(self, listener: Callable[[], None]) -> None:
        if isinstance(self._source, Jwks):
            self._source.on_change(listener)

    async def start(self) -> None:
        if isinstance(self._source, Jwks):
            await self._source.start()

    async def close(self) -> None:
        if isinstance(self._source, Jwks):
            await self._source.close()

    async def verify(self, token: Token, now_s: float) -> Claims:
        config = self._config
        # Check the claims first: a token for another service must not cause a fetch of keys.
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
            raise Unauthenticated(
                "the token was signed with no key of its issuer that is known here"
            )
        verify_signature(token, keys)
        return claims
