"""A topic's setting is declared once: the texts derived from it agree with its declaration."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest
import typer.main

from octavo.broker.http.api import topic_body
from octavo.cli import namespace as cli_namespace
from octavo.cli import topic as cli_topic
from octavo.client import settings as client_settings
from octavo.metadata.store import BadRecord
from octavo.metadata.topic_records import NamespaceRecord, TopicRecord, decode_record, encode_record
from octavo.metadata.topic_settings import (
    AUTO_CREATE,
    NUMBER_MAX,
    POLICIES,
    TOPIC_SETTINGS,
    InvalidSettings,
    Setting,
    TopicSettings,
    Unit,
)

ALL = {**TOPIC_SETTINGS, **POLICIES}
DOCS = Path(__file__).parents[3] / "docs"


def paths(kind: Any, before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(kind).items():
        inner = [one for one in typing.get_args(hint) or (hint,) if typing.is_typeddict(one)]
        found |= paths(inner[0], f"{name}.") if inner else {before + name: hint}
    return found


def words_of(hint: Any) -> tuple[str, ...]:
    literals = [one for one in typing.get_args(hint) if typing.get_origin(one) is typing.Literal]
    return typing.get_args(literals[0]) if literals else ()


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        (client_settings.TopicChanges, ALL),
        (client_settings.Policies, POLICIES),
        (client_settings.AutoCreate, AUTO_CREATE),
    ],
)
def test_the_clients_types_have_the_declared_settings(
    kind: Any, declared: Mapping[str, Setting]
) -> None:
    known = paths(kind)
    assert known.keys() == {one.path for one in declared.values()}
    for one in declared.values():
        hint = known[one.path]
        if one.unit is Unit.WORD:
            assert words_of(hint) == one.words, one.path
        if one.unit in (Unit.TIME, Unit.SIZE):
            assert {int, str} <= set(typing.get_args(hint)), one.path
        if one in POLICIES.values():
            assert type(None) in typing.get_args(hint), one.path


@pytest.mark.parametrize(
    ("app", "command"),
    [(cli_topic.app, "create"), (cli_topic.app, "update"), (cli_namespace.app, "set")],
)
def test_every_policy_has_its_option(app: typer.Typer, command: str) -> None:
    made: Any = typer.main.get_command(app)
    options = {option for one in made.commands[command].params for option in one.opts}
    assert {one.option for one in POLICIES.values()} <= options


def table_of_policies() -> set[str]:
    page = (DOCS / "operations.md").read_text()
    section = page.split("\n## Policies\n")[1].split("\n## ")[0]
    found: set[str] = set()
    for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE):
        names = re.findall(r"`([^`]+)`", row)
        group = names[0].partition(".")[0]
        found |= {f"{group}{one}" if one.startswith(".") else one for one in names}
    return found


def test_the_table_of_policies_has_the_declared_ones() -> None:
    quorums = {"ensemble_size", "write_quorum", "ack_quorum"}
    assert table_of_policies() - quorums - {"auto_create"} == {
        one.path for one in POLICIES.values()
    }


def test_the_page_of_records_has_every_field() -> None:
    page = (DOCS / "formats" / "topic_records.md").read_text()
    assert not [name for name in ALL if f"`{name}`" not in page]
    default = TopicSettings()
    assert f"`rollover_bytes` ({default.rollover_bytes // 2**20} MiB)" in page
    assert f"`rollover_entries` ({default.rollover_entries:,})" in page


def test_a_record_that_says_nothing_is_a_topic_that_says_nothing() -> None:
    """A topic without a roll-over setting had 256 MiB, its record without the key 1 GiB."""
    stored = msgpack.packb({"v": 1, "settings": {}})
    assert decode_record(TopicRecord, "t", stored).settings == TopicSettings()


def test_a_record_beyond_the_bounds_is_refused_by_name() -> None:
    stored = msgpack.packb({"v": 1, "settings": {"partitions": 0}})
    with pytest.raises(BadRecord, match="partitions is 0; it must be between 1 and 10000"):
        decode_record(TopicRecord, "t", stored)


def test_what_a_newer_version_said_is_kept_and_makes_no_difference() -> None:
    stored = msgpack.packb({"v": 1, "settings": {"naps": 3, "policies": {"dreams": 1}}})
    record = decode_record(TopicRecord, "t", stored)
    assert record.settings == TopicSettings()
    again = msgpack.unpackb(encode_record(record))["settings"]
    assert (again["naps"], again["policies"]["dreams"]) == (3, 1)


def value_of(one: Setting) -> Any:
    if one.words:
        return one.words[-1]
    if one.unit in (Unit.SHARE, Unit.TEXT, Unit.SWITCH):
        return {Unit.SHARE: 0.25, Unit.TEXT: "flights", Unit.SWITCH: True}[one.unit]
    return 5


def body_of(declared: Mapping[str, Setting]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in declared.values():
        group, _, name = one.path.rpartition(".")
        (found.setdefault(group, {}) if group else found)[name] = value_of(one)
    return found


def test_every_setting_of_a_topic_is_taken_stored_and_shown() -> None:
    said = body_of(ALL)
    body = msgspec.convert(said, topic_body.TopicBody)
    made = topic_body.topic_settings(body, TopicSettings())
    assert not [
        name
        for name in ALL
        if getattr(made.own_policies if name in POLICIES else made, name)
        == getattr(TopicSettings().own_policies if name in POLICIES else TopicSettings(), name)
    ]
    stored = decode_record(TopicRecord, "t", encode_record(TopicRecord(made))).settings
    assert stored == made
    assert msgspec.to_builtins(topic_body.show_topic_settings(stored)) == said


def test_every_policy_of_a_namespace_is_taken_stored_and_shown() -> None:
    said = body_of(POLICIES) | {"encrypted": False, "auto_create": body_of(AUTO_CREATE)}
    body = msgspec.convert(said, topic_body.NamespaceBody)
    made = topic_body.namespace_record(body, NamespaceRecord())
    stored = decode_record(NamespaceRecord, "n", encode_record(made))
    assert stored == made
    assert msgspec.to_builtins(topic_body.show_namespace(stored)) == said


@pytest.mark.parametrize("name", [n for n, one in POLICIES.items() if not one.words])
def test_off_and_null_of_a_policy(name: str) -> None:
    one = POLICIES[name]
    group, _, inner = one.path.rpartition(".")

    def said(value: Any, base: TopicSettings) -> TopicSettings:
        given = {group: {inner: value}} if group else {inner: value}
        return topic_body.topic_settings(msgspec.convert(given, topic_body.TopicBody), base)

    def shown(settings: TopicSettings) -> Any:
        found = msgspec.to_builtins(topic_body.show_topic_settings(settings))
        return found.get(group, {}).get(inner) if group else found.get(inner)

    off = said("off", TopicSettings())
    assert shown(off) == "off"
    assert shown(said(None, off)) is None
    if group:
        whole = msgspec.convert({group: None}, topic_body.TopicBody)
        assert topic_body.topic_settings(whole, off) == TopicSettings()


def test_compaction_and_schema_are_taken_back() -> None:
    def said(given: dict[str, Any], base: TopicSettings) -> TopicSettings:
        return topic_body.topic_settings(msgspec.convert(given, topic_body.TopicBody), base)

    made = said({"compaction": {"delete_raw": True}, "schema": {"subject": "s"}}, TopicSettings())
    assert (made.compaction_after_bytes, made.compaction_delete_raw) == (64 * 2**20, True)
    assert (made.schema_subject, made.schema_validate) == ("s", True)
    less = said({"compaction": {"after_size": 7}}, made)
    assert said({"compaction": {"dirty_ratio": 0.1}}, less).compaction_after_bytes == 7
    gone = said({"compaction": None, "schema": None}, made)
    assert (gone.compaction_after_bytes, gone.schema_subject, gone.schema_validate) == (
        None, None, False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "setting", "says"),
    [
        ({"ttl": "long"}, "ttl", "ttl is 'long'; it must be a number of seconds"),
        ({"ttl": 0}, "ttl", "ttl is 0 s; it must be between 0.001 and 9.22337203685478e+15 s, or"),
        ({"partitions": 0}, "partitions", "partitions is 0; it must be between 1 and 10000"),
        ({"rollover": {"size": 0}}, "rollover.size", f"must be between 1 and {NUMBER_MAX}"),
        ({"rollover": {"time": None}}, "rollover.time", "cannot be null; omit it"),
        ({"rates": {"publish_messages": "1"}}, "rates.publish_messages", "a whole number above 0"),
        ({"durability": "maybe"}, "durability", "must be one of sync, deferred"),
        ({"compaction": {"dirty_ratio": 2}}, "compaction.dirty_ratio", "between 0 and 1"),
    ],
)
def test_an_error_names_the_setting(given: dict[str, Any], setting: str, says: str) -> None:
    with pytest.raises(InvalidSettings) as found:
        topic_body.topic_settings(msgspec.convert(given, topic_body.TopicBody), TopicSettings())
    assert found.value.setting == setting
    assert says in str(found.value)
