"""Settings: their sources, precedence, bounds, and the message for a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from octavo.bookie.config import BookieConfig, BookieConfigError
from octavo.broker.config import BrokerConfig, BrokerConfigError
from octavo.broker.errors import InvalidSettings
from octavo.broker.http.config import HttpConfig
from octavo.broker.types import (
    ACK_TIMEOUT_MS_MAX,
    BACKOFF_FACTOR_MAX,
    BOOKIES_MAX,
    DELIVERIES_MAX,
    FILTER_CHARS_MAX,
    FILTER_HEADERS_MAX,
    FILTER_VALUES_MAX,
    PARTITIONS_MAX,
    RETRY_MS_MAX,
    UNACKED_MAX,
    RetryBackoff,
    SubscriptionSettings,
    TopicSettings,
)
from octavo.ledger.errors import BadLedgerOption
from octavo.ledger.options import LedgerOptions
from octavo.metadata.topic_settings import NAMES, OFF, WORDS, Policies, check_policies
from octavo.process.spec import InvalidSpec, ProcessSpec, from_plain, read_spec, to_plain
from octavo.protocol.bounds import bounds_of
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX
from octavo.settings import ProcessConfig, SettingsError, chosen, load

FOLDERS = {"journal_directories": "/j", "ledger_directories": "/a,/b"}


@pytest.fixture
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("OCTAVO_"):
            monkeypatch.delenv(name)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.usefixtures("_no_environment")
def test_defaults_are_the_dataclass_own() -> None:
    found = load(BookieConfig, "bookie", flags=FOLDERS)
    assert found == BookieConfig(journal_directories=("/j",), ledger_directories=("/a", "/b"))


@pytest.mark.usefixtures("_no_environment")
def test_flag_wins_over_environment_over_file_over_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(
        tmp_path / "o.toml",
        '[bookie]\nport = 1001\nhost = "1.1.1.1"\nrack = "/file"\nread_cache_bytes_max = 77\n'
        'journal_directories = ["/j"]\nledger_directories = ["/l"]\n',
    )
    monkeypatch.setenv("OCTAVO_BOOKIE_PORT", "1002")
    monkeypatch.setenv("OCTAVO_BOOKIE_HOST", "2.2.2.2")
    found = load(BookieConfig, "bookie", file=file, flags={"port": 1003, "rack": None})
    assert (found.port, found.host, found.rack) == (1003, "2.2.2.2", "/file")
    assert found.read_cache_bytes_max == 77
    assert found.journal_directories == ("/j",)


@pytest.mark.usefixtures("_no_environment")
def test_text_becomes_the_type_of_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_BOOKIE_JOURNAL_SYNC", "false")
    monkeypatch.setenv("OCTAVO_BOOKIE_ADMIN_PORT", "9000")
    found = load(BookieConfig, "bookie", flags=FOLDERS)
    assert found.journal_sync is False
    assert found.admin_port == 9000


@pytest.mark.usefixtures("_no_environment")
def test_a_wrong_value_names_setting_value_origin_and_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OCTAVO_BOOKIE_PORT", "many")
    with pytest.raises(SettingsError) as caught:
        load(BookieConfig, "bookie", flags=FOLDERS)
    said = str(caught.value)
    assert "port" in said
    assert "'many'" in said
    assert "OCTAVO_BOOKIE_PORT" in said
    assert "integer" in said


@pytest.mark.usefixtures("_no_environment")
def test_a_wrong_value_in_a_file_names_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "o.toml", '[broker]\nport = "http"\n')
    with pytest.raises(SettingsError, match=r"port = 'http' .*o\.toml"):
        load(BrokerConfig, "broker", file=file)


@pytest.mark.usefixtures("_no_environment")
def test_a_senseless_value_is_refused_by_the_config_itself() -> None:
    with pytest.raises(BookieConfigError, match="flush_interval_ms"):
        load(BookieConfig, "bookie", flags={**FOLDERS, "flush_interval_ms": 0})


@pytest.mark.usefixtures("_no_environment")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[bookies]\nport = 1\n", r"table \[bookies\]"),
        ("[bookie]\nprot = 1\n", "did you mean port"),
        ("metadata = 1\n", "did you mean metadata_url"),
        ("[bookie\n", "is not TOML"),
    ],
)
def test_a_file_with_a_mistake(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        chosen(BookieConfig, "bookie", file=write(tmp_path / "o.toml", text))


@pytest.mark.usefixtures("_no_environment")
def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        chosen(BookieConfig, "bookie", file=tmp_path / "none.toml")


@pytest.mark.usefixtures("_no_environment")
def test_an_unknown_variable_is_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_BROKER_PROT", "1")
    with pytest.raises(SettingsError, match=r"OCTAVO_BROKER_PROT.*did you mean port"):
        load(BrokerConfig, "broker")


@pytest.mark.usefixtures("_no_environment")
def test_variables_of_other_sections_and_of_commands_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OCTAVO_BROKER_PORT", "1")
    monkeypatch.setenv("OCTAVO_URL", "http://x")
    monkeypatch.setenv("OCTAVO_METADATA_URL", "file:///m")
    assert load(ProcessConfig, "").metadata_url == "file:///m"


@pytest.mark.usefixtures("_no_environment")
def test_process_settings_are_checked() -> None:
    with pytest.raises(SettingsError, match="log_level = 'loud': use one of debug"):
        load(ProcessConfig, "", flags={"log_level": "loud"})
    with pytest.raises(SettingsError, match="session_timeout_ms = 5"):
        load(ProcessConfig, "", flags={"session_timeout_ms": 5})


@pytest.mark.usefixtures("_no_environment")
def test_a_spec_survives_its_file(tmp_path: Path) -> None:
    config = load(BookieConfig, "bookie", flags=FOLDERS)
    spec = ProcessSpec(
        name="bookie-1", metadata_url="file:///m", sections={"bookie": to_plain(config)}
    )
    spec.write(tmp_path / "s.json")
    found = read_spec(tmp_path / "s.json")
    assert found == spec
    assert found.config(BookieConfig, "bookie") == config


@pytest.mark.usefixtures("_no_environment")
def test_a_spec_with_an_unknown_setting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="prot"):
        from_plain(BrokerConfig, {"prot": 1})
    write(tmp_path / "s.json", '{"name": 1')
    with pytest.raises(InvalidSpec):
        read_spec(tmp_path / "s.json")


# Every bound of a setting accepts its own value, and refuses a step beyond. A new setting
AMOUNT_MAX = 2**63 - 1
"""The highest number that a record in the metadata store holds."""


def taken(make: Callable[..., Any], error: type[Exception], /, **how: Any) -> bool:
    try:
        make(**how)
    except error:
        return False
    return True


TOPIC = {
    "partitions": (1, PARTITIONS_MAX),
    "retention_ms": (0, AMOUNT_MAX),
    "retention_bytes": (0, AMOUNT_MAX),
    "rollover_bytes": (1, AMOUNT_MAX),
    "rollover_entries": (1, AMOUNT_MAX),
    "rollover_age_ms": (1, AMOUNT_MAX),
    "compaction_after_bytes": (0, AMOUNT_MAX),
    "compaction_tombstones_ms": (0, AMOUNT_MAX),
}


@pytest.mark.parametrize("name", TOPIC)
def test_of_a_topic(name: str) -> None:
    least, most = TOPIC[name]
    for value, is_good in ((least, True), (most, True), (most + 1, False)):
        assert taken(TopicSettings, InvalidSettings, **{name: value}) is is_good, value
    below = least - 1
    says_off = name in ("retention_ms", "retention_bytes", "compaction_after_bytes")
    assert says_off == (below == OFF and taken(TopicSettings, InvalidSettings, **{name: below}))
    assert not taken(TopicSettings, InvalidSettings, **{name: below - says_off})


def test_every_number_of_a_topic_is_in_the_table() -> None:
    numbers = {one.name for one in fields(TopicSettings) if "int" in str(one.type)}
    assert numbers - TOPIC.keys() == {"ensemble_size", "write_quorum", "ack_quorum"}


@pytest.mark.parametrize("share", [-0.001, 0, 1, 1.001])
def test_a_dirty_ratio(share: float) -> None:
    made = taken(lambda: TopicSettings(compaction_dirty_ratio=share), InvalidSettings)
    assert made is (0 <= share <= 1)


@pytest.mark.parametrize(
    ("ensemble", "write", "ack", "is_good"),
    [
        (1, 1, 1, True), (3, 3, 3, True), (3, 3, 4, False), (3, 4, 3, False), (3, 2, 2, True),
        (3, 2, 3, False), (1, 1, 0, False), (0, 0, 0, False),
        (BOOKIES_MAX, BOOKIES_MAX, BOOKIES_MAX, True), (BOOKIES_MAX + 1, 3, 2, False),
    ],
)  # fmt: skip
def test_a_quorum(ensemble: int, write: int, ack: int, is_good: bool) -> None:
    def make() -> TopicSettings:
        return TopicSettings(ensemble_size=ensemble, write_quorum=write, ack_quorum=ack)

    assert taken(make, InvalidSettings) is is_good


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(WORDS)))
def test_a_policy(name: str) -> None:
    least = 0 if name.startswith("retention") else 1

    def is_taken(value: int) -> bool:
        return taken(
            lambda **how: check_policies(Policies(**how)), InvalidSettings, **{name: value}
        )

    assert is_taken(least)
    assert is_taken(AMOUNT_MAX)
    assert is_taken(OFF)
    assert is_taken(0) is (least == 0)
    assert not is_taken(AMOUNT_MAX + 1)
    assert not is_taken(OFF - 1)


SUBSCRIPTION = {
    "ack_timeout_ms": (1, ACK_TIMEOUT_MS_MAX),
    "consumer_timeout_ms": (1, ACK_TIMEOUT_MS_MAX),
    "max_deliveries": (1, DELIVERIES_MAX),
    "max_unacked": (1, UNACKED_MAX),
    "max_unacked_per_consumer": (1, UNACKED_MAX),
    "retry_deliveries": (1, DELIVERIES_MAX),
}


@pytest.mark.parametrize("name", SUBSCRIPTION)
def test_of_a_subscription(name: str) -> None:
    least, most = SUBSCRIPTION[name]
    for value in (least - 1, least, most, most + 1):
        made = taken(SubscriptionSettings, InvalidSettings, **{name: value})
        assert made is (least <= value <= most), value


def test_every_number_of_a_subscription_is_in_the_table() -> None:
    numbers = {one.name for one in fields(SubscriptionSettings) if "int" in str(one.type)}
    assert numbers == SUBSCRIPTION.keys()


@pytest.mark.parametrize(("before", "most"), [(1, 2), (2, 2), (3, 2), (None, 1), (5, None)])
def test_deliveries_before_the_retry_topic(before: int | None, most: int | None) -> None:
    """Deliveries from the retry topic count too: with equality no message would come back from
    it."""

    def make() -> SubscriptionSettings:
        return SubscriptionSettings(retry_deliveries=before, max_deliveries=most)

    assert taken(make, InvalidSettings) is (before is None or most is None or before < most)


@pytest.mark.parametrize(
    ("first", "most", "factor", "is_good"),
    [
        (1, 1, 1, True), (0, 1, 1, False), (2, 1, 1, False), (1, RETRY_MS_MAX, 1, True),
        (RETRY_MS_MAX, RETRY_MS_MAX, BACKOFF_FACTOR_MAX, True), (1, RETRY_MS_MAX + 1, 1, False),
        (1, 1, 0.99, False), (1, 1, BACKOFF_FACTOR_MAX, True),
        (1, 1, BACKOFF_FACTOR_MAX + 1, False),
        (1, 1, float("nan"), False), (1, 1, float("inf"), False),
    ],
)  # fmt: skip
def test_a_backoff(first: int, most: int, factor: float, is_good: bool) -> None:
    backoff = RetryBackoff(first, most, factor)
    assert taken(lambda: SubscriptionSettings(retry_backoff=backoff), InvalidSettings) is is_good


def test_a_backoff_reaches_its_longest_wait_and_no_more() -> None:
    backoff = RetryBackoff(100, 800, 2.0)
    assert [backoff.delay_ms(times) for times in (1, 2, 3, 4, 5, 10**6)] == [
        100, 200, 400, 800, 800, 800
    ]  # fmt: skip


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_filter(more: int) -> None:
    headers, values, chars = (
        FILTER_HEADERS_MAX + more,
        FILTER_VALUES_MAX + more,
        FILTER_CHARS_MAX + more,
    )
    text = "x" * chars
    for how in (
        {"filter_headers": tuple((f"h{n}", ("*",)) for n in range(headers))},
        {"filter_headers": (("h", tuple(f"v{n}" for n in range(values))),)},
        {"filter_headers": ((text, ("*",)),)},
        {"filter_headers": (("h", (text,)),)},
        {"filter_key_prefix": text},
    ):
        assert taken(SubscriptionSettings, InvalidSettings, **how) is (more <= 0), how


@pytest.mark.parametrize("headers", [(("h", ()),), (("", ("*",)),), (("h", ("1",)), ("h", ("2",)))])
def test_a_filter_of_nothing(headers: Any) -> None:
    assert not taken(lambda: SubscriptionSettings(filter_headers=headers), InvalidSettings)
    assert taken(lambda: SubscriptionSettings(filter_headers=()), InvalidSettings)


# ---- of processes


TWO_ENDS = ("port", "batch_bytes_max", "balance_load_percent", "compaction_load_percent")


@pytest.mark.parametrize(
    "name",
    [o.name for o in fields(BrokerConfig) if str(o.type) == "int" and o.name not in TWO_ENDS],
)
def test_of_a_broker(name: str) -> None:
    assert not taken(BrokerConfig, BrokerConfigError, **{name: 0})
    assert taken(BrokerConfig, BrokerConfigError, **{name: 1})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("port", {-1: False, 0: True, 65_535: True, 65_536: False}),
        (
            "batch_bytes_max",
            {0: False, 1: True, ENTRY_PAYLOAD_BYTES_MAX: True, ENTRY_PAYLOAD_BYTES_MAX + 1: False},
        ),
        ("balance_load_percent", {100: False, 101: True}),
        ("compaction_load_percent", {0: False, 1: True, 100: True, 101: False}),
    ],
)
def test_of_a_broker_with_two_ends(name: str, values: dict[int, bool]) -> None:
    for value, is_good in values.items():
        assert taken(BrokerConfig, BrokerConfigError, **{name: value}) is is_good


def test_no_number_of_a_broker_is_without_a_bound() -> None:
    numbers = {one.name for one in fields(BrokerConfig) if str(one.type) in ("int", "float")}
    assert numbers == set(bounds_of(BrokerConfig))


@pytest.mark.parametrize("name", [one.name for one in fields(HttpConfig) if str(one.type) == "int"])
def test_of_a_brokers_http_side(name: str) -> None:
    assert not taken(HttpConfig, BrokerConfigError, **{name: 0})
    assert taken(HttpConfig, BrokerConfigError, **{name: 1})


LEDGER_NUMBERS = [one for one in fields(LedgerOptions) if str(one.type) in ("int", "float")]


@pytest.mark.parametrize("name", [one.name for one in LEDGER_NUMBERS])
def test_of_a_ledger_client(name: str) -> None:
    """Within its bounds alone: a pair of pauses also bounds each other."""
    bounds = bounds_of(LedgerOptions)[name]
    assert bounds.least is not None
    assert taken(LedgerOptions, BadLedgerOption, **{name: getattr(LedgerOptions(), name)})
    for wrong in (bounds.least / 2, 0, -1, float("nan"), float("-inf")):
        assert not taken(LedgerOptions, BadLedgerOption, **{name: wrong}), wrong
    if bounds.most is None:
        assert taken(LedgerOptions, BadLedgerOption, **{name: bounds.least})
    else:
        for wrong in (2 * bounds.most, float("inf")):
            assert not taken(LedgerOptions, BadLedgerOption, **{name: wrong}), wrong


def test_no_number_of_a_ledger_client_is_without_a_bound() -> None:
    assert {one.name for one in LEDGER_NUMBERS} == set(bounds_of(LedgerOptions))


@pytest.mark.parametrize("pair", ["busy_backoff_ms", "reconnect_ms"])
def test_a_shortest_pause_is_not_above_the_longest(pair: str) -> None:
    for least, is_good in ((9, True), (10, True), (11, False)):
        how = {f"{pair}_min": least, f"{pair}_max": 10}
        assert taken(LedgerOptions, BadLedgerOption, **how) is is_good


def test_a_fraction_that_is_not_a_number_is_refused() -> None:
    """TOML and `--set` accept `nan` and `inf`."""
    for name in BOOKIE_NUMBERS:
        if isinstance(getattr(BookieConfig(**BOOKIE), name), float):
            assert not bookie(**{name: float("nan")}), name
            assert not bookie(**{name: float("inf")}), name


BOOKIE: dict[str, Any] = {"journal_directories": ("/j",), "ledger_directories": ("/l",)}
ANY_NUMBER = ("port", "admin_port")
"""Numbers of a bookie with their own bounds."""


def bookie(**how: Any) -> bool:
    return taken(BookieConfig, BookieConfigError, **{**BOOKIE, **how})


BOOKIE_NUMBERS = [
    one.name for one in fields(BookieConfig) if str(one.type).startswith(("int", "float"))
]


ZERO_MEANS_SOMETHING = (
    "scrub_interval_ms", "disk_free_bytes_min", "disk_free_bytes_reserve",
    "gc_disk_free_bytes_min", "gc_minor_ratio",
)  # fmt: skip


NO_LEDGER = "limbo_ended_through"
"""-1 means no ledger."""


@pytest.mark.parametrize(
    "name", [name for name in BOOKIE_NUMBERS if name not in (*ANY_NUMBER, NO_LEDGER)]
)
def test_of_a_bookie(name: str) -> None:
    """None below 0; 0 where that means something; 1 where nothing else bounds it."""
    assert not bookie(**{name: -1})
    default = getattr(BookieConfig(**BOOKIE), name)
    assert bookie(**{name: default})
    assert bookie(**{name: 0}) is (name in ZERO_MEANS_SOMETHING)


@pytest.mark.parametrize("name", ANY_NUMBER)
def test_a_port_of_a_bookie(name: str) -> None:
    for value, is_good in {-1: False, 0: True, 65_535: True, 65_536: False}.items():
        assert bookie(**{name: value}) is is_good, value


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_bookie_settings_that_bound_each_other(more: int) -> None:
    assert bookie(scratch_bytes=4096 + more) is (more >= 0)
    assert bookie(journal_queue_bytes_max=10**6, add_bytes_max=10**6 + more) is (more >= 0)
    assert bookie(disk_free_bytes_min=10**9, disk_free_bytes_resume=10**9 + more) is (more >= 0)
    step = more / 1000
    assert bookie(gc_minor_ratio=0.5 + step, gc_major_ratio=0.5) is (more <= 0)
    assert bookie(gc_major_ratio=1 + step) is (more < 0)
