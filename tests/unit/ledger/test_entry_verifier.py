"""The fast way to open an entry returns and refuses the same as the general one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.ledger.read.entry_verifier import verifier_for
from octavo.protocol.codes import DigestMismatch
from octavo.protocol.entry import DigestType, digest_for, pack_entry, unpack_entry
from tests.support.ledger_world import new_ledger


@pytest.mark.parametrize("digest_type", list(DigestType))
@pytest.mark.parametrize("payload", [b"", b"x", b"y" * 1000])
def test_same_as_the_general_way(digest_type: DigestType, payload: bytes) -> None:
    metadata = replace(new_ledger(), digest_type=digest_type, password=b"pw")
    digest = digest_for(digest_type, b"pw")
    data = pack_entry(digest, 7, 3, 2, 999, payload)
    opened = verifier_for(metadata)
    assert opened(3, data) == unpack_entry(digest, 7, 3, data)
    assert opened(-1, data) == opened(3, data), "the last-entry read takes any"
    assert type(opened(3, data).payload) is bytes
    bad = [data[:20], pack_entry(digest, 8, 3, 2, 999, payload)]
    if digest_type is not DigestType.DUMMY:
        bad += [data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :] for i in range(len(data[:60]))]
        bad.append(data + b"more")
    for wrong in bad:
        with pytest.raises(DigestMismatch):
            opened(3, wrong)
    with pytest.raises(DigestMismatch):
        opened(4, data)
