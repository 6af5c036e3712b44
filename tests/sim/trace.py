"""The trace of a seed, which two runs of the seed must share, and its counts.

The trace has the process of each step, each jump of the clock and a checksum of all bytes
delivered. It does not depend on addresses or on the hashing of strings.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections import Counter
from typing import Any
from zlib import crc32


class Trace:
    """The record of a seed. With `verbose` also readable lines, to find where two runs part."""

    def __init__(self, *, verbose: bool = False) -> None:
        self.verbose = verbose
        self.steps = bytearray()
        """The number of the process that ran, modulo 256, for each step."""
        self.jumps = array("d")
        """The virtual times at which something happened after idleness."""
        self._delivered = 0
        self.faults: Counter[str] = Counter()
        """How often each kind of fault was injected."""
        self.probes: Counter[str] = Counter()
        """How often each interesting situation was reached."""
        self.lines: list[str] = []

    def deliver(self, data: bytes | bytearray | memoryview) -> None:
        self._delivered = crc32(data, self._delivered)

    def fact(self, *values: int | str | float) -> None:
        self._delivered = crc32(repr(values).encode(), self._delivered)

    def fault(self, kind: str, n: int = 1) -> None:
        self.faults[kind] += n

    def probe(self, name: str, n: int = 1) -> None:
        self.probes[name] += n

    def say(self, time_s: float, who: str, what: Any) -> None:
        """Add a line for readers of a replay; call it only when `verbose`."""
        self.lines.append(f"{time_s:12.6f} {who:<10} {what}")

    def hash(self) -> str:
        digest = hashlib.blake2b(self.steps, digest_size=8)
        digest.update(self.jumps.tobytes())
        digest.update(struct.pack("<I", self._delivered))
        return digest.hexdigest()


class Probes:
    def __init__(self, trace: Trace) -> None:
        self.fault = trace.fault
        self.probe = trace.probe
