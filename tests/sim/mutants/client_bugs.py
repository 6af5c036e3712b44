"""Planted bugs of the client, and of the JSON between it and the brokers."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

MUTANTS = (
    Mutant(
        "json-text-loses-its-quotes",
        0,
        "protocol/json_message.py, octavo/client/types.py",
        'a JSON text such as `"hello"` comes back without its quotes',
        """The client took `"value": "hello"` for text, so a stored `"hello"` lost its quotes and
        escapes, and looked like `hello`.""",
        "X11",
        "values of any bytes through a subscription",
        (
            Edit(
                "octavo.protocol.json_message:stored_value",
                'return None if raw == b"null" else raw',
                "return msgspec.json.decode(raw).encode() if raw[:1] == b'\"' else "
                'None if raw == b"null" else raw',
            ),
        ),
        "topic",
    ),
    Mutant(
        "stored-null-shown-as-no-value",
        0,
        "protocol/json_message.py, broker/http/api/payloads.py",
        "a stored `null` comes back as a tombstone",
        """A JSON value was put into the answer unchanged, so a stored `null` looked like a message
        without a value.""",
        "X11",
        "values of any bytes through a subscription",
        (
            Edit(
                "octavo.protocol.json_message:show_value",
                "if not stored or stored[0] not in _STARTS:",
                "if stored == b'null':\n        return Shown(None)\n"
                "    if not stored or stored[0] not in _STARTS:",
            ),
        ),
        "topic",
    ),
    Mutant(
        "loop-forgets-its-leases",
        0,
        "octavo/client/handing.py",
        "a client's delivery loop does not extend its leases",
        """`deliveries()` received 500 messages and worked on them for any length of time. When
        their leases ended, other consumers got them, and the acks came too late.""",
        "X12",
        "loops whose bodies take longer than a lease, two of them",
        (Edit("octavo.client.handing:Handing.due", "extend = self._needed()", "extend = []"),),
        "topic",
    ),
    Mutant(
        "what-was-done-is-forgotten-when-the-loop-is-left",
        0,
        "octavo/client/deliveries.py",
        "a delivery loop that ends gives back messages that it has processed",
        """The loop's last call returned all its messages as unprocessed, so each was processed
        again by the next consumer.""",
        "X12",
        "two loops, of which one ends before the other",
        (
            Edit(
                "octavo.client.deliveries:DeliveryLoop.hand",
                "else:\n        await self._send_due()",
                "else:\n        pass",
            ),
            Edit(
                "octavo.client.deliveries:DeliveryLoop._send_last",
                '{"ack_ids": done, "nack": begun, "release": unseen}',
                '{"nack": done + begun, "release": unseen}',
            ),
        ),
        "topic",
    ),
    Mutant(
        "batch-takes-one-sequence",
        0,
        "octavo/client/partition_queue.py",
        "the client counts one sequence for a batch, the broker one for each message",
        """The next batch begins at a sequence that the last one has used, so the broker takes it
        for a repeat. Its messages are lost, although the sender was told that they are
        stored.""",
        "S9",
        "producers of the client, with batches of several messages",
        (
            Edit(
                "octavo.client.partition_queue:PartitionQueue._next",
                "self._sequence + len(batch.items)",
                "self._sequence + 1",
            ),
        ),
        "topic",
    ),
)
