"""What a broker's process goes by: the policy, and how callers prove who they are."""

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
    """The cluster is not secured, and this process was told to serve no such."""

    name = "not-secured"
    scope = Scope.PROCESS


class Rights(NamedTuple):
    """Both followed, as long as the context lasts."""

    authority: Authority
    authenticator: Authenticator


@contextlib.asynccontextmanager
async def followed_rights(
    store: MetadataStore, config: SecurityConfig, clock: Callable[[], int], rng: random.Random
) -> AsyncIterator[Rights]:
    """Raises `NotSecured`, and what reading them raises: who does not know what is allowed must not
    serve."""
    authority = Authority(store)
    try:
        await authority.start()
        if config.required and not authority.secured:
            raise NotSecured(
                "this cluster is not secured, and security.required says that no other is served: "
                "`octavo security secure --admin user:NAME --metadata …` first"
            )
        authenticator = await open_authenticator(config, store, clock, rng, fetch)
        try:
            await authenticator.start()
            yield Rights(authority, authenticator)
        finally:
            await authenticator.close()
    finally:
        await authority.close()
