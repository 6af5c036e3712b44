"""A topic's record as brokers talk about it, and back. Pure."""

from __future__ import annotations

from dataclasses import fields

from octavo.broker.types import TopicInfo, TopicName, TopicSettings
from octavo.metadata.topics import TopicRecord
from octavo.metadata.topics import TopicSettings as StoredSettings

_NAMES = tuple(field.name for field in fields(TopicSettings))


def stored(settings: TopicSettings) -> StoredSettings:
    """As the record has them."""
    return StoredSettings(**{name: getattr(settings, name) for name in _NAMES})


def info_of(name: TopicName, record: TopicRecord) -> TopicInfo:
    """What the record says of the topic."""
    return TopicInfo(name, _settings_of(record.settings), record.created_ms, record.identity)


def _settings_of(stored: StoredSettings) -> TopicSettings:
    return TopicSettings(**{name: getattr(stored, name) for name in _NAMES})


def differences(found: TopicInfo, wanted: TopicSettings) -> str:
    """In words."""
    return ", ".join(
        f"{name} is {getattr(found.settings, name)}, not {getattr(wanted, name)}"
        for name in _NAMES
        if getattr(found.settings, name) != getattr(wanted, name)
    )
