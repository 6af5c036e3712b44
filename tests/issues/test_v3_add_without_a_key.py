"""A v3 add without a master key, its entry id there three times, was taken: the id counted for the
field that was missing. It was stored under a key of zeros, acked, and the ledger's own writer found
the ledger taken. A length in six bytes, which protobuf does not read, was read.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.protocol import v3
from octavo.protocol.codes import Code
from tests.fuzz.test_v3_by_hand import (
    ADD_BODY,
    BODY,
    ENTRY,
    HEADER,
    LEDGER,
    MASTER_KEY,
    Field,
    add_fields,
    frame,
    header,
    message,
)
from tests.support.raw_bookie import running_bookie
from tests.support.v3_frames import V3Client, framed

HEAD = header(v3.Op.ADD, 9)
FIELDS = {field.number: field for field in add_fields(7, 5)}
LONG = Field(BODY, 2, FIELDS[BODY].value, padded=5)
BROKEN = {
    "no key": frame(HEAD, [FIELDS[n] for n in (LEDGER, ENTRY, ENTRY, ENTRY, BODY)]),
    "no key, five ledger ids": frame(HEAD, [FIELDS[n] for n in (*[LEDGER] * 5, ENTRY, BODY)]),
    "an entry's length in six bytes": frame(
        HEAD, [*(FIELDS[n] for n in (LEDGER, ENTRY, MASTER_KEY)), LONG]
    ),
    "an add's length in six bytes": framed(
        Field(HEADER, 2, message(HEAD)).encoded
        + Field(ADD_BODY, 2, message(add_fields(7, 5)), padded=5).encoded
    ),
}


@pytest.mark.parametrize("what", BROKEN)
async def test_it_ends_its_connection_and_nothing_is_stored(tmp_path: Path, what: str) -> None:
    async with running_bookie(tmp_path) as bookie:
        stranger = await V3Client.connect(bookie)
        stranger.send(BROKEN[what])
        assert await stranger.is_closed()
        writer = await V3Client.connect(bookie)
        assert (await writer.read(7, 5)).status == v3.STATUS[Code.NO_LEDGER]
        assert await writer.add(7, 5) == v3.STATUS[Code.OK]
        writer.close()
