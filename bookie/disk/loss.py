"""What a bookie can no longer vouch for, in words and for limbo (ledgers/limbo.py).

Whoever reads files at a start finds a `Loss` for each thing that is gone. Without the operator's
word it is an error that names `REMEDY`; with it, what is good is kept (startup/salvage.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from octavo.bookie.disk.damage import DamageKind, DamageRegistry

REMEDY = (
    "Bring it back. If it is gone for good, start once with --accept-loss: what this bookie still "
    "has is served, what it may have lost is answered as unknown until it is re-replicated"
)
_NAMED_MAX = 3


class Loss(NamedTuple):
    """Something that this bookie can no longer vouch for."""

    kind: DamageKind
    path: str
    offset: int
    length: int
    """How far it reaches; 0 when the file is missing, or nothing is known."""
    why: str


OnLoss = Callable[[str], Awaitable[None]]
"""Told in words what was lost; limbo for it is durable on return."""


async def tell_losses(
    losses: Sequence[Loss], damages: DamageRegistry, on_loss: OnLoss | None
) -> None:
    """Name each loss, then go into limbo for them."""
    for loss in losses:
        damages.report(loss.kind, loss.path, loss.offset, loss.length)
    if losses and on_loss is not None:
        await on_loss(in_words(losses))


def in_words(losses: Sequence[Loss]) -> str:
    """For the limbo file and the log."""
    named = "; ".join(loss.why for loss in losses[:_NAMED_MAX])
    more = len(losses) - _NAMED_MAX
    return f"{named}; and {more} more" if more > 0 else named
