"""Each operation has a rule for rights, rates and audit, and the rules hold wherever it runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest

from octavo.broker.log.ledger_list import Contents
from octavo.broker.log.open_batches import Turns
from octavo.broker.operations.channel import Priority
from octavo.broker.operations.kinds import (
    RULES,
    AcquireAccess,
    AnyAnswer,
    AnyOperation,
    Await,
    DescribeAccess,
    DescribeGroup,
    DescribePartition,
    DescribeSubscription,
    Drain,
    Expire,
    Explain,
    FindForkPoint,
    FindOffset,
    FindUnused,
    Heartbeat,
    LeaveGroup,
    LetGo,
    LoadPart,
    LocalOperation,
    On,
    Peek,
    Prepare,
    Publish,
    Rate,
    Read,
    Receive,
    ReleaseAccess,
    Seek,
    Settle,
    Skip,
    StoreCopy,
    Subscribe,
    Take,
    Truncate,
    Unload,
    WriteAudit,
    decode_request,
    encode_request,
)
from octavo.broker.operations.large_kinds import (
    AddPiece,
    BeginLargeCopy,
    BeginUpload,
    EndBody,
    OpenBody,
    ReadBody,
)
from octavo.broker.operations.local import run
from octavo.broker.operations.rules import CALL, BrokerRules
from octavo.broker.operations.stream_kinds import (
    AppendToStream,
    AwaitStream,
    DeleteStream,
    DescribeStream,
    MakeStream,
    ReadStream,
    StreamAsked,
)
from octavo.broker.partition.handover_messages import Handover, HandoverNotice, HandoverState
from octavo.broker.state.stream import Append
from octavo.broker.types import GroupName, PartitionName, TopicSettings
from octavo.protocol.records import Record, build_batch
from octavo.protocol.topic_patterns import TopicPattern
from octavo.security.principal import Forbidden, Identity
from octavo.security.rules import CLUSTER, Kind, Operation, Resource

NAME = PartitionName("public", "t", 3)
GROUP = GroupName("public", "g")
ALICE = Identity("user:alice", source="token")
END = HandoverState(3, 7, 11, Contents(12, 4000, 5, 9, 1), 8, (b"\x00\xff", b""))
EVERY: list[AnyOperation] = [
    Publish(NAME, [build_batch([Record(b"k", b"v")])]),
    Read.of(NAME, (5,), 10, 10, compacted=False),
    Await(NAME, 0, 10),
    Receive(NAME, "s", "c", 10),
    Settle(NAME, "s", ["3-1-1-1"], up_to=[1, 2, 3]),
    FindOffset(NAME, [1, 2, 3]),
    Truncate(NAME, "latest"),
    Peek(NAME, "s", 10),
    Seek(NAME, "s", 7),
    Skip(NAME, "s", 1),
    Expire(NAME, "s", 1),
    Subscribe(NAME, "s"),
    DescribeSubscription(NAME, "s"),
    DescribePartition(NAME),
    Explain(NAME, "s"),
    Unload(NAME, "b1"),
    AcquireAccess(NAME, "p", 30_000, True, 5),
    ReleaseAccess(NAME, 7),
    DescribeAccess(NAME),
    FindForkPoint(NAME, [5]),
    LoadPart(NAME, "nightly", 3),
    StoreCopy(NAME, b"batch"),
    BeginLargeCopy(NAME, "run.b0", "letter:1", b"batch"),
    BeginUpload(NAME, "run.u0", "film", b"batch", 7),
    AddPiece(NAME, "run.b0", 3, b"piece"),
    EndBody(NAME, "run.b0", 4),
    OpenBody(NAME, [1, 2, 3]),
    ReadBody(NAME, 7, 1),
    WriteAudit(NAME, b"batch"),
    FindUnused(NAME, 60_000, 0, "s"),
    Prepare(NAME, HandoverNotice("i0", 3, True)),
    Take(NAME, Handover("i0", True, END, "b0", "b0 is being drained")),
    LetGo(NAME.topic_name, "i0"),
    Drain("b1", True),
    Heartbeat(
        GROUP, "m", [TopicPattern("public", "t"), TopicPattern("public", "a*")], [NAME], 7, 9
    ),
    LeaveGroup(GROUP, "m"),
    DescribeGroup(GROUP),
    MakeStream(
        NAME, StreamAsked("text/plain", 60, None, None, False, None), b"x", True, None, True
    ),
    AppendToStream(NAME, Append("p", 1, 2, "s", True), "text/plain", b"x"),
    DeleteStream(NAME),
    ReadStream(NAME, 7, 10, 10, 1_000),
    AwaitStream(NAME, 7, 10),
    DescribeStream(NAME, 7),
]
"""One operation of each kind."""
AT_OWNERS = [one for one in EVERY if isinstance(one, LocalOperation)]
OF_CLIENTS = [one for one in EVERY if not RULES[type(one)].is_inner]
OF_BROKERS = [one for one in EVERY if RULES[type(one)].is_inner]
NODE = Identity("node:b1", source="node")
MOVES_CURSORS = (Settle, Seek, Skip, Expire)


class Stopped(Exception):
    """A rate is exceeded."""


class FullRates:
    """Rules whose rates are all exceeded."""

    def may_publish(self, topic: object) -> None:
        raise Stopped(Rate.INTO)

    def may_read(self, topic: object) -> None:
        raise Stopped(Rate.OUT_OF)


class Untouched(Exception):
    """The partition was used."""


class Untouchable:
    """A partition, or its balance, that raises when an operation uses it."""

    def __getattr__(self, name: str) -> Any:
        raise Untouched(name)


BROKER = SimpleNamespace(
    open_batches=SimpleNamespace(turns=Turns()), balance=Untouchable(), broker_id="b0"
)


def test_each_kind_has_a_rule_and_stands_here() -> None:
    kinds = set(get_args(AnyOperation))
    assert kinds == set(RULES) == {type(one) for one in EVERY}
    assert {rule.answer for rule in RULES.values()} == set(get_args(AnyAnswer))


@pytest.mark.parametrize("operation", OF_CLIENTS, ids=lambda one: type(one).__name__)
async def test_its_rights_are_decided_and_audited_at_the_owner(operation: AnyOperation) -> None:
    """One call of the gate also tells the audit log."""
    asked: list[tuple[Any, ...]] = []
    gate = SimpleNamespace(check_at_owner=lambda *about: asked.append(about), may=lambda *_: False)
    quotas = SimpleNamespace(admit_at_owner=lambda who: asked.append((who,)))
    nothing: Any = None
    rules = BrokerRules(nothing, gate, quotas, nothing, nothing, 1000, 1000, nothing)  # type: ignore[arg-type]
    rules.admit(ALICE, operation, "10.0.0.1")
    topic = Resource(Kind.TOPIC, "public/t")
    resources = {
        **dict.fromkeys(On, topic),
        On.SUBSCRIPTION: Resource(Kind.SUBSCRIPTION, "public/t/s"),
        On.CLUSTER: CLUSTER,
        On.GROUP: Resource(Kind.SUBSCRIPTION, "public/g"),
        On.TOPICS: Resource(Kind.TOPIC, "public/t"),
        On.SUBSCRIPTIONS: Resource(Kind.SUBSCRIPTION, "public/t/g"),
    }
    needs = RULES[type(operation)].needs
    assert needs
    assert asked == [
        *((ALICE, right, resources[on], "10.0.0.1", CALL) for right, on in needs),
        (ALICE,),
    ]
    if hasattr(operation, "subscription"):
        assert On.SUBSCRIPTION in {on for _, on in needs}
    if isinstance(operation, MOVES_CURSORS):
        assert needs == ((Operation.CONSUME, On.SUBSCRIPTION), (Operation.CONSUME, On.TOPIC))


@pytest.mark.parametrize("operation", OF_BROKERS, ids=lambda one: type(one).__name__)
async def test_an_operation_of_brokers_is_refused_to_clients_and_needs_no_right(
    operation: AnyOperation,
) -> None:
    nothing: Any = None
    rules = BrokerRules(nothing, nothing, nothing, nothing, nothing, 1000, 1000, nothing)
    rules.admit(NODE, operation, "10.0.0.1")  # and no quota counts it
    assert not RULES[type(operation)].needs
    with pytest.raises(Forbidden, match="for brokers"):
        rules.admit(ALICE, operation, "10.0.0.1")
    with pytest.raises(Forbidden, match="for brokers"):
        await rules.begin(ALICE, operation, "10.0.0.1")


@pytest.mark.parametrize("operation", OF_CLIENTS, ids=lambda one: type(one).__name__)
async def test_the_first_broker_asks_and_charges_before_the_operation_begins(
    operation: AnyOperation,
) -> None:
    """For the client of any protocol: rights with audit, and the quota of its kind."""
    asked: list[tuple[Any, ...]] = []
    gate = SimpleNamespace(check=lambda *about: asked.append(about), may=lambda *_: False)
    quotas = SimpleNamespace(begin=lambda *about: asked.append(about))
    topics = SimpleNamespace(settings_of=lambda *_: TopicSettings())
    broker: Any = SimpleNamespace(topics=topics)
    nothing: Any = None
    rules = BrokerRules(broker, gate, quotas, nothing, nothing, 1000, 1000, nothing)  # type: ignore[arg-type]
    await rules.begin(ALICE, operation, "10.0.0.1")
    rule = RULES[type(operation)]
    assert [about[:2] for about in asked[:-1]] == [(ALICE, right) for right, _ in rule.needs]
    assert {about[3:] for about in asked[:-1]} == {("10.0.0.1", CALL)}
    assert asked[-1][:2] == (ALICE, rule.rate)
    if isinstance(operation, Publish):
        assert asked[-1][2:] == (len(operation.batches[0]), 1)
    elif rule.rate is Rate.INTO_IF_ANY:
        assert asked[-1][2:] == (1,)


@pytest.mark.parametrize("operation", AT_OWNERS, ids=lambda one: type(one).__name__)
async def test_an_exceeded_rate_stops_it_before_anything_is_done(
    operation: LocalOperation,
) -> None:
    rules: Any = FullRates()
    partition: Any = Untouchable()
    rate = RULES[type(operation)].rate
    with pytest.raises(Untouched if rate is Rate.NO_MESSAGES else Stopped) as raised:
        await run(BROKER, partition, operation, ALICE, rules, lambda _: None)  # type: ignore[arg-type, return-value]
    if rate is not Rate.NO_MESSAGES:
        assert raised.value.args == (Rate.OUT_OF if rate is Rate.OUT_OF else Rate.INTO,)


@pytest.mark.parametrize("operation", EVERY, ids=lambda one: type(one).__name__)
def test_it_comes_as_it_was_sent(operation: AnyOperation) -> None:
    request = decode_request(encode_request(ALICE, "i1", operation))
    assert request.operation == operation
    assert request.caller.identity == ALICE


def test_what_changes_something_for_good_is_never_asked_again() -> None:
    once = {kind for kind, rule in RULES.items() if not rule.may_repeat}
    assert once == {
        Publish, Settle, Seek, Skip, Expire, Truncate, Unload, ReleaseAccess, LoadPart,
        StoreCopy, WriteAudit, BeginUpload, BeginLargeCopy, AddPiece, EndBody, Prepare, Take,
        LetGo, Drain, LeaveGroup,
        MakeStream, AppendToStream, DeleteStream,
    }  # fmt: skip
    long = {
        Unload, LoadPart, StoreCopy, WriteAudit, BeginUpload, BeginLargeCopy, AddPiece, EndBody,
    }  # fmt: skip
    assert all(RULES[kind].priority is Priority.URGENT for kind in once - long)


STREAM = StreamAsked("text/plain", None, None, None, False, None)


@pytest.mark.parametrize(
    ("operation", "needed"),
    [
        (MakeStream(NAME, STREAM, b"", True), [Operation.CREATE]),
        (MakeStream(NAME, STREAM, b"x", True), [Operation.CREATE, Operation.PRODUCE]),
        (
            MakeStream(NAME, STREAM, b"", False, may_convert=True),
            [Operation.CREATE, Operation.ALTER],
        ),
        (
            MakeStream(NAME, STREAM._replace(ttl_s=1), b"", False, may_convert=True),
            [Operation.CREATE, Operation.ALTER, Operation.DELETE],
        ),
    ],
)
@pytest.mark.parametrize("on", ["topic:public/t", "namespace:public"])
async def test_to_make_a_stream_needs_the_rights_of_what_it_does(
    operation: MakeStream, needed: list[Operation], on: str
) -> None:
    """The right to create is enough on the topic or on its namespace."""
    asked: list[tuple[Any, Any]] = []

    def check(_: Identity, right: Operation, resource: Resource, *__: str) -> None:
        asked.append((right, str(resource)))

    gate: Any = SimpleNamespace(check_at_owner=check, may=lambda *about: str(about[2]) == on)
    quotas: Any = SimpleNamespace(admit_at_owner=lambda _: None)
    nothing: Any = None
    rules = BrokerRules(nothing, gate, quotas, nothing, nothing, 1000, 1000, nothing)
    rules.admit(ALICE, operation, "10.0.0.1")
    assert asked == [(needed[0], on), *((right, "topic:public/t") for right in needed[1:])]


def test_an_operation_without_a_rule_cannot_be_sent() -> None:
    class Other(msgspec.Struct, tag="other", array_like=True):
        name: PartitionName

    with pytest.raises(KeyError):
        RULES[Other]  # type: ignore[index]
    with pytest.raises(msgspec.ValidationError):
        decode_request(encode_request(ALICE, "i1", Other(NAME)))  # type: ignore[arg-type]
