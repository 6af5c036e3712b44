"""The service that a query names: a broker, or the metadata store. Reads what needs no bookie.

Spark starts many short-lived processes, and the ledger client is slow to import: what only needs
the metadata store does without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from octavo.client.trust import context_of
from octavo.credentials import TOKEN, bearer, certificates, credentials_file
from octavo.metadata.opening import open_store
from octavo.metadata.store import MetadataError, MetadataStore, RecordNotFound
from octavo.metadata.topic_settings import resolved
from octavo.metadata.topics import (
    BROKERS_ROOT,
    Policies,
    TopicSettings,
    TopicStore,
    broker_path,
)
from octavo.protocol.codes import OctavoError
from octavo.spark.options import InvalidOption

_ANSWER_S = 30.0


class ServiceUnavailable(OctavoError):
    """The cluster at the URL of option `service` does not answer."""

    name = "service-unavailable"
    retryable = True


def no_topic(topic: str) -> InvalidOption:
    """Return the error for a missing target topic."""
    return InvalidOption(f"there is no topic {topic}; PUT /v1/topics/{topic} creates it")


async def metadata_url(service: str) -> str:
    """Ask a broker for the metadata's URL. Raises `ServiceUnavailable`, `InvalidOption`."""
    if not service.startswith(("http://", "https://")):
        return service
    try:
        said = await asyncio.to_thread(_asked, service.rstrip("/") + "/v1/cluster")
        found = json.loads(said)["metadata"]["url"]
        assert isinstance(found, str)
        return found
    except HTTPError as error:
        if error.code in (401, 403):
            raise ServiceUnavailable(
                f"{service} refuses to describe the cluster ({error.code}): set {TOKEN} to "
                "a token that may do so, or give the metadata store's URL as option service"
            ) from error
        raise _silent(service, error) from error
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        raise _silent(service, error) from error


def _silent(service: str, error: Exception) -> ServiceUnavailable:
    why = error.reason if isinstance(error, URLError) else error
    return ServiceUnavailable(
        f"no broker answers at {service}: {str(why) or 'no answer in 30 s'}. Set the option "
        "service to the URL of a broker, or of the metadata store"
    )


def _asked(url: str) -> bytes:
    """Return the answer to a GET. By the standard library: aiohttp takes a tenth of a second to
    import, in each of Spark's processes."""
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context_of(None, None, None)))
    with opener.open(Request(url, headers=bearer()), timeout=_ANSWER_S) as answer:
        found: bytes = answer.read()
        return found


async def store_of(service: str) -> MetadataStore:
    """Return the metadata store that `service` names, not yet started."""
    return open_store(
        await metadata_url(service), credentials_file=credentials_file(), tls=certificates()
    )


@contextlib.contextmanager
def naming(service: str) -> Iterator[None]:
    """Add to errors of the metadata store where its address came from."""
    try:
        yield
    except MetadataError as error:
        if service.startswith("http"):
            raise type(error)(
                f"{error}. Spark reads the metadata store directly; {service} only gives its "
                "address. This host must reach the store, and needs the credentials and CA "
                "that the store asks for: OCTAVO_METADATA_CREDENTIALS_FILE, OCTAVO_TLS_CA"
            ) from error
        raise


@contextlib.asynccontextmanager
async def metadata_of(service: str) -> AsyncIterator[MetadataStore]:
    """Connect to the metadata store alone."""
    store = await store_of(service)
    try:
        with naming(service):
            await store.start()
        yield store
    finally:
        await store.close()


async def settings_of(topics: TopicStore, name: str) -> TopicSettings | None:
    """Return the topic's settings, with the namespace's policies applied; None if the topic
    does not exist."""
    namespace, _, topic = name.partition("/")
    try:
        record, _ = await topics.read_topic(namespace, topic)
    except RecordNotFound:
        return None
    if not record.stands:
        return None
    said = Policies()
    with contextlib.suppress(RecordNotFound):
        said = (await topics.read_namespace(namespace))[0].policies
    return replace(record.settings, policies=resolved(record.settings.policies, said))


async def live_urls(store: MetadataStore) -> list[str]:
    """Return the URLs of the live brokers."""
    from octavo.broker.cluster.registry import decode_broker  # slow to import

    found = []
    for broker_id in await store.children(BROKERS_ROOT):
        with contextlib.suppress(RecordNotFound):
            info = decode_broker((await store.get(broker_path(broker_id))).value)
            if info is not None:
                found.append(info.url)
    return found
