"""A program that ended with a loop over messages still open waited for ever for a thread that was
gone; one that had closed nothing lost, without a word, what its producers had not sent yet.

The interpreter stops threads like the client's before it takes generators apart, and these wait for
an answer of it. Now what nobody has closed is closed first.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = """
import atexit
import structlog
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
from tests.support.broker_thread import BrokerThread
broker = BrokerThread()
atexit.register(lambda: print(sorted(map(bytes, broker.values()))[-1].decode(), flush=True))
from octavo import Client
client = Client(broker.url)
client.create_topic("t")
client.publish("t", "a")
"""
LOOPS = {
    "subscription": "found = client.subscribe('t', 's', type='shared').deliveries()",
    "several topics": "found = client.consume('t', 's').deliveries()",
    "group": "found = client.consume('t', 's', group=True).deliveries()",
    "reader": "found = client.messages('t')",
    "follower": "found = client.messages('t', follow=True)",
}


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BEGIN + script],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_with_a_loop_open(loop: str) -> None:
    ended = run(f"{loop}\nprint(next(found).text(), flush=True)")
    assert (ended.returncode, ended.stdout.split()) == (0, ["a", "a"]), ended.stderr
    assert "Traceback" not in ended.stderr


def test_what_producers_have_is_sent() -> None:
    ended = run(
        "producer = client.producer('t', linger_ms=60_000)\n"
        "for number in range(100): producer.send(f'b{number:03}')"
    )
    assert (ended.returncode, ended.stdout.split()) == (0, ["b099"]), ended.stderr


def test_what_cannot_be_sent_is_told() -> None:
    """Nobody answers any more."""
    ended = run(
        "import octavo.loop_thread\n"
        "octavo.loop_thread.CLOSE_TIMEOUT_S = 0.3\n"
        "producer = client.producer('t', linger_ms=60_000)\n"
        "for number in range(100): producer.send('b')\n"
        "broker.stop()"
    )
    assert (ended.returncode, ended.stdout.split()) == (0, ["a"]), ended.stderr
    assert "100 messages to public/t were not sent or not answered" in ended.stderr


def test_processes_of_multiprocessing_send_it_too() -> None:
    ended = run(
        "import multiprocessing\n"
        "def work():\n"
        "    own = Client(broker.url)\n"
        "    own.producer('t', linger_ms=60_000).send('b')\n"
        "one = multiprocessing.get_context('fork').Process(target=work)\n"
        "one.start(); one.join(); print(one.exitcode)"
    )
    assert (ended.returncode, ended.stdout.split()) == (0, ["0", "b"]), ended.stderr
