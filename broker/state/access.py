"""The exclusive producer of a partition, and the epoch that fences earlier producers. Pure.

    open → held(producer, epoch) → open

Every change raises the epoch by one and is durable in the state ledger before a client learns of
it. A publish names its epoch, which is checked where batches get their offsets
(partition/publisher.py). So batches of an epoch lie before all batches of later epochs; no batch of
an earlier epoch is stored after that. A holder that is silent for its session timeout may be
replaced; until then it keeps the access, even if it comes back late. Each owner counts the silence
for itself, from its start. Times are milliseconds of any steady clock, passed by the caller.
"""

from __future__ import annotations

from typing import NamedTuple

from octavo.broker.errors import ExclusiveProducer, ProducerBusy, StaleProducerAccess

BROKERS = -1
"""In place of an epoch: brokers may write their own topics and copies of messages, even while a
client has the access."""


class AccessState(NamedTuple):
    """The durable part. `producer` is empty when no producer has the access."""

    epoch: int = 0
    producer: str = ""
    session_ms: int = 0
    """How long its holder may be silent."""


NOBODY = AccessState()


class Access:
    """The access to a partition while it is owned."""

    __slots__ = ("_heard_ms", "state")

    def __init__(self, state: AccessState) -> None:
        self.state = state
        self._heard_ms: int | None = None

    def acquire(self, producer: str, now_ms: int, *, session_ms: int, fencing: bool) -> AccessState:
        """Give `producer` the access under a new epoch, even if it had the access before.

        With `fencing` the current holder loses it. Raises `ProducerBusy` while another producer
        has it.
        """
        epoch, holder, _ = self.state
        if holder not in ("", producer) and not fencing:
            left_ms = self.left_ms(now_ms)
            if left_ms > 0:
                raise ProducerBusy(
                    f"producer {holder!r} alone may publish here, and was heard of within its "
                    f"session timeout: wait ({left_ms} ms, if it is gone), or fence it",
                    left_ms,
                )
        self.state = AccessState(epoch + 1, producer, session_ms)
        self._heard_ms = now_ms
        return self.state

    def release(self, epoch: int) -> AccessState | None:
        """Let any producer publish; None if an earlier copy of this call did that already.

        Raises `StaleProducerAccess` for an epoch that is not the holder's.
        """
        if not self.state.producer and epoch == self.state.epoch - 1:
            return None
        if not self.state.producer or epoch != self.state.epoch:
            raise self._stale(epoch)
        self.state = AccessState(epoch + 1)
        return self.state

    def check(self, epoch: int | None, now_ms: int) -> None:
        """Check a batch's epoch: None if it names none, `BROKERS` if a broker publishes for itself.

        Raises `ExclusiveProducer`, `StaleProducerAccess`.
        """
        if epoch == BROKERS:
            return
        if epoch is None:
            if self.state.producer:
                raise ExclusiveProducer(
                    f"producer {self.state.producer!r} alone may publish here: acquire the access, "
                    "and publish with its epoch"
                )
        elif epoch != self.state.epoch or not self.state.producer:
            raise self._stale(epoch)
        else:
            self._heard_ms = now_ms

    def left_ms(self, now_ms: int) -> int:
        """How long the holder's session lasts if it stays silent."""
        if self._heard_ms is None:  # the last owner granted access: the time starts now
            self._heard_ms = now_ms
        return self._heard_ms + self.state.session_ms - now_ms

    def _stale(self, epoch: int) -> StaleProducerAccess:
        holder = self.state.producer
        now = f"producer {holder!r} has it, with a later epoch" if holder else "nobody has it"
        return StaleProducerAccess(
            f"access epoch {epoch} has ended: {now}; acquire the access again if you need it"
        )
