"""One event, one JSON line, from any logger."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import structlog

from octavo.logs import configure_logging


def test_events_of_ours_and_of_the_standard_library(tmp_path: Path) -> None:
    path = tmp_path / "log"
    configure_logging(service="broker", node="broker-1", level="info", path=path)
    log = structlog.get_logger()
    log.info("partition_taken_over", partition="t/0", error=ValueError("x"))
    log.debug("not_shown")
    try:
        raise KeyError("k")
    except KeyError as error:
        log.error("went_wrong", exc_info=error)
    logging.getLogger("aiohttp.server").error("from %s", "outside")
    logging.getLogger("aiohttp.server").info("not shown")
    first, second, third = [json.loads(line) for line in path.read_text().splitlines()]
    assert first["event"] == "partition_taken_over"
    assert (first["service"], first["node"], first["level"]) == ("broker", "broker-1", "info")
    assert first["error"] == "ValueError: x"
    assert first["ts"].endswith("Z")
    assert "KeyError: 'k'" in second["trace"]
    assert (third["event"], third["source"]) == ("from outside", "aiohttp.server")


def test_console_for_people(tmp_path: Path) -> None:
    path = tmp_path / "log"
    configure_logging(form="console", path=path)
    structlog.get_logger().warning("bookie_lost", bookie="b1")
    assert "bookie_lost" in path.read_text()
    configure_logging(form="auto", path=path)
    structlog.get_logger().warning("bookie_lost", bookie="b2")
    assert json.loads(path.read_text().splitlines()[-1])["bookie"] == "b2"
