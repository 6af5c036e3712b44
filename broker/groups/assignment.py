"""Which member of a consumer group gets which partition. Pure: computed from the members' wishes.

Every broker that knows the same members computes the same result. If all members want the same
partitions, their counts differ by at most one. Within that bound the highest random weight decides
(rendezvous hashing), so that few partitions move when a member comes or goes. A partition that few
members want goes to one of these, whatever else they have.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Mapping

from octavo.broker.types import PartitionName

_ODD = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: spreads numbers that differ in few bits (TAOCP 3, 6.4)."""
_64_BITS = 2**64 - 1


def assigned(wants: Mapping[str, Collection[PartitionName]]) -> dict[PartitionName, str]:
    """Assign each partition to a member. `wants`: the partitions that each member would take."""
    candidates: dict[PartitionName, list[str]] = defaultdict(list)
    for member in sorted(wants):
        for partition in wants[member]:
            candidates[partition].append(member)
    if not candidates:
        return {}
    seeds = {member: _seed(member) for member in wants}
    full, fuller = divmod(len(candidates), len(wants))
    most = full + 1 if fuller else full
    load = dict.fromkeys(wants, 0)
    found: dict[PartitionName, str] = {}
    for partition in sorted(candidates):
        seed = _seed(str(partition))
        among = candidates[partition]
        with_room = [member for member in among if load[member] < most]
        if not with_room:
            least = min(load[member] for member in among)
            with_room = [member for member in among if load[member] == least]
        best = max(with_room, key=lambda member: (_weight(seeds[member], seed), member))
        load[best] += 1
        found[partition] = best
        if fuller and load[best] == full + 1:
            fuller -= 1
            if not fuller:  # the remaining members get the lower count
                most = max(1, full)
    return found


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def _weight(member: int, partition: int) -> int:
    mixed = ((member ^ partition) * _ODD) & _64_BITS
    return ((mixed ^ (mixed >> 32)) * _ODD) & _64_BITS
