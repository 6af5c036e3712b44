"""Pure. The required answers of a storage engine: each entry is absent, uncertain or there. A
request without an answer may have happened, until a read has looked: from then on it is as it
was seen."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Ledger:
    tried: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    """Entries that must be there; entries in `tried` may be."""
    fence_tried: bool = False
    fenced: bool = False
    lac: int = -1
    lac_max: int = -1
    doomed: bool = False
    """Its record is gone, or its deletion was requested: it may vanish at any time."""
    deleted: bool = False

    @property
    def is_known(self) -> bool:
        return bool(self.acked) or self.fenced or self.lac >= 0

    def try_add(self, entry_id: int) -> None:
        self.tried.add(entry_id)
        self.lac_max = max(self.lac_max, entry_id - 1)

    def ack(self, entry_id: int) -> None:
        self.acked.add(entry_id)
        self.lac = max(self.lac, entry_id - 1)

    def judge(self, held: set[int], fenced: bool, lac: int) -> None:
        assert self.acked <= held, f"acked entries {sorted(self.acked - held)} are lost"
        assert held <= self.tried, f"entries {sorted(held - self.tried)} that nobody wrote"
        assert fenced or not self.fenced, "the fence is lost"
        assert self.fence_tried or not fenced, "fenced, and nobody did it"
        assert self.lac <= lac <= self.lac_max, f"LAC {lac} is not {self.lac} to {self.lac_max}"

    def seen(self, held: set[int], fenced: bool, lac: int) -> None:
        """Note findings while nothing is in progress: found entries stay, and absent entries
        stay absent."""
        self.judge(held, fenced, lac)
        self.tried, self.acked = set(held), set(held)
        self.fence_tried = self.fenced = fenced
        self.lac = lac

    def seen_absent(self) -> None:
        assert not self.is_known, "forgotten"
        self.tried, self.fence_tried = set(), False
