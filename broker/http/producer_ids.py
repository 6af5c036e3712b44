"""Make a producer id specific to its principal, on a secured cluster. Decision 64.

Readers of a topic see the producer ids of its batches. If they were stored as given, a principal
that may publish could use the next sequence of another principal's producer, so that the other's
message is taken for a repeat and lost; or it could shut that producer out with a higher epoch. So
the owner stores a batch under an id that it derives from the principal and the given id, with the
brokers' key. Every owner derives the same id, so nothing is stored for this, and a take-over
changes nothing.
"""

from __future__ import annotations

from octavo.broker.http.call import Call
from octavo.broker.http.services import Services
from octavo.protocol.batch import HEADER_BYTES, NO_PRODUCER, read_header, sealed
from octavo.security.principal import Identity


def bound(call: Call, batch: bytes) -> bytes:
    """Return the batch as it is stored for the caller of `call`."""
    return bound_for(call.services, call.identity, batch)


def bound_for(services: Services, identity: Identity, batch: bytes) -> bytes:
    """Return the batch as stored for its caller: unchanged, unless it names a producer."""
    if not services.gate.secured or identity.is_node:
        return batch
    header = read_header(batch)
    if header.producer_id <= NO_PRODUCER:
        return batch
    own = services.proof.producer_id(identity.name, header.producer_id)
    return sealed(header._replace(producer_id=own), memoryview(batch)[HEADER_BYTES:])


def bound_name(call: Call, name: str) -> str:
    """Return the stored name of a durable stream's producer, which readers see, too."""
    services = call.services
    if not services.gate.secured or call.identity.is_node:
        return name
    return services.proof.producer_name(call.identity.name, name)
