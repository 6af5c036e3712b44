"""DistributedLog's core library on our bookies: write, follow by long polls, recover. It speaks
v3, since v2 has no long polls."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.apache.grounds import Ask, Grounds
from tests.apache.matrix import Matrix
from tests.interop.apache import VERSION, Java, fetch

CLIENT = f"DistributedLog {VERSION}"
SOURCE = Path(__file__).with_name("DistributedLogTalk.java")
TALK_S = 300
ROOT = "/octavo"
LATE_MS = 250
"""A record that a long poll missed comes with the next look, a second later."""

# As for BookKeeper, its ZooKeeper names metrics-core and snappy-java as optional only.
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>octavo.interop</groupId><artifactId>distributedlog</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.distributedlog</groupId>
      <artifactId>distributedlog-core</artifactId><version>{VERSION}</version></dependency>
    <dependency><groupId>io.dropwizard.metrics</groupId>
      <artifactId>metrics-core</artifactId><version>4.2.30</version></dependency>
    <dependency><groupId>org.xerial.snappy</groupId>
      <artifactId>snappy-java</artifactId><version>1.1.10.7</version></dependency>
  </dependencies>
</project>
"""


class _Library:
    def __init__(self, grounds: Grounds) -> None:
        folder = grounds.folder / "distributedlog"
        self._java = Java(fetch(f"DistributedLog {VERSION}", POM), folder)
        self._classes = folder / "classes"
        self._zookeeper = f"127.0.0.1:{grounds.zookeeper.port}"
        self._java.compile(SOURCE, self._classes)

    def bind(self) -> None:
        self.talk("bind", self._zookeeper, f"{ROOT}/ledgers")

    def talk(self, *words: object) -> dict[str, int]:
        uri = f"distributedlog-bk://{self._zookeeper}/logs"
        command = self._java.command(
            "DistributedLogTalk", uri, *map(str, words), classes=self._classes
        )
        done = subprocess.run(command, capture_output=True, text=True, timeout=TALK_S)
        results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        assert len(results) == 1, f"{words}:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
        pairs = (part.split("=", 1) for part in results[0].split()[1:])
        return {name: int(value) for name, value in pairs}


def distributedlog(matrix: Matrix, ask: Ask) -> None:
    with ask.grounds(laid_out=False) as grounds:
        url = f"zk://127.0.0.1:{grounds.zookeeper.port}{ROOT}"
        for _ in range(3):
            grounds.add_octavo("--metadata", url)
        library = _Library(grounds)
        count = 2_000 if grounds.short else 20_000
        with matrix.row(CLIENT, "v3", "a namespace; a log is written and read") as checks:
            library.bind()
            made = library.talk("write", "plain", 0, count, "close")
            checks.equal("every record is acked", made["acked"], count)
            found = library.talk("read", "plain", count)
            checks.equal("and read as it was written", found["right"], count)
        with matrix.row(CLIENT, "v3", "a log is followed by long polls") as checks:
            found = library.talk("tail", "followed", 200, 50)
            checks.equal("each record comes", (found["followed"], found["wrong"]), (200, 0))
            late = f"half of them {found['late_us'] / 1000} ms after its ack or sooner"
            checks.holds(late, found["late_us"] < LATE_MS * 1000, found)
        with matrix.row(CLIENT, "v3", "a dead writer's log is recovered and continues") as checks:
            library.talk("write", "left", 0, count, "leave")
            made = library.talk("write", "left", count, count, "close")
            checks.equal("the next writer's records are acked", made["acked"], count)
            found = library.talk("read", "left", 2 * count)
            checks.equal("those of both are there", found["right"], 2 * count)
            checks.equal("in a segment each", found["segments"], 2)
        with matrix.row(CLIENT, "v3", "a log continues without one of four bookies") as checks:
            grounds.add_octavo("--metadata", url)
            grounds.bookies[0].kill()
            made = library.talk("write", "plain", count, count, "close")
            checks.equal("every record is acked", made["acked"], count)
            found = library.talk("read", "plain", 2 * count)
            checks.equal("and those before are there", found["right"], 2 * count)
