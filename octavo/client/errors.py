"""The client's errors. A broker's problem+json becomes an `ApiError`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.protocol.codes import OctavoError


class ClientError(OctavoError):
    """The base class of the client's errors."""

    name = "client-error"


class Unreachable(ClientError):
    """No broker answered in time. The message lists the brokers and why each failed."""

    name = "unreachable"
    retryable = True


class OutcomeUnknown(ClientError):
    """A publish was not answered in time, or before its producer closed. It may be stored."""

    name = "outcome-unknown"
    retryable = True


class ProducerFailed(ClientError):
    """An earlier batch of the partition failed for good, so a later batch would leave a gap."""

    name = "producer-failed"


class InvalidCall(ClientError):
    """Wrong arguments; nothing was sent. The message says what would be right."""

    name = "invalid-call"


class NotJson(InvalidCall, ValueError):
    """A value has no JSON form; nothing was sent. The message names the place
    (`value['when'][2]`).
    """

    name = "not-json"


class MessageTooLong(InvalidCall):
    """A message exceeds a fixed bound; it was not sent. Other messages are not affected."""

    name = "message-too-long"

    def __init__(self, size: int, size_max: int, what: str) -> None:
        super().__init__(
            f"a message may have {size_max} {what}, this one has {size}: publish_large (octavo "
            "publish --large FILE) stores a longer value, of up to 128 MiB, as one message"
        )


class AcksUnsent(ClientError):
    """A loop over deliveries ended, and its last acks may not have arrived.

    The messages in `ack_ids` were processed and may be delivered again.
    """

    name = "acks-unsent"

    def __init__(self, ack_ids: Sequence[str], cause: ClientError) -> None:
        self.ack_ids = tuple(ack_ids)
        shown = ", ".join(ack_ids[:5]) + (", …" if len(ack_ids) > 5 else "")
        super().__init__(
            f"{len(ack_ids)} messages were processed and may be delivered again, for their acks "
            f"({shown}) could not be sent: {cause}"
        )


class ApiError(ClientError):
    """A broker's refusal.

    `status`: the HTTP status; `code`: the problem's stable word; `can_retry`: whether the same call
    may succeed later; `detail`: the broker's sentence; `problem`: the whole problem document.
    """

    name = "api-error"

    def __init__(self, status: int, problem: Mapping[str, Any], what: str) -> None:
        self.status = status
        self.problem = dict(problem)
        self.code = str(problem.get("code") or f"http-{status}")
        self.can_retry = bool(problem.get("retryable", status in (429, 503, 504)))
        self.detail = str(problem.get("detail") or problem.get("title") or f"status {status}")
        super().__init__(f"{what}: {self.detail}")


class NotFound(ApiError):
    """404: no such namespace, topic, partition, subscription or ledger."""

    name = "not-found"


class Conflict(ApiError):
    """409: it exists with other settings, a sequence gap, a lease that has ended."""

    name = "conflict"


class TopicReplaced(Conflict):
    """409: the topic was deleted, and another topic of its name was created. Nothing was done.

    Offsets, ack ids and producers of the earlier topic mean nothing there: make a new producer,
    subscribe again, or read from `earliest`, `latest` or a time.
    """

    name = "topic-replaced"

    def __init__(self, status: int, problem: Mapping[str, Any], what: str) -> None:
        super().__init__(status, problem, what)
        self.args = (
            f"{self}. Nothing was done. To go on with the new topic make a new producer, "
            "subscribe again, or read from its beginning: offsets and ack ids of the earlier topic "
            "mean nothing in the new topic",
        )


class Trimmed(ApiError):
    """410: retention removed the offset; `earliest` is the first that is left."""

    name = "trimmed"

    @property
    def earliest(self) -> int | None:
        """Return the first offset that is left, or None if the broker did not name it."""
        found = self.problem.get("earliest_offset")
        return int(found) if found is not None else None


class PreconditionFailed(ApiError):
    """412: another client published first."""

    name = "precondition-failed"


_BY_STATUS: dict[int, type[ApiError]] = {
    404: NotFound,
    409: Conflict,
    410: Trimmed,
    412: PreconditionFailed,
}


def api_error(status: int, problem: Mapping[str, Any], what: str) -> ApiError:
    """Make the exception for an answer with `status`."""
    if status == 409 and problem.get("code") == TopicReplaced.name:
        return TopicReplaced(status, problem, what)
    return _BY_STATUS.get(status, ApiError)(status, problem, what)
