"""The messages of BookKeeper's v3 frames, as data (docs/formats/frames_v3.md).

Enums are plain numbers: an unknown number is not a missing field.
"""

from __future__ import annotations

from typing import Any

from octavo.protocol.protobuf import F, message_classes

_BODIES = (
    (100, "read", "Read"),
    (101, "add", "Add"),
    (102, "auth", "Auth"),
    (103, "writeLac", "WriteLac"),
    (104, "readLac", "ReadLac"),
    (105, "getBookieInfo", "BookieInfo"),
    (106, "startTLS", "StartTLS"),
    (107, "forceLedger", "ForceLedger"),
    (108, "getListOfEntriesOfLedger", "ListEntries"),
)

_STATUS = F(1, "status", "required", "int32")
_LEDGER = F(2, "ledgerId", "required", "int64")
_AUTH = (
    F(1, "authPluginName", "required", "string"),
    F(2, "payload", "required", "bytes"),
)

_MESSAGES = {
    "Header": (
        F(1, "version", "required", "int32"),
        F(2, "operation", "required", "int32"),
        F(3, "txnId", "required", "uint64"),
        F(4, "priority", "optional", "uint32"),
    ),
    "Request": (
        F(1, "header", "required", "Header"),
        *(
            F(number, f"{name}Request", "optional", f"{kind}Request")
            for number, name, kind in _BODIES
        ),
    ),
    "ReadRequest": (
        F(100, "flag", "optional", "int32"),
        F(1, "ledgerId", "required", "int64"),
        F(2, "entryId", "required", "int64"),
        F(3, "masterKey", "optional", "bytes"),
        F(4, "previousLAC", "optional", "int64"),
        F(5, "timeOut", "optional", "int64"),
    ),
    "AddRequest": (
        F(100, "flag", "optional", "int32"),
        F(1, "ledgerId", "required", "int64"),
        F(2, "entryId", "required", "int64"),
        F(3, "masterKey", "required", "bytes"),
        F(4, "body", "required", "bytes"),
        F(5, "writeFlags", "optional", "int32"),
    ),
    "AuthRequest": _AUTH,
    "WriteLacRequest": (
        F(1, "ledgerId", "required", "int64"),
        F(2, "lac", "required", "int64"),
        F(3, "masterKey", "required", "bytes"),
        F(4, "body", "required", "bytes"),
    ),
    "ReadLacRequest": (F(1, "ledgerId", "required", "int64"),),
    "BookieInfoRequest": (F(1, "requested", "optional", "int64"),),
    "StartTLSRequest": (),
    "ForceLedgerRequest": (F(1, "ledgerId", "required", "int64"),),
    "ListEntriesRequest": (F(1, "ledgerId", "required", "int64"),),
    "Response": (
        F(1, "header", "required", "Header"),
        F(2, "status", "required", "int32"),
        *(
            F(number, f"{name}Response", "optional", f"{kind}Response")
            for number, name, kind in _BODIES
        ),
    ),
    "ReadResponse": (
        _STATUS,
        _LEDGER,
        F(3, "entryId", "required", "int64"),
        F(4, "body", "optional", "bytes"),
        F(5, "maxLAC", "optional", "int64"),
        F(6, "lacUpdateTimestamp", "optional", "int64"),
    ),
    "AddResponse": (_STATUS, _LEDGER, F(3, "entryId", "required", "int64")),
    "AuthResponse": _AUTH,
    "WriteLacResponse": (_STATUS, _LEDGER),
    "ReadLacResponse": (
        _STATUS,
        _LEDGER,
        F(3, "lacBody", "optional", "bytes"),
        F(4, "lastEntryBody", "optional", "bytes"),
    ),
    "BookieInfoResponse": (
        _STATUS,
        F(2, "totalDiskCapacity", "optional", "int64"),
        F(3, "freeDiskSpace", "optional", "int64"),
    ),
    "StartTLSResponse": (),
    "ForceLedgerResponse": (_STATUS, _LEDGER),
    "ListEntriesResponse": (
        _STATUS,
        _LEDGER,
        F(3, "availabilityOfEntriesOfLedger", "optional", "bytes"),
    ),
}

_CLASSES = message_classes("octavo.v3", {}, _MESSAGES)

RequestMessage: Any = _CLASSES["Request"]
ResponseMessage: Any = _CLASSES["Response"]
