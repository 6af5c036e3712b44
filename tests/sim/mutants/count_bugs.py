"""Bugs of counts and wake-ups: counts that are never given back, and waiters that are not woken.

Most remove a line. They neither lose a message nor refuse a call at once: a bound fills up over
days, or a wait lasts until the next tick. The quiescence referee (Q1) and the wake-up referee (Q2)
see them in the first seeds.
"""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant
from tests.sim.mutants.tested import TestedBug

COUNTS = "counts and wake-ups"
_FLIGHT = "octavo.bookie.wire.in_flight:InFlight"
_LEFT = "clients that ask for much and go away (profile `crowd`)"


def _bug(
    name: str, title: str, story: str, breaks: str, edit: tuple[str, str, str], profile: str
) -> Mutant:
    found_by = _LEFT if profile == "crowd" else "tiny bounds"
    return Mutant(name, 0, COUNTS, title, story, breaks, found_by, (Edit(*edit),), profile)


MUTANTS = (
    _bug(
        "task-of-one-that-left",
        "a cancelled read stays counted after its connection ends",
        "The count says how many reads may run. After some thousand clients none may.",
        "Q1",
        (
            f"{_FLIGHT}._ran",
            "self._scheduler.task_ended()",
            "task.cancelled() or self._scheduler.task_ended()",
        ),
        "crowd",
    ),
    _bug(
        "line-of-one-that-left",
        "waiting reads stay counted after their connection ends",
        "Above the bound each read is refused, though nothing waits.",
        "Q1",
        (
            f"{_FLIGHT}.cancel",
            "self._scheduler.waiting -= len(self._waiting.clear())",
            "self._waiting.clear()",
        ),
        "crowd",
    ),
    _bug(
        "poll-of-one-that-left",
        "a cancelled long poll stays counted after its connection ends",
        "Followers of ledgers come and go; in the end each poll is refused.",
        "Q1",
        (
            f"{_FLIGHT}._waited",
            "self._requests.polls -= 1",
            "self._requests.polls -= not task.cancelled()",
        ),
        "crowd",
    ),
    _bug(
        "half-frame-of-one-that-left",
        "a half-received frame stays counted after its connection ends",
        "The room for frames that are not whole fills, and every socket is read by small pieces.",
        "Q1",
        (
            "octavo.bookie.back_pressure:Flow.release",
            "self._frames.give_back(self, self._held_bytes, granted=self._granted)",
            "pass",
        ),
        "crowd",
    ),
    _bug(
        "task-ends-and-wakes-none",
        "a read that ends does not start the next read",
        "A connection that waited for a task gets it with the next turn, or is refused.",
        "Q2",
        ("octavo.bookie.wire.read_scheduler:ReadScheduler.task_ended", "self._unblock()", "pass"),
        "crowd",
    ),
    _bug(
        "stuck-for-good",
        "a connection that reached its limit of reads never gets a turn again",
        "Its reads wait until the client gives up.",
        "S1, Q1",
        (f"{_FLIGHT}._ran_in_turn", "self._stuck = False", "pass"),
        "crowd",
    ),
    _bug(
        "turn-ends-with-some-left",
        "a turn that leaves connections waiting does not plan another turn",
        "They wait until another connection asks something.",
        "Q2",
        (
            "octavo.bookie.wire.read_scheduler:ReadScheduler._turn",
            "if ready and not self._answers.is_spent:\n        self._soon()",
            "if False:\n        self._soon()",
        ),
        "crowd",
    ),
    _bug(
        "room-for-frames-is-not-told",
        "room for a long frame becomes free and no waiting socket is resumed",
        "The socket stays unread until its client sends something else, which it cannot.",
        "Q2",
        (
            "octavo.bookie.back_pressure:FrameRoom.change",
            "if by < 0 and self._waiting:",
            "if False:",
        ),
        "crowd",
    ),
    _bug(
        "landed-and-starts-none",
        "a disk read that ends does not start the next one",
        "What waits for a thread waits for another read to come.",
        "Q2",
        ("octavo.bookie.read.cold_reads:ColdReads._landed", "self._start()", "pass"),
        "crowd",
    ),
    _bug(
        "drain-is-not-woken",
        "a writer that has room again does not wake its waiting callers",
        "A partition whose ledger writer was full once takes no publish any more.",
        "Q2 (S9)",
        ("octavo.ledger.write.writer:LedgerWriter.released", "self._wake()", "pass"),
        "topic",
    ),
)


def _tested(
    name: str, title: str, story: str, breaks: str, test: str, edit: tuple[str, str, str]
) -> TestedBug:
    return TestedBug(name, title, story, breaks, test, (Edit(*edit),))


_LINE = "unit/broker/test_publisher.py"
_PUBLISHER = "octavo.broker.partition.publisher:Publisher"
_WATCHES = "octavo.metadata.zookeeper_watches:PlacedWatches"
_AGAIN = (
    "conformance/test_metadata_store.py::test_a_watch_that_was_cancelled_and_is_placed_again_hears"
)

_CHANNEL = "octavo.ledger.write.bookie_channel:BookieChannel"
_CONNECTION = "octavo.ledger.bookies.connection:BookieConnection"
_READS = "octavo.bookie.read.path:ReadPath"
_CALLS = "unit/broker/test_dispatch.py"
_SUBSCRIPTION = "octavo.broker.subscriptions.subscription:Subscription"

BUGS = (
    _tested(
        "given-up-and-still-counted",
        "a publish that gives up waiting leaves its bytes counted",
        "After some of them each publish that finds no room at once is refused.",
        "Q1",
        _LINE,
        (f"{_PUBLISHER}._give_up", "self._waiting_bytes -= job.size", "pass"),
    ),
    _tested(
        "given-up-and-lets-none-in",
        "a publish that gives up waiting does not let the next one in",
        "It was too long for the free room; the publishes behind it are not.",
        "Q2",
        _LINE,
        (f"{_PUBLISHER}._give_up", "self._pump()", "pass"),
    ),
    _tested(
        "cancelled-and-still-in-line",
        "a publish whose caller has gone keeps its place in the queue",
        "The edit removes only publishes that waited for too long.",
        "Q1",
        _LINE,
        (f"{_PUBLISHER}.publish", "self._give_up(job)", "pass"),
    ),
    _tested(
        "busy-again-goes-last",
        "a batch that a busy writer refuses goes to the end of the queue",
        "A writer that takes some and is busy again changes their order.",
        "S9 (order)",
        _LINE,
        (f"{_PUBLISHER}._admit", "self._waiting.appendleft(job)", "self._waiting.append(job)"),
    ),
    _tested(
        "placed-before-the-reconnect",
        "a watch cancelled before a reconnect counts as placed after it",
        "When the same watch is placed again, it never fires.",
        "watches stand",
        _AGAIN,
        (f"{_WATCHES}.place_all", "self._placed.clear()", "pass"),
    ),
    _tested(
        "resumed-and-sends-nothing",
        "a channel whose pause ends does not resume sending",
        "Its entries wait until another chunk is pushed, or the bookie counts as silent.",
        "Q2",
        "unit/ledger/test_bookie_channel.py",
        (f"{_CHANNEL}._resume", "self.pump()", "pass"),
    ),
    _tested(
        "heard-and-sends-nothing",
        "an ack that widens a channel's window does not resume sending",
        "The last entries of a writer wait until the bookie counts as silent.",
        "Q2",
        "unit/ledger/test_bookie_channel.py",
        (f"{_CHANNEL}.heard", "self.pump()", "pass"),
    ),
    _tested(
        "resumed-socket-is-not-told",
        "a socket that accepts bytes again does not notify the writers",
        "They wait for their next tick.",
        "Q2",
        "unit/ledger/test_bookie_channel.py",
        (f"{_CONNECTION}.resume_writing", "self._owner.connection_writable()", "pass"),
    ),
    _tested(
        "flushed-and-not-told",
        "a flushed buffer does not notify the writers",
        "They wait for their next tick.",
        "Q2",
        "unit/ledger/test_bookie_channel.py",
        (
            f"{_CONNECTION}._flush",
            "if was_full and not self._paused:\n        self._owner",
            "if False:\n        self._owner",
        ),
    ),
    _tested(
        "answered-and-still-kept",
        "an answered request stays in its connection's memory",
        "A connection lasts for weeks, and a request each second stays.",
        "Q1",
        "unit/ledger/test_bookie_channel.py",
        (
            f"{_CONNECTION}._numbered",
            "self._by_id.pop(request_id, None)",
            "self._by_id.get(request_id)",
        ),
    ),
    _tested(
        "room-for-one-alone",
        "free room for answers wakes only one of the waiting reads",
        "The others wait until room is short and comes free again.",
        "Q2",
        "unit/bookie/test_reads.py",
        (f"{_READS}._room", "while self._waiting:", "if self._waiting:"),
    ),
    _tested(
        "a-list-keeps-its-turn",
        "a list of entries never gives its turn back",
        "After two of them each list is refused.",
        "Q1",
        "unit/bookie/test_reads.py",
        (f"{_READS}.entries", "self._listing.release()", "pass"),
    ),
    _tested(
        "asked-once-for-all",
        "a bookie that answered a force is never asked to force again",
        "It is never asked again, and the ledger confirms nothing more.",
        "Q1 (S9)",
        "unit/ledger/test_bookie_channel.py",
        ("octavo.ledger.write.forces:Forces._answered", "del self._asked[bookie_id]", "pass"),
    ),
    _tested(
        "one-group-and-no-more",
        "the journal stops after one group commit",
        "Adds behind it wait until another one comes.",
        "Q2",
        "unit/bookie/test_journal.py",
        (
            "octavo.bookie.journal.journal:Journal._commit_all",
            "while self._queue:",
            "if self._queue:",
        ),
    ),
    _tested(
        "given-and-still-read",
        "a delivered hand-out stays counted as being read",
        "A consumer that is gone holds an exclusive subscription for ever.",
        "Q1",
        _CALLS,
        ("octavo.broker.subscriptions.dispatch:Dispatcher.begin", "self._reads -= 1", "pass"),
    ),
    _tested(
        "given-back-and-still-read",
        "a returned hand-out stays counted as being read",
        "A consumer that is gone holds an exclusive subscription for ever.",
        "Q1",
        _CALLS,
        ("octavo.broker.subscriptions.dispatch:Dispatcher.give_back", "self._reads -= 1", "pass"),
    ),
    _tested(
        "ended-and-still-receiving",
        "a receive that ended without a message stays counted as waiting",
        "Each later call gets a smaller share, and the subscription never expires.",
        "Q1",
        _CALLS,
        (
            f"{_SUBSCRIPTION}.receive_as",
            "finally:\n        self._receiving -= waiting",
            "finally:\n        pass",
        ),
    ),
    _tested(
        "given-up-and-still-waiting",
        "a receive that is given up leaves its waiter in memory",
        "The waiters of calls that timed out pile up until a message comes.",
        "Q1",
        _CALLS,
        (f"{_SUBSCRIPTION}._wait", "self._waiters.pop(waiter, None)", "pass"),
    ),
)
