"""Copy spent messages into the dead-letter or the retry topic, then ack them (dead_letters.py).

Promises: a message is acked only after its copy is durable. After a crash between copy and ack the
next owner sends the copy again with the same producer id, so that the topic drops the duplicate.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import structlog

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import OffsetTrimmed
from octavo.broker.subscriptions.dead_letters import (
    SpentMessages,
    dead_letter_of,
    is_retrying,
    producer_of,
    retry_of,
)
from octavo.broker.types import DeadLetters, Delivery, PartitionName, SubscriptionInfo, TopicName
from octavo.protocol.codes import OctavoError
from octavo.protocol.large import large_body_of
from octavo.protocol.records import Record

_AT_ONCE = 32
_log = structlog.get_logger()


class LargeSource(Protocol):
    @property
    def size(self) -> int: ...

    def pieces(self) -> AsyncGenerator[bytes, None]: ...


class DeadLetterSender(Protocol):
    def turn(self, topic: TopicName) -> AbstractAsyncContextManager[None]: ...

    async def send(
        self,
        origin: TopicName,
        topic: TopicName,
        number: int,
        record: Record,
        producer_id: int,
        info: SubscriptionInfo,
        body: LargeSource | None = None,
    ) -> str | None:
        """Return when the copy is durable; raise the reason when it is not.

        `number` picks the partition of a message without a key. Returns None, or a text that says
        which other topic has the copy, and why.
        """


class DeadLetterDelivery:
    def __init__(
        self,
        name: PartitionName,
        word: Callable[[], object],
        info: SubscriptionInfo,
        config: BrokerConfig,
        spent: SpentMessages,
        office: DeadLetterSender,
        read: Callable[[Sequence[int]], Awaitable[list[Delivery]]],
        ack: Callable[[Sequence[int]], Awaitable[None]],
        body: Callable[[int], Awaitable[LargeSource | None]],
    ) -> None:
        """Deliver dead letters.

        `word` tells the topic from later topics of its name, and copies before a seek from copies
        after it.
        """
        self._name = name
        self._word = word
        self._info = info
        self._config = config
        self._spent = spent
        self._office = office
        self._read = read
        self._ack = ack
        self._body = body
        self._retries = bool(info.settings.retry_topic)
        self._target = TopicName.parse(info.settings.retry_topic or info.settings.dead_letter_topic)
        self._task: asyncio.Task[None] | None = None
        self._sent = 0
        self._problem: str | None = None
        self._elsewhere: str | None = None

    def look(self) -> None:
        if len(self._spent) and self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"bury {self._name}")

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def stats(self) -> DeadLetters:
        return DeadLetters(len(self._spent), self._sent, self._problem or self._elsewhere)

    async def _run(self) -> None:
        pause_ms = self._config.dead_letter_retry_ms
        try:
            while offsets := self._spent.send(_AT_ONCE):
                sent = self._sent
                try:
                    async with self._office.turn(self._target):
                        await self._bury(offsets)
                except Exception as error:  # after any error the messages stay spent
                    self._tell(error)
                    if self._sent > sent:  # copies were stored, so the topic is not at fault
                        pause_ms = self._config.dead_letter_retry_ms
                    await asyncio.sleep(pause_ms / 1000)
                    pause_ms = min(2 * pause_ms, self._config.dead_letter_retry_ms_max)
                else:
                    pause_ms, self._problem = self._config.dead_letter_retry_ms, None
                finally:
                    self._spent.not_sent(offsets)
        finally:
            self._task = None

    async def _bury(self, offsets: list[int]) -> None:
        try:
            letters = await self._read(offsets)
        except OffsetTrimmed as error:  # retention removed the messages: nothing is left to copy
            self._spent.acked([offset for offset in offsets if offset < error.earliest])
            return
        fates = await asyncio.gather(*map(self._send, letters), return_exceptions=True)
        stored = [
            letter.offset for letter, fate in zip(letters, fates, strict=True) if fate is None
        ]
        if done := self._spent.sent(stored):
            self._sent += len(done)
            await self._ack(done)
        for fate in fates:
            if fate is not None:
                raise fate

    async def _send(self, letter: Delivery) -> None:
        if self._retries:
            due_ms = self._spent.due_ms(letter.offset)
            record = retry_of(self._name, self._info.name, letter, due_ms)
        else:
            retried = is_retrying(self._info.settings)
            record = dead_letter_of(self._name, self._info.name, letter, retried=retried)
        producer = producer_of(self._word(), self._name, self._info, letter.offset)
        body = await self._body_of(letter)
        origin = self._name.topic_name
        self._elsewhere = await self._office.send(
            origin, self._target, self._name.partition, record, producer, self._info, body
        )

    async def _body_of(self, letter: Delivery) -> LargeSource | None:
        if letter.record.value or large_body_of(letter.record.headers) is None:
            return None
        return await self._body(letter.offset)

    def _tell(self, error: Exception) -> None:
        reason = f"{self._target}: {error or type(error).__name__}"
        if self._problem != reason:
            self._problem = reason
            bug = None if isinstance(error, OctavoError | TimeoutError | OSError) else error
            _log.warning(
                "dead_letters_wait", partition=str(self._name), subscription=self._info.name,
                waiting=len(self._spent), reason=reason[:300], exc_info=bug,
            )  # fmt: skip
