"""Planted bugs of times: the age of messages, the time of deletions, where a time begins."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

MUTANTS = (
    Mutant(
        "aged-by-its-first-and-last-batch",
        0,
        "issue 13",
        "a ledger's age is taken from its first and last batch only",
        """A producer of old data works next to a live one. A ledger that began and ended with old
        messages lost the fresh ones between them to retention. The edit says that every batch
        was looked at.""",
        "P60, P61",
        "timestamps out of order, a take-over, retention by time",
        (
            Edit(
                "octavo.broker.partition.opening:PartitionOpener._measure",
                "0 if recovered.last_entry == 0 or closed.appended is not None else -1",
                "0",
            ),
        ),
        profile="topic",
    ),
    Mutant(
        "one-clock-believed",
        0,
        "issue 13",
        "retention believes the clock of a single broker",
        """A clock was ahead for two seconds, and the whole topic was deleted. The edit deletes by
        the broker's wall clock alone.""",
        "P60",
        "a broker's clock that jumps, retention by time",
        (
            Edit(
                "octavo.broker.clock.timekeeper:Timekeeper.now",
                "found = self._clock.observe(reading)",
                'found = DeletionTime(self._wall(), "", 0, self._wall())',
            ),
        ),
        profile="topic",
    ),
    Mutant(
        "one-clock-believed-after-a-while",
        0,
        "issue 13",
        "a time that only one clock shows is believed after the quarantine",
        """Without a clock in the metadata store, a machine that was off cannot be told from a
        machine whose clock was set; a steady clock proves nothing. The edit believes it after
        the quarantine.""",
        "P60, X1",
        "a broker's clock that stays ahead, no second clock, retention by time",
        (
            Edit(
                "octavo.broker.clock.deletion_clock:DeletionClock.observe",
                "may=witnessed or gap_ms < 0",
                "may=True",
            ),
        ),
        profile="topic",
    ),
    Mutant(
        "halved-as-if-times-ascended",
        0,
        "issue 13",
        "a search by time assumes that timestamps ascend",
        """Bisection is right only if timestamps ascend: for time 100 in 100, 10, 110, 20 it found
        the end. The edit ignores how far timestamps fall back.""",
        "P61",
        "timestamps out of order, lookups by time",
        (
            Edit(
                "octavo.ledger.read.entry_source:EntrySource.as_new_as",
                "< time_ms - disorder_ms",
                "< time_ms",
            ),
        ),
        profile="topic",
    ),
    Mutant(
        "disorder-of-the-last-batch-only",
        0,
        "issue 13",
        "a ledger remembers only its last fall in timestamps, not the largest",
        """The edit keeps only the last fall of the timestamps, not the largest, so bisection is
        wrong before it.""",
        "P61",
        "timestamps out of order, lookups by time",
        (
            Edit(
                "octavo.broker.log.ledger_list:Contents.plus",
                "max(self.disorder_ms, self.last_ms - newest)",
                "max(0, self.last_ms - newest)",
            ),
        ),
        profile="topic",
    ),
    Mutant(
        "cold-reads-with-the-producers-time",
        0,
        "issue 19",
        "cold reads show the producer's time instead of the append time",
        """The append time is in the batch, and every way to a reader must read it there. The edit
        omits it for cold reads, so a message's time depends on the cache.""",
        "P66",
        "append times, reads of what is no more in the tail cache",
        (
            Edit(
                "octavo.broker.log.reader:LogReader._entries",
                "shown(header._replace(base_offset=base), segment.appended)",
                "shown(header._replace(base_offset=base), None)",
            ),
        ),
        profile="topic",
    ),
)
