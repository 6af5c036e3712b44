"""The registry of damage: told once, bounded, completed, cleared when it is gone."""

from __future__ import annotations

from structlog.testing import capture_logs

from octavo.bookie.disk.damage import Damage, DamageKind, DamageRegistry
from octavo.bookie.entrylog.format import file_name


def test_a_finding_is_kept_and_told_once() -> None:
    found = DamageRegistry(clock=iter((7, 8, 9)).__next__)
    with capture_logs() as logs:
        for _ in range(3):
            found.report(DamageKind.RUN_CHECKSUM, "/l/1.log", 24, 100, ledger_id=5, first=0, last=9)
    assert found.current() == [Damage(DamageKind.RUN_CHECKSUM, "/l/1.log", 24, 100, 5, 0, 9, 7)]
    assert [entry["event"] for entry in logs] == ["damage_found"]
    assert (logs[0]["path"], logs[0]["ledger"], logs[0]["last"]) == ("/l/1.log", 5, 9)


def test_another_place_or_kind_is_another_finding() -> None:
    found = DamageRegistry()
    found.report(DamageKind.RUN_CHECKSUM, "/l/1.log", 24)
    found.report(DamageKind.RUN_CHECKSUM, "/l/1.log", 25)
    found.report(DamageKind.UNREADABLE, "/l/1.log", 24)
    assert len(found.current()) == 3
    counts = found.counts()
    assert counts["run-checksum"] == 2
    assert counts["unreadable"] == 1
    assert sum(counts.values()) == 3
    assert set(counts) == {kind.value for kind in DamageKind}


def test_a_finding_without_ledger_is_completed_by_one_that_knows_it() -> None:
    found = DamageRegistry(clock=iter((7, 8)).__next__)
    found.report(DamageKind.RECORD_HEADER, "/l/1.log", 24, 10)
    found.report(DamageKind.RECORD_HEADER, "/l/1.log", 24, 100, ledger_id=3, first=1, last=2)
    found.report(DamageKind.RECORD_HEADER, "/l/1.log", 24, 10)
    assert found.current() == [Damage(DamageKind.RECORD_HEADER, "/l/1.log", 24, 100, 3, 1, 2, 7)]


def test_the_list_is_bounded_and_says_once_that_it_is_full() -> None:
    found = DamageRegistry(findings_max=2)
    with capture_logs() as logs:
        for offset in range(5):
            found.report(DamageKind.ENTRY_DIGEST, "/l/1.log", offset)
    assert [damage.offset for damage in found.current()] == [0, 1]
    assert found.dropped == 3
    assert [e["event"] for e in logs] == ["damage_found", "damage_found", "damage_list_full"]


def test_a_log_that_goes_takes_its_damage_with_it_and_no_other() -> None:
    found = DamageRegistry()
    for log_id in (1, 2):
        found.report(DamageKind.RUN_CHECKSUM, f"/l/{file_name(log_id)}", 24)
    found.clear_file(file_name(1))
    assert [damage.path for damage in found.current()] == [f"/l/{file_name(2)}"]


def test_a_range_that_is_good_again_ends_only_the_kinds_named() -> None:
    found = DamageRegistry()
    for offset in (10, 20, 30):
        found.report(DamageKind.UNREADABLE, "/l/a", offset)
    found.report(DamageKind.NOT_INDEXED, "/l/a", 20)
    found.clear_range("/l/a", 10, 30, DamageKind.UNREADABLE)
    left = [(damage.kind, damage.offset) for damage in found.current()]
    assert left == [(DamageKind.UNREADABLE, 30), (DamageKind.NOT_INDEXED, 20)]


def test_json_holds_all_fields_and_the_plain_kind() -> None:
    made = DamageRegistry().report(DamageKind.JOURNAL, "/j/1", 5, 6).as_json()
    assert made == {
        "kind": "journal",
        "path": "/j/1",
        "offset": 5,
        "length": 6,
        "ledger_id": None,
        "first": None,
        "last": None,
        "found_ms": 0,
    }
    assert type(made["kind"]) is str
