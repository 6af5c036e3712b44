"""Planted bugs of the operations between brokers, and the tests that find them."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit
from tests.sim.mutants.tested import TestedBug

_LINKS = "unit/broker_operations/test_links.py"
_CHANNEL = "unit/broker_operations/test_channel.py"
_ELSEWHERE = "cluster/test_consumers.py"
_FRAMES = "unit/broker_operations/test_channel.py"
_BROKERS = "unit/broker_operations/test_bodies.py"
_RULES = "unit/broker_operations/test_rules.py"

BUGS = (
    TestedBug(
        "answer-of-another-operation",
        "an answer goes to the oldest request instead of its own",
        """Many operations are under way on one connection, and answers come in any order. A caller
        gets the offset of another caller's message.""",
        "any broker answers as the owner does",
        _LINKS,
        (
            Edit(
                "octavo.broker.operations.links:AskingLink._take",
                "waiter = self._waiters.pop(answer.number, None)",
                "waiter = self._waiters.pop(next(iter(self._waiters)), None)",
            ),
        ),
    ),
    TestedBug(
        "unknown-operation-sent-again",
        "a publish whose answer was lost is sent again",
        """The connection ended after all of the request was sent. The edit treats this like an
        unreachable broker, and the batch is stored twice.""",
        "S9 (unknown is told, and never repeated by us)",
        _LINKS,
        (
            Edit(
                "octavo.broker.operations.remote:Remote.ask",
                "if error.sent and not rule.may_repeat:",
                "if error.sent and rule.may_repeat:",
            ),
        ),
    ),
    TestedBug(
        "operation-of-nobody",
        "an operation is sent without its caller's identity",
        """On a secured cluster the owner refuses an operation without an identity. In other checks
        it stores batches under wrong producer ids, and takes repeats for new batches.""",
        "X25 (the owner is told who asks)",
        _LINKS,
        (
            Edit(
                "octavo.broker.operations.remote:Remote.ask",
                "payload = encode_request(identity, owner",
                'payload = encode_request(Identity("anonymous"), owner',
            ),
        ),
    ),
    TestedBug(
        "operation-without-deadline",
        "an operation is sent without its deadline",
        "The owner continues to wait, or begins an operation that its caller gave up seconds ago.",
        "a deadline goes along",
        _CHANNEL,
        (
            Edit(
                "octavo.broker.operations.channel:Asking._begin",
                "left_ms = min(max(0, round((request.deadline_s - now_s) * 1000)), NUMBER_MAX)",
                "left_ms = NUMBER_MAX",
            ),
        ),
    ),
    TestedBug(
        "part-of-a-request-counts-as-done",
        "a half-sent request has an unknown outcome",
        """The owner cannot have begun it. Callers are told that the outcome is unknown, and
        publishers without a sequence cannot repeat.""",
        "unknown is told only where it is",
        _CHANNEL,
        (
            Edit(
                "octavo.broker.operations.channel:Asking.lose",
                "if r.state is State.OUT]",
                "if r.state is not State.WAITING]",
            ),
        ),
    ),
    TestedBug(
        "seal-of-another-frame",
        "a frame's seal does not cover its number",
        "An attacker between two brokers sends a publish a second time, or leaves one out.",
        "what counts between brokers counts from brokers only",
        _FRAMES,
        (
            Edit(
                "octavo.broker.operations.frames:Seals.next",
                "self._number += 1",
                "self._number = 1",
            ),
        ),
    ),
    TestedBug(
        "lease-of-a-late-answer",
        "messages in an answer whose caller has gone stay leased",
        """The owner has sent the messages, and no client reads them. They stay leased until the ack
        timeout, and count as delivered.""",
        "S9 (a lease without a reader is given back)",
        _LINKS,
        (
            Edit(
                "octavo.broker.operations.remote:Remote._unwanted",
                "if not isinstance(operation, Receive):",
                "if isinstance(operation, Receive):",
            ),
        ),
    ),
    TestedBug(
        "lease-of-an-answer-never-sent",
        "messages in an answer that could not be sent stay leased",
        """The broker that asked died while the owner's answer waited. Its messages stay leased to a
        consumer that has never seen them.""",
        "S9 (a lease without a reader is given back)",
        _CHANNEL,
        (
            Edit(
                "octavo.broker.operations.channel:Answering.lose",
                "for undelivered in unsent:",
                "for undelivered in unsent[:0]:",
            ),
        ),
    ),
    TestedBug(
        "cancelled-while-offered",
        "messages in an offered answer stay leased after a cancellation",
        """A receive that waits reserves little, so long answers are offered first. Its caller goes
        in that moment, and the messages stay leased.""",
        "S9 (a lease without a reader is given back)",
        _CHANNEL,
        (
            Edit(
                "octavo.broker.operations.channel:Answering._cancel",
                "if owed.undelivered is not None:",
                "if owed.undelivered is not None and owed.asked is None:",
            ),
        ),
    ),
    TestedBug(
        "lost-receive-asked-anew",
        "a receive that is asked again gets the next messages, not the same",
        """The first messages stay leased, and a consumer that acks all up to an offset acks them
        unseen.""",
        "S9 (an answer that was lost is given again)",
        _ELSEWHERE,
        (
            Edit(
                "octavo.broker.operations.kinds:numbered",
                "return operation if operation.request else",
                "return operation if not operation.request else",
            ),
        ),
    ),
    TestedBug(
        "offers-without-bound",
        "answers that wait to be taken are not bounded",
        """Sixteen thousand receives may wait on one connection. When messages come for all of them,
        the owner holds every answer at once.""",
        "each side of a connection is bounded in bytes",
        _CHANNEL,
        (
            Edit(
                "octavo.broker.operations.channel:Answering.answer",
                "self._offered_bytes += size",
                "pass",
            ),
        ),
    ),
    TestedBug(
        "operation-of-brokers-for-a-client",
        "another broker's client may ask for what only brokers may",
        """A hand-over or a copy needs no right, because only brokers ask for it. A client whose
        operation reaches the owner could store letters in any topic.""",
        "an operation of brokers is refused to clients",
        _RULES,
        (
            Edit(
                "octavo.broker.operations.rules:_check_inner",
                "and not identity.is_node",
                "and identity.is_node",
            ),
        ),
    ),
    TestedBug(
        "letter-counted-by-a-quota",
        "what brokers ask on their own behalf is charged to a namespace",
        """The namespace has used its quota up. Its dead letters are refused, as if a client had
        published them, and its unused topics are never deleted.""",
        "no quota counts what a broker asks on its own behalf",
        _BROKERS,
        (
            Edit(
                "octavo.broker.operations.serving:Serving._begin",
                "if not (rule.is_inner or rule.continues):",
                "if not rule.continues:",
            ),
        ),
    ),
    TestedBug(
        "take-over-cancelled-half-way",
        "a broker that gives up cancels the hand-over at its successor",
        """The successor has claimed the partition and is opening it. The cancellation reaches it
        between two writes.""",
        "what has begun at another broker is finished there",
        _BROKERS,
        (
            Edit(
                "octavo.broker.operations.serving:Serving._run",
                "await asyncio.shield(self._keep(run_at_broker(self._broker, operation)))",
                "await run_at_broker(self._broker, operation)",
            ),
        ),
    ),
)
