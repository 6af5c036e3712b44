"""Follow the policy and authenticate callers, for a broker's process."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from octavo.metadata.store import MetadataStore
from octavo.process.fetching import fetch
from octavo.protocol.codes import OctavoError, Scope
from octavo.security.authority import Authority
from octavo.security.identity.authenticator import Authenticator
from octavo.security.identity.opening import open_authenticator
from octavo.security.settings import SecurityConfig


class NotSecured(OctavoError):
    name = "not-secured"
    scope = Scope.PROCESS


class Rights(NamedTuple):
    authority: Authority
    authenticator: Authenticator


@contextlib.asynccontextmanager
async def followed_rights(
    store: MetadataStore, config: SecurityConfig, clock: Callable[[], int], rng: random.Random
) -> AsyncIterator[Rights]:
    """Follow the policy and callers' credentials during the block.

    Raises `NotSecured`, and errors of reading the policy: a broker without it must not serve.
    """
    authority = Authority(store)
    try:
        await authority.start()
        if config.required and not authority.secured:
            raise NotSecured(
                "this cluster is not secured, and the setting security.required demands it: "
                "run `octavo security secure --admin user:NAME --metadata …` first"
            )
        authenticator = await open_authenticator(config, store, clock, rng, fetch)
        try:
            await authenticator.start()
            yield Rights(authority, authenticator)
        finally:
            await authenticator.close()
    finally:
        await authority.close()
