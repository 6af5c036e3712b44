"""BookKeeper's protobuf records that stand in the metadata store, declared at run time.

Only field names, numbers and kinds matter on the wire and in protobuf text; they are listed here
as data, so that no generated code and no protoc step is needed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "octavo.metadata"
_Proto = descriptor_pb2.FieldDescriptorProto
_KINDS = {
    "int32": _Proto.TYPE_INT32,
    "int64": _Proto.TYPE_INT64,
    "string": _Proto.TYPE_STRING,
    "bytes": _Proto.TYPE_BYTES,
}
_LABELS = {
    "required": _Proto.LABEL_REQUIRED,
    "optional": _Proto.LABEL_OPTIONAL,
    "repeated": _Proto.LABEL_REPEATED,
}


class F(NamedTuple):
    """One field: number, name, label, and a kind, an enum's or a message's name."""

    number: int
    name: str
    label: str
    kind: str


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


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="octavo/metadata.proto", package=_PACKAGE, syntax="proto2"
    )
    for enum_name, values in _ENUMS.items():
        enum = file.enum_type.add(name=enum_name)
        for name, number in values.items():
            # Values of all enums of a file share one scope, so their names must differ.
            enum.value.add(name=name, number=number)
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for number, name, label, kind in fields:
            field = message.field.add(name=name, number=number, label=_LABELS[label])
            if kind in _KINDS:
                field.type = _KINDS[kind]
            else:
                field.type = _Proto.TYPE_ENUM if kind in _ENUMS else _Proto.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


_CLASSES = _build()

# Their attributes exist only at run time, hence Any; the codecs beside this file are small.
LedgerMetadataFormat: Any = _CLASSES["LedgerMetadataFormat"]
CookieFormat: Any = _CLASSES["CookieFormat"]
BookieServiceInfoFormat: Any = _CLASSES["BookieServiceInfoFormat"]
