"""Pure. What a storage engine must say: for each entry absent, uncertain or there.

An entry has one content for ever, as the protocol has it. What was asked for and not answered may
have happened or not, until somebody has looked: from then on it is as it was seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Ledger:
    """One ledger's promises."""

    tried: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    """Entries that must be there; those `tried` may be."""
    fence_tried: bool = False
    fenced: bool = False
    lac: int = -1
    lac_max: int = -1
    """The LAC is at least the one and at most the other."""
    doomed: bool = False
    """Its record is gone, or its deletion was asked for: it may vanish at any time."""
    deleted: bool = False

    @property
    def is_known(self) -> bool:
        """Whether the bookie may not say that it never heard of it."""
        return bool(self.acked) or self.fenced or self.lac >= 0

    def try_add(self, entry_id: int) -> None:
        self.tried.add(entry_id)
        self.lac_max = max(self.lac_max, entry_id - 1)

    def ack(self, entry_id: int) -> None:
        self.acked.add(entry_id)
        self.lac = max(self.lac, entry_id - 1)

    def judge(self, held: set[int], fenced: bool, lac: int) -> None:
        """What a reader found must be what was promised."""
        assert self.acked <= held, f"acked entries {sorted(self.acked - held)} are lost"
        assert held <= self.tried, f"entries {sorted(held - self.tried)} that nobody wrote"
        assert fenced or not self.fenced, "the fence is lost"
        assert self.fence_tried or not fenced, "fenced, and nobody did it"
        assert self.lac <= lac <= self.lac_max, f"LAC {lac} is not {self.lac} to {self.lac_max}"

    def seen(self, held: set[int], fenced: bool, lac: int) -> None:
        """Nothing is under way: what was found stays, and what was not never comes."""
        self.judge(held, fenced, lac)
        self.tried, self.acked = set(held), set(held)
        self.fence_tried = self.fenced = fenced
        self.lac = lac

    def seen_absent(self) -> None:
        """The bookie never heard of it."""
        assert not self.is_known, "forgotten"
        self.tried, self.fence_tried = set(), False
