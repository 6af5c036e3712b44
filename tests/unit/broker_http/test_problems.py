"""The one table from errors to statuses is complete, and makes whole problems."""

from __future__ import annotations

import inspect
import json

import pytest

from octavo.broker import errors as broker_errors
from octavo.broker.errors import ErrorCode
from octavo.broker.http.problems import Problem, problem_of
from octavo.ledger import errors as ledger_errors
from octavo.metadata import store as metadata_errors
from octavo.protocol import batch, codes, compression
from octavo.protocol.codes import KafkaCode, OctavoError, Scope

MODULES = (broker_errors, ledger_errors, metadata_errors, batch, codes, compression)
ROOTS = {
    OctavoError,
    broker_errors.BrokerError,
    ledger_errors.LedgerError,
    metadata_errors.MetadataError,
    codes.BookieError,
}
INSIDE = {
    # Between brokers and bookies only: the ledger client never passes them on.
    codes.ProtocolError,
    codes.FrameTooLong,
    codes.BadRequest,
    codes.BadVersion,
    # A damaged record in the metadata store is no caller's fault: a 500 that the log explains.
    metadata_errors.BadRecord,
    # Raised at the start of a process, before there is any caller.
    ledger_errors.BadLedgerOption,
    metadata_errors.BadMetadataUrl,
    metadata_errors.BadMetadataCredentials,
}
ERRORS = [
    kind
    for module in MODULES
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, OctavoError) and kind.__module__ == module.__name__ and kind not in ROOTS
]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_has_a_status(kind: type[OctavoError]) -> None:
    if kind in INSIDE:
        assert "http_status" not in vars(kind)
    else:
        status = kind.http_status
        assert status in (400, 403, 404, 409, 410, 412, 413, 416, 422, 429, 503, 504)
        if status in (429, 504) and kind.scope is Scope.REQUEST:
            # After `TooManyDelayed` the other acks took effect: the same call again would be
            # another one.
            final = (ledger_errors.OutcomeUnknown, broker_errors.TooManyDelayed)
            assert kind.retryable or kind in final


CODES = [code for code in vars(broker_errors).values() if isinstance(code, ErrorCode)]


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_a_code_is_the_whole_answer(code: ErrorCode) -> None:
    """A subclass's retryable or status must not show through the code that is raised."""
    error = code("it is wrong", first=7)
    assert isinstance(error, code.of)
    body = problem_of(error).body()
    assert (body["status"], body["code"]) == (code.http_status, code.name)
    assert (body["retryable"], body["first"]) == (code.retryable, 7)
    assert code("another").members == {}
    assert code.of.name != code.name


@pytest.mark.parametrize("kind", [*ERRORS, *CODES], ids=lambda kind: kind.name)
def test_kafka_clients_repeat_what_may_be_repeated(kind: type[OctavoError] | ErrorCode) -> None:
    """A client that repeats a hopeless request never ends; a client that gives up loses its
    message."""
    if kind.kafka is not None and kind.kafka is not KafkaCode.UNKNOWN_TOPIC_OR_PARTITION:
        assert kind.kafka.is_retried == kind.retryable
        # A missing topic is looked for again: to Kafka's clients it may be new.


def test_an_error_shows_attributes_that_it_has() -> None:
    """A class names its members and headers as text; each is an attribute that it sets."""
    for kind in ERRORS:
        for _, attribute in (*kind.problem_members, *kind.problem_headers):
            assert f"self.{attribute} = " in "".join(
                inspect.getsource(one) for one in kind.__mro__ if one.__module__ == kind.__module__
            ), (kind, attribute)


def test_members_and_headers() -> None:
    answer = problem_of(broker_errors.SequenceGap("expected 3", 3)).response("/x")
    assert answer.status == 409
    assert answer.content_type == "application/problem+json"
    assert answer.headers["Producer-Expected-Seq"] == "3"
    assert isinstance(answer.body, bytes)
    assert json.loads(answer.body) == {
        "type": "urn:octavo:problem:sequence-gap",
        "title": "Sequence gap",
        "status": 409,
        "detail": "expected 3",
        "code": "sequence-gap",
        "retryable": False,
        "instance": "/x",
        "expected_sequence": 3,
    }
    assert problem_of(broker_errors.PartitionMoving("x")).response().headers["Retry-After"]
    assert problem_of(broker_errors.StaleLease("x", ["a"])).extra == {"stale": ["a"]}
    problem = Problem(418, "teapot", "short and stout")
    assert problem_of(problem) is problem


def test_what_nobody_foresaw_is_a_500_that_tells_nothing() -> None:
    problem = problem_of(KeyError("/etc/secret"))
    assert problem.status == 500
    assert "secret" not in json.dumps(problem.body())
