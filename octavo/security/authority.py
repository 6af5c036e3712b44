"""Keep the cluster's policy in the memory of a process.

While the metadata store is away, the policy read last stays in force. If the policy of a secured
cluster is damaged or disappears, only the cluster's own processes may do anything. Streams ask
again when `generation` has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from octavo.metadata.store import MetadataStore
from octavo.security.policy import POLICY_PATH, PolicyStore
from octavo.security.principal import Identity
from octavo.security.record import FollowedRecord
from octavo.security.rules import CLOSED, OPEN, Decision, Operation, Policy, Resource

log = structlog.get_logger()


class Authority:
    def __init__(self, store: MetadataStore) -> None:
        self._policies = PolicyStore(store)
        self._record = FollowedRecord(store, POLICY_PATH, self._look, self._unreadable)
        self._policy = OPEN
        self._version = -1
        self._generation = 0
        self._changed = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []

    @property
    def policy(self) -> Policy:
        return self._policy

    @property
    def version(self) -> int:
        """Return the policy's version; −1 without a record, −2 if it is unreadable."""
        return self._version

    @property
    def secured(self) -> bool:
        return self._policy.secured

    @property
    def generation(self) -> int:
        return self._generation

    async def start(self) -> None:
        """Read and watch the policy, which a process must know before it serves.

        Raises `MetadataUnavailable`, `BadRecord`.
        """
        await self._record.start()

    async def close(self) -> None:
        await self._record.close()

    def decide(self, identity: Identity, operation: Operation, resource: Resource) -> Decision:
        return self._policy.decide(identity, operation, resource)

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def until_changed(self, generation: int) -> None:
        while self._generation == generation:
            await self._changed.wait()

    def _take(self, policy: Policy, version: int) -> None:
        if version == self._version and policy == self._policy and self._generation:
            return
        if version < 0 and self._policy.secured:
            if self._policy is CLOSED:
                return
            log.error("policy_gone", path=POLICY_PATH)
            policy = CLOSED
        self._policy, self._version = policy, version
        self._advance()

    def _advance(self) -> None:
        self._generation += 1
        log.info(
            "policy_read",
            version=self._version,
            secured=self._policy.secured,
            rules=len(self._policy.rules),
        )
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for listener in tuple(self._listeners):
            listener()

    async def _look(self) -> None:
        found = await self._policies.read()
        self._take(found.policy, found.version)

    def _unreadable(self) -> None:
        if self._policy is not CLOSED and self._policy.secured:
            self._policy, self._version = CLOSED, -2
            self._advance()
