"""Explain the options of Kafka's and Pulsar's connectors that Octavo does not have. Pure."""

from __future__ import annotations

_CREDENTIALS = "credentials come from OCTAVO_TOKEN and OCTAVO_TLS_CA in the environment"
_NO_CLIENT = "a setting of Kafka's client, which is not used here: leave it out"
_POSITION = "a query belongs to no consumer group, its checkpoint holds its position: leave it out"
_WAITS = "reads are repeated by themselves, at another bookie too: leave it out"
_SERVICE = "did you mean service? It takes the URL of a broker, such as http://127.0.0.1:8080"

_WORDS = {
    "kafka.bootstrap.servers": _SERVICE,
    "bootstrap.servers": _SERVICE,
    "service.url": _SERVICE,
    "serviceurl": _SERVICE,
    "admin.url": _SERVICE,
    "url": _SERVICE,
    "kafka.group.id": _POSITION,
    "group.id": _POSITION,
    "groupidprefix": _POSITION,
    "predefinedsubscription": _POSITION,
    "subscriptionprefix": _POSITION,
    "kafka.isolation.level": "readers only ever see messages that count: leave it out",
    "kafka.compression.type": "did you mean compression, an option of the sink?",
    "kafkaconsumer.polltimeoutms": _WAITS,
    "polltimeoutms": _WAITS,
    "fetchoffset.numretries": _WAITS,
    "fetchoffset.retryintervalms": _WAITS,
    "topics": "did you mean subscribe? It takes names separated by commas",
    "topicspattern": "did you mean subscribePattern?",
}
_BEGINNINGS = {
    "kafka.sasl.": _CREDENTIALS,
    "kafka.ssl.": _CREDENTIALS,
    "kafka.security.": _CREDENTIALS,
    "kafka.": _NO_CLIENT,
    "pulsar.": "a setting of Pulsar's client, which is not used here: leave it out",
}
_INSTEAD = {"topic": "subscribe", "subscribe": "topic"}
"""The name of the topic's option in the other direction."""


def about(unknown: str, others: tuple[str, ...], whose: str) -> str | None:
    """Return what to say of an unknown option in lower case; None: nothing.

    `whose`: `source` or `sink`; `others` are the options of the other.
    """
    if unknown in _WORDS:
        return _WORDS[unknown]
    for beginning, said in _BEGINNINGS.items():
        if unknown.startswith(beginning):
            return said
    if unknown in {name.lower() for name in others}:
        other = "sink" if whose == "source" else "source"
        instead = _INSTEAD.get(unknown)
        use = f"use {instead} here" if instead else "leave it out"
        return f"an option of the {other}: {use}"
    return None
