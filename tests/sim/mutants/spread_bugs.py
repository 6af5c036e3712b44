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
        """Loads are smoothed and told late, so what was just moved looks as if it should move
        again. That it rests is counted by the broker that opened it. The edit takes any that is
        served.""",
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
        """The next look finds the loads as they were told before, and gives one more, and one
        more.""",
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
        """A move has to bring both nearer to the mean. The edit gives one hot partition to and fro:
        whoever has it has the most.""",
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
        """By the even spread another broker should have it. Without the mark that it was placed on
        purpose the heir gives it back, and the loaded one gives it away again, for ever.""",
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
        """The first figure of a partition is taken for good, as if it were smoothed over ever. What
        becomes hot later is nothing that anybody would give away.""",
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
