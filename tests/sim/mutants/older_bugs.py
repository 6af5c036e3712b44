"""Bugs of the high-water mark: metadata that is turned back to an older copy (profile `older`)."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

_MARK = "octavo.bookie.ledgers.high_water:HighWaterMark"
_NODE = "octavo.bookie.node:BookieNode"
_FOUND_BY = "metadata that is turned back while bookies hold what was made since"


def _bug(name: str, title: str, story: str, *edits: tuple[str, str, str]) -> Mutant:
    changed = tuple(Edit(*edit) for edit in edits)
    return Mutant(
        name, 0, "older metadata", title, story, "X26", _FOUND_BY, changed, profile="older"
    )


MUTANTS = (
    _bug(
        "only-an-empty-store-is-older",
        "a bookie refuses a metadata store without it, but accepts an older copy",
        "The copy has a mark of the bookie, a lower one. What was made since is lost in silence.",
        (
            f"{_MARK}.rise",
            "if is_older(recorded, self._held) and not accept_older:",
            "if recorded is None and self._held is not None and not accept_older:",
        ),
    ),
    _bug(
        "no-mark-for-a-new-ledger",
        "a new ledger does not raise its bookie's mark",
        "The mark rises once a minute alone: the ledgers of that minute are lost in silence.",
        (
            f"{_NODE}._start",
            "storage.control.ledger_admission.on_begin = self._rise_due.set",
            "pass",
        ),
    ),
    _bug(
        "no-mark-after-a-session",
        "a running bookie does not check the metadata when a new session begins",
        "The store was replaced under it. It serves the older one for up to a minute.",
        (
            f"{_NODE}._on_session",
            "self._registration_due.set()\n        self._rise_due.set()",
            "self._registration_due.set()",
        ),
    ),
    _bug(
        "accepted-with-the-old-ids",
        "after an older copy is accepted, new ledgers reuse ids",
        "New ledgers get ids that bookies know already, and cannot reach their ack quorum.",
        (
            f"{_MARK}.start",
            "await self._ledgers.draw_beyond(self._held.stretch)",
            "await self._ledgers.stretch()",
        ),
    ),
    _bug(
        "mark-on-the-disks-first",
        "the mark is written to the disks before the metadata store has it",
        """A crash, or a store that does not answer, comes between the two. The next start finds the
        store behind the disks, and refuses metadata that is the newest.""",
        (
            f"{_MARK}.rise",
            "await self._records.write(self._bookie_id, mark, version)\n"
            "    await finished(self._write(mark))",
            "await finished(self._write(mark))\n"
            "    await self._records.write(self._bookie_id, mark, version)",
        ),
    ),
)
