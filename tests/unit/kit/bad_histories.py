"""Hand-made histories: each kind of problem, and innocent look-alikes, as scripts.py reads
them. A bad one shows its own kind; a second kind that must show too is in `ALSO`."""

from __future__ import annotations

from tests.support.kit.problems import Kind

BAD: dict[Kind, list[str]] = {
    Kind.LOST: [
        "p send a -> 0; p send b -> 1; r poll from=0 -> 1:b",
        "p send a -> 0; p send b -> 1; p send c -> 2; r poll -> 0:a; r poll -> 2:c",
        "p send a -> 0; p send b -> 1; c/s receive -> 1:b; c/s drain",
        "p send a -> 0; q send b -> 1; c/s poll -> 1:b",
        "p send a -> 0; p send b -> 1; r poll from=0 -> 1:b; p send c ?; r poll -> 2:c",
        "p send a -> 0; p send b -> 1; c/s receive -> 1:b; r poll -> 1:b; r drain",
        "p add a -> 0; r read -> 0:-",
        "p add a -> 0; q read -> 0:a; r read -> 0:-",
        "x=p add a; q read -> 0:a; r read -> 0:-; x?",
        "p add a -> 0; p add b -> 1; q close -> 1; r read -> 0:a,1:-",
    ],
    Kind.UNSEEN: [
        "p send a -> 0; p send b -> 1; r poll -> 0:a; r drain",
        "p send a -> 0; r poll from=0 ->; r drain",
        "p send a ->; r poll from=0 ->; r drain",
        "p send a -> 0; r poll -> 0:a; c/s receive ->; c/s drain",
        "x=p send a; r poll -> 0:a; c/s drain; x?",
        "p send a -> 0; p send b @u -> 0; r poll -> 0:a; r drain @t; r drain @u",
        "p send a -> 0; c/s receive -> 0:a; d/z reset 0; d/z drain @t",
        "p add a -> 0; r drain",
        "p add a ?; q close -> 0; r drain",
        "p add a -> 0; p add b -> 1; r read -> 0:a; r drain",
        "x=p add a; q read -> 0:a; r drain; x?",
    ],
    Kind.PHANTOM: [
        "r poll -> 0:a",
        "p send a !; r poll -> 0:a",
        "r poll -> 0:a; p send a -> 0",
        "p send a !; p send a !; c/s receive -> 0:a",
        "p send a -> 0; r poll -> 0:a,1:A",
        "x=r poll; s poll -> 0:a; p send a -> 0; x -> 0:a",
        "s poll -> 0:a; p send a -> 0; r poll -> 0:a",
        "p send a @u -> 0; r poll @u -> 0:a; r poll -> 0:b",
        "p add a !; r read -> 0:a",
        "r read -> 0:a",
        "r read -> 0:a; p add a -> 0",
        "p add a ?; p add b ?; q close -> 1; b replica -> 0:a,1:x",
    ],
    Kind.DUPLICATE: [
        "p send a -> 0; r poll -> 0:a,1:a",
        "p send a ?; r poll -> 0:a,1:a",
        "p send a -> 0; p send a !; r poll -> 0:a,1:a",
        "p send a -> 0; p send b -> 1; r poll -> 0:a,1:b,2:a",
        "p send a -> 0; c/s receive -> 1:a; c/s receive -> 0:a",
        "p send a -> 0; r poll -> 0:a; r poll @u -> 0:a",
        "p send a !; p send a -> 0; r poll -> 0:a; q poll -> 0:a,1:a",
    ],
    Kind.REORDERED: [
        "p send a -> 1; p send b -> 0",
        "p send a ?; p send b ?; r poll -> 0:b,1:a",
        "p send a -> 1; p send b ?; r poll -> 0:b,1:a",
        "x=p send a; y=p send b; y -> 0; x -> 1; r poll -> 0:b,1:a",
        "p send a -> 0; p send b -> 2; p send c -> 1; r poll -> 0:a,1:c,2:b",
        "p send a #k ?; p send b #l ?; r poll -> 0:b,1:a",
        "p send a #k ?; p send b #k ?; c/s receive -> 0:b; c/s receive -> 1:a",
        "x=p add a; y=p add b; y -> 0; x -> 1",
        "p add a -> 0; x=p add b; y=p add c; y -> 1; x -> 2",
        "x=p add a; y=p add b; z=p add c; y -> 0; x -> 1; z -> 2",
    ],
    Kind.REAL_TIME: [
        "p send a -> 1; q send b -> 0",
        "p send a -> 3; q send b -> 0; p send c -> 1; p send d -> 2",
        "p send a -> 1; q send b ?; r poll -> 0:b,1:a",
        "p send a -> 2; q send b -> 0; r send c -> 1",
        "p send a ->; q send b -> 0; r poll -> 0:b,1:a",
        "x=q send b; p send a -> 1; s send c -> 0; x?",
        "x=z send z; p send a -> 5; x -> 6; q send b -> 4; p send c -> 7",
    ],
    Kind.INCONSISTENT: [
        "p send a -> 0; q send b ->; r poll -> 0:a; s poll -> 0:b",
        "x=p send a; y=q send b; x -> 0; y -> 0",
        "x=p send a; y=q send b; x?; y?; r poll -> 0:a; s poll -> 0:b",
        "x=p send a; y=q send b; x -> 0; y -> 1; r poll -> 0:b,1:a",
        "p send a ?; p send b ?; c/s receive -> 0:a; c/s receive -> 0:b",
        "x=p send a; y=p send b; x -> 0; y -> 0",
    ],
    Kind.MOVED: [
        "p send a -> 0; r poll -> 1:a",
        "p send a -> 0; r poll @u -> 0:a",
        "p send a -> 0; p send b -> 1; r poll -> 0:a; r poll from=2 -> 2:b",
        "p send a -> 5; c/s receive -> 0:a",
        "p send a !; p send a -> 1; r poll -> 0:a",
    ],
    Kind.HOLE: [
        "p send a ?; r poll from=0 -> 1:a",
        "p send a -> 0; p send b -> 2; r poll -> 0:a,2:b",
        "p send a -> 0; p send b -> 2; r poll -> 0:a; r poll -> 2:b",
        "p send a -> 3; c/s poll -> 3:a",
        "p send a -> 0; p send b -> 9; q poll -> 0:a; r poll -> 0:a,9:b",
    ],
    Kind.NONMONOTONIC: [
        "p send a -> 0; r poll -> 0:a; r poll -> 0:a",
        "p send a -> 0; p send b -> 1; r poll -> 0:a,1:b; r poll -> 0:a",
        "p send a -> 0; p send b -> 1; r poll -> 1:b,0:a",
        "p send a -> 0; p send b -> 1; r poll from=1 -> 0:a",
        "p send a -> 0; p send b -> 1; c/s poll -> 0:a,1:b,0:a",
        "p send a -> 0; c/s poll -> 0:a,0:a",
        "p send a -> 0; r poll -> 0:a; r seek @u; r poll -> 0:a",
        "p send a -> 0; r poll -> 0:a; r poll @u ->; r poll -> 0:a",
    ],
    Kind.SKIPPED: [
        "p send a -> 0; p send b -> 1; q poll -> 0:a,1:b; r poll from=0 -> 1:b",
        "p send a -> 0; p send b ?; p send c -> 2; q poll -> 0:a,1:b; r poll -> 0:a,2:c",
        "p send a -> 0; p send b -> 1; q poll -> 0:a; c/s poll -> 1:b",
        "p send a -> 0; p send b -> 1; p send c -> 2; q poll -> 0:a,1:b,2:c; "
        "c/s poll -> 0:a; d/s poll -> 2:c",
        "p send a -> 0; p send b -> 1; r poll -> 0:a; r seek; r poll from=0 -> 1:b",
        "p send a -> 0; p send b -> 1; c/s reset 0; q poll -> 0:a; c/s poll -> 1:b",
    ],
    Kind.CURSOR_REGRESS: [
        "c/s ack 0 ->; c/s mark -> 1; c/s mark -> 0",
        "c/s ack 0,1 ->; c/s mark -> 1",
        "c/s ack_up_to 4 ->; c/s mark -> 3",
        "c/s ack 0 ->; d/s ack 2 ->; d/s ack 1 ->; c/s mark -> 2",
        "c/s reset 5 ->; c/s mark -> 4",
        "c/s ack_up_to 4 ->; c/s ack_up_to 2 ->; c/s mark -> 3",
        "c/s ack 0,1 ->; c/s reset 0 !; c/s mark -> 1",
        "c/s ack 3 ->; c/s ack_up_to 2 ->; c/s mark -> 3",
        "c/s ack 0,1 ?; d/s mark -> 2; c/s mark -> 1",
        "c/s ack_up_to 4 ->; c/s reset 2 ->; c/s mark -> 1",
    ],
    Kind.MARK_OVER_UNACKED: [
        "c/s mark -> 1",
        "c/s ack 1 ->; c/s mark -> 2",
        "c/s ack 0 !; c/s mark -> 1",
        "c/s ack 0,1 -> 1; c/s mark -> 2",
        "c/s ack_up_to 3 ->; c/s mark -> 5",
        "c/s mark -> 1; c/s ack 0 ->",
        "x=c/s ack 2; c/s reset 2 ->; x!; c/s mark -> 3",
        "c/s reset 3 ->; c/s ack 4 ->; c/s mark -> 5",
        "c/z ack 0 ->; c/s mark -> 1",
    ],
    Kind.REDELIVERED: [
        "p send a -> 0; c/s receive -> 0:a; c/s ack 0 ->; c/s receive -> 0:a",
        "p send a -> 0; c/s receive -> 0:a; c/s ack 0 ->; d/s receive -> 0:a",
        "p send a -> 0; c/s receive -> 0:a; c/s ack_up_to 0 ->; c/s receive -> 0:a",
        "p send a -> 0; p send b -> 1; c/s receive -> 0:a,1:b; c/s ack 1 ->; d/s receive -> 1:b",
        "p send a -> 0; c/s poll -> 0:a; c/s ack_up_to 0 ->; c/s poll -> 0:a",
        "p send a -> 0; p send b -> 1; c/s receive -> 0:a,1:b; c/s ack 0,1 -> 0; "
        "d/s receive -> 0:a,1:b",
        "p send a -> 0; c/s reset 1 ->; c/s receive -> 0:a",
    ],
    Kind.LAC_BACK: [
        "p add a -> 0; p add b -> 1; r lac -> 1; r lac -> 0",
        "p add a -> 0; r lac -> 0; r lac -> -1",
        "p add a -> 0; p add b -> 1; x=r lac; r lac -> 1; x -> 0; r lac -> 0",
        "x=p add a; r lac -> 0; r lac -> -1; x?",
        "p add a -> 0; p add b -> 1; p add c -> 2; r lac -> 0; r lac -> 2; r lac -> 1",
        "p add a -> 0; p add b -> 1; x=r lac; x -> 1; y=r lac; q lac -> 0; y -> 0",
    ],
    Kind.LAC_STALE: [
        "p add a -> 0; p lac -> -1",
        "p add a -> 0; p add b -> 1; p lac -> 0",
        "p add a -> 0; r close -> 0; r lac -> -1",
        "p add a -> 0; p add b -> 1; r lac -> 0; r read -> 0:a; r drain",
        "p add a -> 0; r lac -> -1; r read -> 0:a; r drain",
        "p add a -> 0; p add b -> 1; q close -> 1; q lac -> 0",
    ],
    Kind.LAC_AHEAD: [
        "r lac -> 0",
        "p add a -> 0; r lac -> 1",
        "r lac -> 0; p add a -> 0",
        "p add a -> 0; p add b ?; q close -> 0; r lac -> 1",
        "p add a -> 0; p add b ?; r lac -> 1; q close -> 0",
    ],
    Kind.UNCONFIRMED: [
        "p add a -> 0; r lac -> -1; r read -> 0:a",
        "p add a -> 0; p add b -> 1; r lac -> 0; r read -> 0:a,1:b",
        "x=p add a; r lac -> -1; r read -> 0:a; x?",
        "p add a -> 0; p add b -> 1; q lac -> 1; r lac -> 0; r read -> 1:b",
        "p add a -> 0; r read -> 0:a; r lac -> 0",
        "p add a -> 0; x=r lac; r read -> 0:a; x -> 0",
    ],
    Kind.DIVERGED: [
        "p add a -> 0; q add b ?; r read -> 0:b",
        "p add a ?; p add b ?; r read -> 0:a; s read -> 0:b",
        "x=p add a; y=q add b; x -> 0; y -> 0",
        "p add a -> 0; q add b ?; q close -> 0; b replica -> 0:b",
        "p add a ?; q add b ?; q close -> 0; b replica -> 0:b; c replica -> 0:a",
        "p add a -> 0; p add b -> 1; r read -> 1:a",
    ],
    Kind.TWO_ENDS: [
        "p add a ?; q close -> 0; r close -> -1",
        "p add a -> 0; p add b ?; q close -> 0; r close -> 1",
        "p add a -> 0; p add b ?; x=q close; y=r close; x -> 0; y -> 1",
        "p add a -> 0; q close -> 0/5; r close -> 0/6",
        "q close -> -1/0; r close -> 0/1",
        "q close -> 3; r close -> 3; s close -> 4",
        "p add a -> 0; p add b -> 1; q close -> 1; r close -> 0",
    ],
    Kind.ACK_BEYOND_END: [
        "p add a -> 0; q close -> -1",
        "p add a -> 0; p add b -> 1; q close -> 0",
        "x=p add a; q close -> -1; x -> 0",
        "p add a -> 0; p add b -> 1; p add c -> 2; q close -> 1; r close -> 1",
        "p add a -> 0; q close -> -1/0",
    ],
    Kind.READ_BEYOND_END: [
        "p add a ?; r read -> 0:a; q close -> -1",
        "p add a ?; q close -> -1; r read -> 0:a",
        "p add a -> 0; p add b ?; q close -> 0; r read -> 0:a,1:b",
        "p add a -> 0; p add b ?; p add c ?; r read -> 2:c; q close -> 1",
        "x=p add a; r read -> 0:a; q close -> -1; x?",
    ],
    Kind.ACK_AFTER_FENCE: [
        "q fence ->; p add a -> 0",
        "p add a -> 0; q fence ->; p add b -> 1",
        "p add a -> 0; q fence ->; s fence ?; p add b -> 1; q close -> 1",
        "p add a -> 0; x=q fence; p add b -> 1; x ->; p add c -> 2; q close -> 2",
        "p add a -> 0; q close -> 1; p add b -> 1",
    ],
    Kind.ACK_DISORDER: [
        "x=p add a; y=p add b; y -> 1; x -> 0",
        "x=p add a; y=p add b; z=p add c; x -> 0; z -> 2; y -> 1",
        "p add a -> 0; x=p add b; y=p add c; y -> 2; x -> 1",
        "x=p add a; y=p add b; y -> 1; r lac -> 1; x -> 0",
        "x=p add a; y=p add b; y -> 1; q close -> 1; x -> 0",
    ],
}

ALSO: dict[str, set[Kind]] = {
    "p send a -> 3; q send b -> 0; p send c -> 1; p send d -> 2": {Kind.REORDERED},
    "p add a -> 0; p add b -> 1; q close -> 1; r close -> 0": {Kind.ACK_BEYOND_END},
    "p add a -> 0; p add b -> 1; r lac -> 0; r read -> 0:a; r drain": {Kind.UNSEEN},
    "p add a -> 0; r lac -> -1; r read -> 0:a; r drain": {Kind.UNCONFIRMED},
}
"""Scripts of `BAD` that also break a second promise."""


def named(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for line in filter(None, text.splitlines()):
        if line[0] != " ":
            name, found[line] = line, ""
        else:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found


GOOD = named("""nothing

an unknown send is not there
    p send a ?; p send b -> 0; r poll -> 0:b; r drain
an unknown send is there
    p send a ?; p send b -> 1; r poll -> 0:a,1:b; r drain
an unknown send appears after much else
    x=p send a; q send b -> 0; x?; r poll -> 0:b,1:a
a send that was never answered
    x=p send a; r poll -> 0:a
a failed send is not there
    p send a !; r drain
failed, then sent again
    p send a !; p send a -> 0; r poll -> 0:a
sent again by its user after an unknown outcome
    p send a ?; p send a -> 1; r poll -> 0:a,1:a; r drain
sent again, and stands where the first one was
    p send a ?; p send b -> 1; p send a -> 0
sent again, and the reader has not come to the second one yet
    p send a ?; p send b -> 1; p send a -> 2; r poll -> 0:a,1:b
a drain that did not come to an end
    p send a -> 0; r drain ?
acked by another consumer while the poll was under way
    p send a -> 0; p send b -> 1; r poll -> 0:a,1:b; x=c/s poll; d/s ack_up_to 0 ->; x -> 1:b
a subscription that is being moved
    p send a -> 0; p send b -> 1; r poll -> 0:a,1:b; x=c/s reset 1; c/s poll -> 1:b; x ->
two polls of a subscription beside one another
    p send a -> 0; p send b -> 1; x=c/s poll; y=d/s poll; y -> 1:b; x -> 0:a
a mark that was asked for before a reset
    c/s ack_up_to 4 ->; x=c/s mark; c/s reset 2 ->; x -> 2
failed, then added again
    p add a !; p add a -> 0; r read -> 0:a
added, then a repeat that failed
    p add a -> 0; p add a !; r read -> 0:a
drained before it was closed
    p add a ?; r drain; q close -> 0
told of the end while asking for the LAC
    p add a -> 0; p add b -> 1; x=q close; q lac -> 0; x -> 1
never there, for two readers
    x=p add a; r read -> 0:-; s read -> 0:-; x?
acked, and its offset is not known any more
    p send a ->; r poll -> 0:a; r drain
acked and not yet read by anybody
    p send a -> 0; p send b -> 1; r poll -> 0:a
read before its ack came
    x=p send a; r poll -> 0:a; x -> 0
a read that begins before the send and ends after it
    x=r poll; p send a -> 0; x -> 0:a
sends beside one another in any order
    x=p send a; y=q send b; y -> 0; x -> 1
two partitions have each their own order
    p send a -> 1; p send b @u -> 0; q send c -> 5; q send d @v -> 0
a reader that begins in the middle
    p send a -> 0; p send b -> 1; r poll -> 1:b
a reader that is told to seek
    p send a -> 0; r poll -> 0:a; r seek; r poll -> 0:a
a reader that asks for an offset again
    p send a -> 0; r poll -> 0:a; r poll from=0 -> 0:a
a shared subscription delivers in any order
    p send a -> 0; p send b -> 1; c/s receive -> 1:b; d/s receive -> 0:a; c/s drain
redelivered, since it was not acked
    p send a -> 0; c/s receive -> 0:a; c/s receive -> 0:a
redelivered after an ack of unknown outcome
    p send a -> 0; c/s receive -> 0:a; c/s ack 0 ?; c/s receive -> 0:a
redelivered after an ack that was refused
    p send a -> 0; p send b -> 1; c/s receive -> 0:a,1:b; c/s ack 0,1 -> 0; c/s receive -> 0:a
redelivered beside its ack
    p send a -> 0; c/s receive -> 0:a; x=c/s ack 0; y=d/s receive; x ->; y -> 0:a
redelivered after a reset
    p send a -> 0; c/s receive -> 0:a; c/s ack 0 ->; c/s reset 0 ->; c/s receive -> 0:a
redelivered after a reset of unknown outcome
    p send a -> 0; c/s receive -> 0:a; c/s ack 0 ->; c/s reset 0 ?; c/s receive -> 0:a
redelivered, the ack may have come before the reset
    p send a -> 0; c/s receive -> 0:a; x=c/s ack 0; c/s reset 0 ->; x ->; c/s receive -> 0:a
delivered to the other subscription
    p send a -> 0; c/s receive -> 0:a; c/s ack 0 ->; c/z receive -> 0:a
an exclusive subscription comes back to what is not acked
    p send a -> 0; p send b -> 1; c/s poll -> 0:a,1:b; c/s ack 0 ->; d/s poll -> 1:b
an exclusive subscription leaves out what was acked one by one
    p send a -> 0; p send b -> 1; p send c -> 2; c/s poll -> 0:a,1:b,2:c; c/s ack 1 ->; d/s
    poll -> 0:a,2:c
acked up to, unseen: nothing is owed
    p send a -> 0; p send b -> 1; r poll -> 0:a,1:b; c/s ack_up_to 0 ->; c/s poll -> 1:b; c/s
    drain
a subscription that begins later
    p send a -> 0; p send b -> 1; r poll -> 0:a,1:b; c/s reset 1 ->; c/s poll -> 1:b; c/s
    drain
sent after the drain began
    x=r drain; p send a -> 0; x ->; q poll -> 0:a; c/s drain; p send b -> 1; c/s receive ->
    0:a
a mark over acks that may have been
    c/s ack 0,1 ?; c/s mark -> 2
a mark over acks under way
    x=c/s ack 0; c/s mark -> 1; x ->
marks that overlap may seem to go back
    c/s ack 0 ->; x=c/s mark; c/s mark -> 1; x -> 1
a mark that was read before the ack was answered
    x=c/s ack 0; y=c/s mark; x ->; y -> 0
a mark goes back by reset
    c/s ack_up_to 4 ->; c/s mark -> 5; c/s reset 2 ->; c/s mark -> 2
a mark beside a reset
    c/s ack_up_to 4 ->; x=c/s reset 2; c/s mark -> 2; x ->
a mark behind holes
    c/s ack 0,2,3 ->; c/s mark -> 1; c/s ack 1 ->; c/s mark -> 4
acked before the reset ended, marked after it
    x=c/s ack 0; c/s reset 0 ->; x ->; c/s mark -> 1
an unknown add is the last entry
    p add a ?; q close -> 0; r read -> 0:a; r drain
an unknown add is beyond the end
    p add a ?; q close -> -1; r read -> 0:-; r drain
acked before the fence was complete
    x=q fence; p add a -> 0; x ->; q close -> 0
acked after the fence, added before
    x=p add a; q fence ->; x -> 0; q close -> 0
an unknown fence
    q fence ?; p add a -> 0
an unknown close
    q close ?; p add a -> 0; r close -> 0
two closers agree
    p add a -> 0; q close -> 0; r close -> 0/1
each reader has its own LAC
    p add a -> 0; p add b -> 1; r lac -> 1; s lac -> 0; r lac -> 1
a reader is told an old LAC first
    p add a -> 0; p add b -> 1; r lac -> 0; r lac -> 1
LACs asked for at the same time come in any order
    p add a -> 0; x=r lac; y=r lac; x -> 0; y -> -1
the LAC shows an add before its ack
    x=p add a; r lac -> 0; r read -> 0:a; x -> 0
read of a closed ledger without asking for the LAC
    p add a -> 0; q close -> 0; r read -> 0:a
a copy above the end
    p add a -> 0; p add b ?; q close -> 0; b replica -> 0:a,1:x
copies of an open ledger may differ
    p add a ?; q add b ?; b replica -> 0:a; c replica -> 0:b
not there before it was acked
    x=p add a; r read -> 0:-; x -> 0; r read -> 0:a
""")
