"""All subscriptions of an owned partition. The metadata record says that a subscription exists, and
its settings; its cursor in a partition is made at the first use there, or by `subscribe`. A cursor
belongs to one incarnation of the subscription (its `created_ms`): a later subscription with the
same name starts afresh. Cursors in memory are never behind the state ledger; an ack is answered
when it is in both.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import NotOwner, SubscriptionNotFound
from octavo.broker.state.cursor import Cursor
from octavo.broker.state.format import CursorState, Op, ack_op, cursor_op, delete_op
from octavo.broker.state.leases import LeftLeases, bounded, left_ops
from octavo.broker.subscriptions.dead_letter_delivery import DeadLetterSender
from octavo.broker.subscriptions.last_used import LastUsed
from octavo.broker.subscriptions.subscription import SubscribedLog, Subscription
from octavo.broker.types import SubscriptionInfo, SubscriptionStats

STATS_A_TURN = 100


class SubscriptionSet:
    def __init__(
        self,
        log: SubscribedLog,
        config: BrokerConfig,
        lookup: Callable[[str], Awaitable[SubscriptionInfo]],
        persist: Callable[[Op], Awaitable[None]],
        office: DeadLetterSender | None = None,
        uses: LastUsed | None = None,
    ) -> None:
        self._log = log
        self._config = config
        self._lookup = lookup
        self._persist = persist
        self._office = office
        self._last_used = uses
        self._cursors: dict[str, CursorState] = {}
        self._volatile: dict[str, CursorState] = {}
        self._unsaved: dict[str, None] = {}
        """Cursors made here that may not be durable yet."""
        self._for_letters: frozenset[str] = frozenset()
        self._open: dict[str, Subscription] = {}
        self._making = asyncio.Lock()
        self._restored_s = 0.0
        self.is_followed = False

    def restore(self, cursors: dict[str, CursorState]) -> None:
        """Take over the last owner's cursors.

        A cursor before the earliest offset moves up: the last owner trimmed just before it ended.
        """
        self._cursors = cursors
        self._restored_s = asyncio.get_running_loop().time()
        for held in cursors.values():
            held.cursor.ack(0, self._log.earliest_offset)
        for held in cursors.values():
            held.forget_acked()

    def cursors(self) -> list[tuple[str, int, Cursor]]:
        return [(name, held.created_ms, held.cursor) for name, held in self._cursors.items()]

    def deliveries(self) -> list[tuple[str, dict[int, int]]]:
        return [(name, held.deliveries) for name, held in self._cursors.items()]

    def seeks(self) -> dict[str, int]:
        return {name: held.seeks for name, held in self._cursors.items() if held.seeks}

    def used_ms(self) -> dict[str, int]:
        return {name: held.used_ms for name, held in self._cursors.items() if held.used_ms}

    def is_unused(self, name: str, for_ms: int, retire_s: float = 0.0) -> bool:
        if self._last_used is None:
            return False
        subscription = self._open.get(name)
        if subscription is not None and subscription.is_in_use:
            return False
        return self._last_used.is_unused(name, self._cursors.get(name), for_ms, retire_s)

    def unused(self, for_ms: int, *, durable: bool = True) -> list[str]:
        names = self._cursors if durable else self._volatile
        return [name for name in names if self.is_unused(name, for_ms)]

    async def drop_gone(self, for_ms: int) -> None:
        for name in self.unused(for_ms, durable=False):
            with contextlib.suppress(SubscriptionNotFound):
                await self.get(name)

    def keep_uses(self) -> None:
        if self._last_used is not None:
            self._last_used.keep(self._cursors.items())

    async def get(self, name: str) -> Subscription:
        try:
            info = await self._lookup(name)
        except SubscriptionNotFound:
            await self._forget(name)
            raise
        found = self._open.get(name)
        if found is not None and found.info == info:
            return found
        return await self.make(info)

    async def make(self, info: SubscriptionInfo) -> Subscription:
        """Return the subscription with a durable cursor; raise `SubscriptionNotFound` if it was
        deleted.
        """
        async with self._making:
            found = self._open.get(info.name)
            if found is not None:
                if found.info == info:
                    return found
                found.close(NotOwner(f"subscription {info.name!r} was changed; call again"))
            cursors = self._cursors if info.settings.durable else self._volatile
            held = cursors.get(info.name)
            if held is None or held.created_ms != info.created_ms:
                if not info.settings.durable:
                    await self._forget(info.name)  # the state of an earlier subscription
                held = CursorState(info.created_ms, Cursor(self._start_of(info)))
                cursors[info.name] = held
                if info.settings.durable:
                    self._volatile.pop(info.name, None)
                    self._unsaved[info.name] = None
            if info.name in self._unsaved:
                committed_offset = held.cursor.committed_offset
                await self._persist(cursor_op(info.name, info.created_ms, committed_offset))
                if self._cursors.get(info.name) is not held:
                    raise SubscriptionNotFound(f"subscription {info.name!r} was deleted meanwhile")
                del self._unsaved[info.name]
            held.left = self._left_of(held)
            found = Subscription(
                self._log, info, held.cursor, self._config, held, self._office, self._last_used
            )
            self._open[info.name] = found
            return found

    async def follow(self, names: Collection[str]) -> None:
        """Make the missing cursors of these subscriptions, and forget all other cursors."""
        self.is_followed = True
        for name in [name for name in (*self._cursors, *self._volatile) if name not in names]:
            await self._forget(name)
        for name in names:
            if name not in self._cursors and name not in self._volatile:
                with contextlib.suppress(SubscriptionNotFound):  # deleted meanwhile
                    await self.get(name)

    def oldest_unacked(self) -> int | None:
        return min((held.cursor.committed_offset for held in self._cursors.values()), default=None)

    def committed(self) -> dict[str, int]:
        return {name: held.cursor.committed_offset for name, held in self._cursors.items()}

    async def know_letters(self) -> None:
        found = set()
        for name in tuple(self._cursors):
            with contextlib.suppress(SubscriptionNotFound):
                if (await self._lookup(name)).has_letters:
                    found.add(name)
        self._for_letters = frozenset(found)

    def bounded(self) -> dict[str, int]:
        """Return `committed` of the subscriptions to which time to live and quota apply.

        Not of those for dead letters or retries: an unacked copy is the only copy.
        """
        return {
            name: offset
            for name, offset in self.committed().items()
            if name not in self._for_letters
        }

    async def pass_over(self, name: str, end: int) -> int:
        """Ack everything before `end`, durably and without a delivery; return how many messages."""
        held = self._cursors.get(name)
        if held is None or name in self._unsaved:
            return 0
        start = held.cursor.committed_offset
        new = held.cursor.ack(0, end)
        held.forget_acked()
        if start < end:
            if (subscription := self._open.get(name)) is not None:
                subscription.passed_over(end)
            await self._persist(ack_op(name, [(start, end)]))
        return new

    async def pass_all_over(self, end: int) -> None:
        """Pass over messages that are trimmed, or about to be."""
        for name in tuple(self._cursors):
            await self.pass_over(name, end)

    def wake(self) -> None:
        for subscription in tuple(self._open.values()):
            subscription.wake()

    def look(self) -> None:
        for subscription in tuple(self._open.values()):
            subscription.look()

    def close(self, error: NotOwner) -> None:
        for subscription in tuple(self._open.values()):
            subscription.close(error)

    def leave(self, epoch: int) -> list[Op]:
        """Close all subscriptions; return their leases for the successor of the owner at this
        epoch.
        """
        found = list[list[Op]]()
        for name, held in self._cursors.items():
            subscription = self._open.get(name)
            left = self._left_of(held) if subscription is None else subscription.leave(epoch)
            if left is not None and left.says_something:
                found.append(left_ops(name, held.created_ms, replace(left, epoch=epoch)))
        return bounded(found)

    def _left_of(self, held: CursorState) -> LeftLeases | None:
        if held.left is None:
            return None
        passed_s = asyncio.get_running_loop().time() - self._restored_s
        return held.left.later(int(passed_s * 1000))

    async def stats(self) -> dict[str, SubscriptionStats]:
        found: dict[str, SubscriptionStats] = {}
        for number, (name, subscription) in enumerate(tuple(self._open.items()), 1):
            if self._open.get(name) is subscription:  # it may have been deleted meanwhile
                found[name] = subscription.stats()
            if number % STATS_A_TURN == 0:
                await asyncio.sleep(0)
        return found

    def _start_of(self, info: SubscriptionInfo) -> int:
        # A partition added later: the subscription wants all its messages.
        later = 0 < info.partitions <= self._log.name.partition
        if info.settings.start == "earliest" or later:
            return self._log.kept_from
        return self._log.next_offset

    async def _forget(self, name: str) -> None:
        subscription = self._open.pop(name, None)
        if subscription is not None:
            subscription.close(NotOwner(f"subscription {name!r} was deleted"))
        self._unsaved.pop(name, None)
        self._volatile.pop(name, None)
        if self._last_used is not None:
            self._last_used.forget(name)
        if self._cursors.pop(name, None) is not None:
            await self._persist(delete_op(name))
