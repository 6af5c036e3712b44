"""BookKeeper's protobuf records in the metadata store, as data."""

from __future__ import annotations

from typing import Any

from octavo.protocol.protobuf import F, message_classes

_ENUMS = {
    "State": {"OPEN": 1, "IN_RECOVERY": 2, "CLOSED": 3},
    "DigestType": {"CRC32": 1, "HMAC": 2, "CRC32C": 3, "DUMMY": 4},
}

_MESSAGES = {
    "Segment": (
        F(1, "ensembleMember", "repeated", "string"),
        F(2, "firstEntryId", "required", "int64"),
    ),
    "CustomMetadata": (
        F(1, "key", "optional", "string"),
        F(2, "value", "optional", "bytes"),
    ),
    "LedgerMetadataFormat": (
        F(1, "quorumSize", "required", "int32"),
        F(2, "ensembleSize", "required", "int32"),
        F(3, "length", "required", "int64"),
        F(4, "lastEntryId", "optional", "int64"),
        F(5, "state", "required", "State"),
        F(6, "segment", "repeated", "Segment"),
        F(7, "digestType", "optional", "DigestType"),
        F(8, "password", "optional", "bytes"),
        F(9, "ackQuorumSize", "optional", "int32"),
        F(10, "ctime", "optional", "int64"),
        F(11, "customMetadata", "repeated", "CustomMetadata"),
        F(12, "cToken", "optional", "int64"),
    ),
    "CookieFormat": (
        F(1, "bookieHost", "required", "string"),
        F(2, "journalDir", "required", "string"),
        F(3, "ledgerDirs", "required", "string"),
        F(4, "instanceId", "optional", "string"),
        F(5, "indexDirs", "optional", "string"),
    ),
    "Endpoint": (
        F(1, "id", "optional", "string"),
        F(2, "port", "optional", "int32"),
        F(3, "host", "optional", "string"),
        F(4, "protocol", "optional", "string"),
        F(5, "auth", "repeated", "string"),
        F(6, "extensions", "repeated", "string"),
    ),
    "Property": (
        F(1, "key", "optional", "string"),
        F(2, "value", "optional", "string"),
    ),
    "BookieServiceInfoFormat": (
        F(6, "endpoints", "repeated", "Endpoint"),
        F(7, "properties", "repeated", "Property"),
    ),
}


_CLASSES = message_classes("octavo.metadata", _ENUMS, _MESSAGES)

LedgerMetadataFormat: Any = _CLASSES["LedgerMetadataFormat"]
CookieFormat: Any = _CLASSES["CookieFormat"]
BookieServiceInfoFormat: Any = _CLASSES["BookieServiceInfoFormat"]
