"""The parts of the matrix, by name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable

from tests.apache.auto_recovery import auto_recovery
from tests.apache.brokers import brokers
from tests.apache.conversations import conversations
from tests.apache.distributedlog import distributedlog
from tests.apache.grounds import Ask
from tests.apache.matrix import Matrix
from tests.apache.move import move
from tests.apache.pulsar import pulsar
from tests.apache.read_only import read_only
from tests.apache.shell import shell

PARTS: dict[str, Callable[[Matrix, Ask], None]] = {
    "conversations": conversations,
    "brokers": brokers,
    "move": move,
    "shell": shell,
    "auto_recovery": auto_recovery,
    "pulsar": pulsar,
    "distributedlog": distributedlog,
    "read_only": read_only,
}
