"""Make a producer id the id of its principal, on a secured cluster. Decision 64.

Readers of a topic see the producer ids of its batches. Were they stored as they are given, a
principal that may publish could take the next sequence of another one's producer, whose message is
then a "repeat" and is lost, or shut it out with a higher epoch. So the owner stores a batch under
an id that it makes of the principal and the given id, with the brokers' key. Every owner makes the
same one, so nothing has to be kept, and a take-over changes nothing.
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
    """The batch as it is to be stored for its caller: the same, unless it names a producer."""
    if not services.gate.secured or identity.is_node:
        return batch
    header = read_header(batch)
    if header.producer_id <= NO_PRODUCER:
        return batch
    own = services.proof.producer_id(identity.name, header.producer_id)
    return sealed(header._replace(producer_id=own), memoryview(batch)[HEADER_BYTES:])


def bound_name(call: Call, name: str) -> str:
    """The name under which a producer of a durable stream is kept: readers see that, too."""
    services = call.services
    if not services.gate.secured or call.identity.is_node:
        return name
    return services.proof.producer_name(call.identity.name, name)
