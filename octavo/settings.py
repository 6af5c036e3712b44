"""Settings: make the layers' configs from flags, environment variables and a TOML file.

Every field of the layers' frozen dataclasses is a setting. A flag wins over the environment
(`OCTAVO_BOOKIE_PORT`), that over the file (`port` in `[bookie]`), that over the default.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

from pydantic import BeforeValidator, ValidationError, create_model
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from octavo.process.spec import LOG_BYTES_MAX, LOG_FILES_MAX, SESSION_TIMEOUT_MS
from octavo.protocol.bounds import beyond_bounds, bounded
from octavo.protocol.codes import OctavoError, Scope

T = TypeVar("T")

PREFIX = "OCTAVO_"
SECTIONS = ("bookie", "broker", "http", "ledger", "tls", "keys", "security")
NOT_SETTINGS = frozenset(
    {
        *("OCTAVO_URL", "OCTAVO_ADMIN_URL", "OCTAVO_CONFIG", "OCTAVO_DATA", "OCTAVO_DEBUG"),
        *("OCTAVO_TOKEN", "OCTAVO_TOKEN_FILE"),
    }
)
"""Environment variables that commands read directly; no config has a field for them."""


class SettingsError(OctavoError):
    name = "settings"
    scope = Scope.PROCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessConfig:
    """Settings of every long-running process."""

    metadata_url: str = ""
    """`zk://host:port[,host:port]/chroot`, with TLS `zks://`, or `file:///folder/metadata.db`."""
    metadata_credentials_file: str = ""
    """Holds `user:password` for ZooKeeper (digest)."""
    session_timeout_ms: int = bounded(
        SESSION_TIMEOUT_MS,
        500,
        words="500 or more, a shorter session expires in an ordinary pause",
    )
    """After this long without a sign of life, a process's records are removed."""
    log_format: str = "auto"
    """`json`, `console`, or `auto`: console on a terminal."""
    log_level: str = "info"
    """`debug`, `info`, `warning` or `error`."""
    log_file: str = ""
    """The file of the log; empty means standard error."""
    log_bytes_max: int = bounded(LOG_BYTES_MAX, 65_536, words="65536 or more")
    """A log file that would grow beyond this is renamed to `….1`."""
    log_files_max: int = bounded(LOG_FILES_MAX, 1, words="1 or more")
    """Log files to keep, including the current file; older files are deleted."""

    def __post_init__(self) -> None:
        for name, known in (
            ("log_format", ("auto", "json", "console")),
            ("log_level", ("debug", "info", "warning", "error")),
        ):
            value = getattr(self, name)
            if value not in known:
                raise SettingsError(f"setting {name} = {value!r}: use one of {', '.join(known)}")
        if wrong := beyond_bounds(self):
            raise SettingsError(f"setting {wrong.name} = {wrong.value}: use {wrong.bounds}")


def read_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        found = tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"settings file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"settings file {path} is not TOML: {error}") from error
    top = {field.name for field in dataclasses.fields(ProcessConfig)}
    for name, value in found.items():
        if isinstance(value, dict) and name not in SECTIONS:
            raise SettingsError(
                f"settings file {path} has a table [{name}]; the tables are "
                + ", ".join(f"[{known}]" for known in SECTIONS)
            )
        if not isinstance(value, dict) and name not in top:
            raise _unknown(name, f"settings file {path}", top)
    return found


def load(
    kind: type[T],
    section: str,
    *,
    file: Path | None = None,
    flags: Mapping[str, object] | None = None,
) -> T:
    """Make a `kind` from all sources; `section` is its TOML table, "" for the top level.

    A flag whose value is `None` was not given. Raises `SettingsError`, or the config's own error.
    """
    values = chosen(kind, section, file=file, flags=flags)
    try:
        return kind(**values)
    except (ValueError, AssertionError) as error:
        raise SettingsError(f"{section or 'process'} settings: {error}") from error


def chosen(
    kind: type[Any],
    section: str,
    *,
    file: Path | None = None,
    flags: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    table = read_file(file)
    values = (
        table.get(section, {})
        if section
        else {name: value for name, value in table.items() if not isinstance(value, dict)}
    )
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    prefix = PREFIX + (section.upper() + "_" if section else "")
    names = {field.name for field in dataclasses.fields(kind)}
    for name in values:
        if name not in names:
            raise _unknown(name, f"settings file {file}, table [{section}]", names)
    for name in given:
        if name not in names:
            raise _unknown(name, "flag --set", names)
    _check_environment(prefix, section, names)
    model: Any = _model(kind, prefix, values)
    try:
        made = model(**given)
    except ValidationError as error:
        raise _explain(error, section, prefix, given, values, file) from None
    return {name: getattr(made, name) for name in made.model_fields_set}


def _model(kind: type[Any], prefix: str, file_values: dict[str, Any]) -> type[BaseSettings]:
    hints = get_type_hints(kind)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if get_origin(hint) is tuple:
            hint = Annotated[hint, NoDecode, BeforeValidator(_split)]
        fields[field.name] = (hint, None)

    class Base(BaseSettings):
        model_config = SettingsConfigDict(env_prefix=prefix, extra="forbid", validate_default=False)

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            del dotenv_settings, file_secret_settings
            return init_settings, env_settings, InitSettingsSource(settings_cls, file_values)

    return create_model(kind.__name__, __base__=Base, **fields)


def _split(value: object) -> object:
    """Split `a,b`: environment variables and flags write a list this way."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _check_environment(prefix: str, section: str, names: set[str]) -> None:
    others = () if section else tuple(f"{PREFIX}{name.upper()}_" for name in SECTIONS)
    for variable in sorted(os.environ):
        if not variable.startswith(prefix) or variable in NOT_SETTINGS:
            continue
        if others and variable.startswith(others):
            continue
        name = variable.removeprefix(prefix).lower()
        if name not in names:
            raise _unknown(name, f"environment variable {variable}", names)


def _unknown(name: str, origin: str, names: set[str]) -> SettingsError:
    near = difflib.get_close_matches(name, names, 1)
    advice = f"did you mean {near[0]}?" if near else "there are: " + ", ".join(sorted(names))
    return SettingsError(f"{origin}: no setting is called {name!r}; {advice}")


def _explain(
    error: ValidationError,
    section: str,
    prefix: str,
    given: Mapping[str, object],
    values: Mapping[str, object],
    file: Path | None,
) -> SettingsError:
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else "?"
    if name in given:
        origin = "a flag"
    elif prefix + name.upper() in os.environ:
        origin = f"environment variable {prefix}{name.upper()}"
    else:
        origin = f"settings file {file}"
    value = given.get(name, os.environ.get(prefix + name.upper(), values.get(name)))
    where = f"{section} setting {name}" if section else f"setting {name}"
    advice = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return SettingsError(f"{where} = {value!r} (from {origin}): it should be {advice}")
