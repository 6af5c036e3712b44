"""Who alone may publish into a partition: its exclusive producer, and the epoch that fences. Pure.

    open → held(producer, epoch) → open

Every change has an epoch of its own, one higher than the last, and is durable in the state ledger
before anybody is told of it. A publish says with which epoch it comes. It is checked where batches
get their offsets (partition/publisher.py), so what was let in under an epoch lies before all that
comes under a later one, and nothing of the earlier one is stored behind that. A holder that is
silent for its session timeout may be followed by another one; until then it keeps what it has, also
when it comes back late. The silence is counted by each owner for itself and begins anew with it.
Times are milliseconds of any steady clock, handed in by the caller.
"""

from __future__ import annotations

from typing import NamedTuple

from octavo.broker.errors import ExclusiveProducer, ProducerBusy, StaleProducerAccess

BROKERS = -1
"""In place of an epoch: brokers write topics of their own, and copies of messages, also while a
client has the access."""


class AccessState(NamedTuple):
    """What is durable of it. `producer` is empty when nobody has it."""

    epoch: int = 0
    producer: str = ""
    session_ms: int = 0
    """So long its holder may be silent."""


NOBODY = AccessState()


class Access:
    """Of one partition, while it is owned."""

    __slots__ = ("_heard_ms", "state")

    def __init__(self, state: AccessState) -> None:
        self.state = state
        self._heard_ms: int | None = None

    def acquire(self, producer: str, now_ms: int, *, session_ms: int, fencing: bool) -> AccessState:
        """`producer` has it from now on, also when it had it before: under a new epoch.

        With `fencing` whoever has it loses it. Raises `ProducerBusy` while another one has it.
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
        """Anybody may publish; None when that was so already, by the same call made before.

        Raises `StaleProducerAccess` for an epoch that is not the holder's.
        """
        if not self.state.producer and epoch == self.state.epoch - 1:
            return None
        if not self.state.producer or epoch != self.state.epoch:
            raise self._stale(epoch)
        self.state = AccessState(epoch + 1)
        return self.state

    def check(self, epoch: int | None, now_ms: int) -> None:
        """A batch comes with this epoch, None: with none, `BROKERS`: of a broker for itself. Raises
        `ExclusiveProducer`, `StaleProducerAccess`."""
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
        """How long the holder's session lasts if it is not heard of any more."""
        if self._heard_ms is None:  # of the owner before: it has its time from now on
            self._heard_ms = now_ms
        return self._heard_ms + self.state.session_ms - now_ms

    def _stale(self, epoch: int) -> StaleProducerAccess:
        holder = self.state.producer
        now = f"producer {holder!r} has it, with a later one" if holder else "nobody has it"
        return StaleProducerAccess(
            f"access epoch {epoch} has ended: {now}; acquire the access anew, if that is wanted"
        )
