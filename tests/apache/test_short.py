"""Both kinds of bookies get the same questions, in short: needs a JDK, Maven and the jars."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRIES = 2
"""What Apache's bookie has flushed when it is killed depends on timing, so a busy machine may
change its answer. A wrong answer of ours is wrong both times."""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_conversations_with_both_kinds_of_bookies_are_alike():
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}: a JDK and Maven")
    command = [sys.executable, "-m", "tests.apache", "--short", "--only", "conversations,read_only"]
    for _ in range(TRIES):
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=440)
        if ended.returncode == 2:
            pytest.skip(ended.stderr.strip()[-300:])
        if ended.returncode == 0:
            return
    raise AssertionError(ended.stdout[-6000:] + ended.stderr[-2000:])
