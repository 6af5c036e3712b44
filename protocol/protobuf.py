"""Protobuf messages declared at run time from tables of fields, without generated code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Proto = descriptor_pb2.FieldDescriptorProto
_KINDS = {
    "int32": _Proto.TYPE_INT32,
    "uint32": _Proto.TYPE_UINT32,
    "int64": _Proto.TYPE_INT64,
    "uint64": _Proto.TYPE_UINT64,
    "string": _Proto.TYPE_STRING,
    "bytes": _Proto.TYPE_BYTES,
}
_LABELS = {
    "required": _Proto.LABEL_REQUIRED,
    "optional": _Proto.LABEL_OPTIONAL,
    "repeated": _Proto.LABEL_REPEATED,
}


class F(NamedTuple):
    """`kind` may be the name of an enum or a message."""

    number: int
    name: str
    label: str
    kind: str


def message_classes(
    package: str,
    enums: Mapping[str, Mapping[str, int]],
    messages: Mapping[str, Sequence[F]],
) -> dict[str, Any]:
    """Return classes (proto2) by name.

    Their attributes exist only at run time, hence Any.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package.replace('.', '/')}.proto", package=package, syntax="proto2"
    )
    for enum_name, values in enums.items():
        enum = file.enum_type.add(name=enum_name)
        for name, number in values.items():
            # Values of all enums of a file share one scope, so their names must differ.
            enum.value.add(name=name, number=number)
    for message_name, fields in messages.items():
        message = file.message_type.add(name=message_name)
        for number, name, label, kind in fields:
            field = message.field.add(name=name, number=number, label=_LABELS[label])
            if kind in _KINDS:
                field.type = _KINDS[kind]
            else:
                field.type = _Proto.TYPE_ENUM if kind in enums else _Proto.TYPE_MESSAGE
                field.type_name = f".{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }
