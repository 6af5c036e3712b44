"""Run Java programs, and compile our own."""

from __future__ import annotations

import os
from pathlib import Path

from bench.peers import fetch
from bench.peers.figures import Failed
from bench.peers.servers import finish

SOURCES = Path(__file__).parent / "java"
COMPILE_S = 120
HEAP = "-Xmx1g"

# The collector's flags are from Kafka's start script.
_FLAGS = (
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxDirectMemorySize=1g", "-Djava.awt.headless=true",
)  # fmt: skip

# BookKeeper's shell puts its messages into the context map (%X).
_LOG4J = """status = error
rootLogger.level = {level}
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{{1}} - %m %X%n%throwable
"""


class Java:
    def __init__(self, lib: Path, folder: Path, *flags: str, level: str = "warn") -> None:
        self._lib = lib
        self._flags = flags
        self._classes = folder / "classes"
        self._log4j = folder / f"log4j2-{level}.properties"
        self._log4j.write_text(_LOG4J.format(level=level))

    def command(self, main: str, *words: object) -> list[str]:
        logs = f"-Dlog4j2.configurationFile={self._log4j}"
        path = f"{self._lib}/*{os.pathsep}{self._classes}"
        return ["java", HEAP, *_FLAGS, logs, *self._flags, "-cp", path, main, *map(str, words)]

    def compile(self, name: str) -> None:
        javac = fetch.need("javac", f"{name}.java", "a JDK, 17 or newer")
        words = [javac, "-nowarn", "-proc:none", "-cp", f"{self._lib}/*", "-d", str(self._classes)]
        code, said, complaints = finish([*words, str(SOURCES / f"{name}.java")], COMPILE_S, SOURCES)
        if code:
            raise Failed(f"{name}.java does not compile: {(said + complaints)[:500]}")
