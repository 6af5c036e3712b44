"""The sources of a setting, their precedence, and the message for a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.bookie.config import BookieConfig, BookieConfigError
from octavo.broker.config import BrokerConfig
from octavo.process.spec import InvalidSpec, ProcessSpec, from_plain, read_spec, to_plain
from octavo.settings import ProcessConfig, SettingsError, chosen, load

FOLDERS = {"journal_directories": "/j", "ledger_directories": "/a,/b"}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("OCTAVO_"):
            monkeypatch.delenv(name)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_defaults_are_the_dataclass_own() -> None:
    found = load(BookieConfig, "bookie", flags=FOLDERS)
    assert found == BookieConfig(journal_directories=("/j",), ledger_directories=("/a", "/b"))


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


def test_text_becomes_the_type_of_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_BOOKIE_JOURNAL_SYNC", "false")
    monkeypatch.setenv("OCTAVO_BOOKIE_ADMIN_PORT", "9000")
    found = load(BookieConfig, "bookie", flags=FOLDERS)
    assert found.journal_sync is False
    assert found.admin_port == 9000


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


def test_a_wrong_value_in_a_file_names_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "o.toml", '[broker]\nport = "http"\n')
    with pytest.raises(SettingsError, match=r"port = 'http' .*o\.toml"):
        load(BrokerConfig, "broker", file=file)


def test_a_senseless_value_is_refused_by_the_config_itself() -> None:
    with pytest.raises(BookieConfigError, match="flush_interval_ms"):
        load(BookieConfig, "bookie", flags={**FOLDERS, "flush_interval_ms": 0})


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


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        chosen(BookieConfig, "bookie", file=tmp_path / "none.toml")


def test_an_unknown_variable_is_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_BROKER_PROT", "1")
    with pytest.raises(SettingsError, match=r"OCTAVO_BROKER_PROT.*did you mean port"):
        load(BrokerConfig, "broker")


def test_variables_of_other_sections_and_of_commands_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OCTAVO_BROKER_PORT", "1")
    monkeypatch.setenv("OCTAVO_URL", "http://x")
    monkeypatch.setenv("OCTAVO_METADATA_URL", "file:///m")
    assert load(ProcessConfig, "").metadata_url == "file:///m"


def test_process_settings_are_checked() -> None:
    with pytest.raises(SettingsError, match="log_level = 'loud': use one of debug"):
        load(ProcessConfig, "", flags={"log_level": "loud"})
    with pytest.raises(SettingsError, match="session_timeout_ms = 5"):
        load(ProcessConfig, "", flags={"session_timeout_ms": 5})


def test_a_spec_survives_its_file(tmp_path: Path) -> None:
    config = load(BookieConfig, "bookie", flags=FOLDERS)
    spec = ProcessSpec(
        name="bookie-1", metadata_url="file:///m", sections={"bookie": to_plain(config)}
    )
    spec.write(tmp_path / "s.json")
    found = read_spec(tmp_path / "s.json")
    assert found == spec
    assert found.config(BookieConfig, "bookie") == config


def test_a_spec_with_an_unknown_setting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="prot"):
        from_plain(BrokerConfig, {"prot": 1})
    write(tmp_path / "s.json", '{"name": 1')
    with pytest.raises(InvalidSpec):
        read_spec(tmp_path / "s.json")
