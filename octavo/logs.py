"""Logging: structlog events as JSON lines (processes) or as text for people (a console).

Event names are part of the interface. Records of standard-library loggers become events too.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import MutableMapping
from pathlib import Path
from time import monotonic
from typing import Any

import structlog

from octavo.log_files import LogFile
from octavo.log_limit import LogLimit
from octavo.process.spec import LOG_BYTES_MAX, LOG_FILES_MAX
from octavo.terminal import visible

LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error")}

EventDict = MutableMapping[str, Any]
log = structlog.get_logger()


def configure_logging(
    *,
    service: str = "",
    node: str = "",
    form: str = "json",
    level: str = "info",
    path: Path | None = None,
    bytes_max: int = LOG_BYTES_MAX,
    files_max: int = LOG_FILES_MAX,
) -> None:
    """Send all events to `path`, or to standard error; `form` is `json`, `console` or `auto`.

    A file is renamed before it exceeds `bytes_max`; `files_max` files are kept.
    """
    stream: Any = sys.stderr
    if path is not None:
        stream = LogFile(path, bytes_max=bytes_max, files_max=files_max)
    identity = {key: value for key, value in (("service", service), ("node", node)) if value}

    def identify(_logger: Any, _method: str, event: EventDict) -> EventDict:
        return {**identity, **event}

    renderer = (
        structlog.dev.ConsoleRenderer(colors=stream.isatty(), pad_event_to=28)
        if form == "console" or (form == "auto" and stream.isatty())
        else structlog.processors.JSONRenderer(default=str)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _limited(),
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            identify,
            _error_text,
            *((_visible,) if isinstance(renderer, structlog.dev.ConsoleRenderer) else ()),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
    )
    _route_standard_library(LEVELS[level])


def _limited() -> structlog.types.Processor:
    limit = LogLimit(monotonic)

    def drop(_logger: Any, _method: str, event: EventDict) -> EventDict:
        passes, told = limit.passes(event)
        for one in told:
            log.info("log_lines_left_out", of=one.event, count=one.lines, for_s=round(one.for_s))
        if not passes:
            raise structlog.DropEvent
        return event

    return drop


def _visible(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Spell out escapes in users' names and texts, which a terminal would obey."""
    return {
        key: visible(value) if isinstance(value, str) else value for key, value in event.items()
    }


def _error_text(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Show an exception as a line of text, and its trace only if the caller asked for it."""
    trace = event.pop("exc_info", None)
    if trace:
        error = trace if isinstance(trace, BaseException) else sys.exc_info()[1]
        if error is not None:
            event["trace"] = "".join(traceback.format_exception(error))
    for key, value in event.items():
        if isinstance(value, BaseException):
            event[key] = f"{type(value).__name__}: {value}"
    return event


class _ToStructlog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger().bind(source=record.name)
        trace = record.exc_info[1] if record.exc_info else None
        log.log(record.levelno, record.getMessage(), exc_info=trace)


def _route_standard_library(level: int) -> None:
    root = logging.getLogger()
    root.handlers[:] = [_ToStructlog()]
    root.setLevel(max(level, logging.WARNING))
