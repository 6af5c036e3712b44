"""Planted bugs of the balance by load."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

PROFILE = "load"
_FILE = "broker/cluster/balance.py"

MUTANTS = (
    Mutant(
        "given-away-before-it-has-rested",
        0,
        _FILE,
        "a partition that has just moved is moved again",
        """Loads are smoothed and arrive late, so a partition that just moved looks as if it should
        move again. The broker that opened it counts its rest. The edit accepts any served
        partition.""",
        "X21",
        "loads that change quickly",
        (
            Edit(
                "octavo.broker.cluster.balance:Balance.to_give",
                "self._owners.served_since(now_s - self._rules.rest_s)",
                "self._owners.served_since(now_s)",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "gives-without-a-pause",
        0,
        _FILE,
        "a broker gives partitions away without waiting for new load figures",
        """The next look still sees the old loads, and gives another partition, and another.""",
        "X21",
        "several partitions too many",
        (
            Edit(
                "octavo.broker.cluster.balance:Balance._give",
                "self._load_turns.tried(self.clock())",
                "pass",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "moves-that-help-nobody",
        0,
        "broker/cluster/load.py",
        "the most loaded broker moves a partition even if that helps no broker",
        """A move must bring both brokers nearer to the mean. The edit moves a hot partition back
        and forth, because its broker always has the highest load.""",
        "X21",
        "one partition that has more to do than all others",
        (
            Edit(
                "octavo.broker.cluster.load:choose",
                "if best is None or gain(best) < GAIN * mean:",
                "if best is None:",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "given-away-and-taken-back",
        0,
        _FILE,
        "a partition moved for its load is handed back by the even spread",
        """By the even spread another broker should own it. Without a mark that it was placed on
        purpose, the successor hands it back, and the loaded broker gives it away again,
        forever.""",
        "X21",
        "loads that are uneven while partitions are spread evenly",
        (
            Edit(
                "octavo.broker.cluster.balance:Balance._give",
                "placed=True",
                "placed=False",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "the-loaded-one-keeps-all",
        0,
        "broker/cluster/load.py",
        "only the first load figure of a partition counts",
        """The first figure of a partition stays, as if smoothed over infinite time. A partition
        that becomes hot later is never given away.""",
        "X21",
        "loads that change after a while",
        (
            Edit(
                "octavo.broker.cluster.load:_note",
                "meter.load += (now - meter.load) * (1 - math.exp(-took_s / SMOOTHED_OVER_S))",
                "meter.load += 0.0 * now",
            ),
        ),
        PROFILE,
    ),
)
