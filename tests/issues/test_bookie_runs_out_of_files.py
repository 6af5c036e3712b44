"""A bookie kept to the 1,024 open files that a shell gives, and promised 10,000 connections.

Each entry log that was read once stays open too, so one of half a terabyte had none left for its
next journal file, and called its logs unreadable. Found by reading the engine; the tests of
overload had raised the limit themselves.
"""

from __future__ import annotations

import resource

from octavo.process.life import allow_open_files


def test_it_takes_what_the_system_allows() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        allow_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
