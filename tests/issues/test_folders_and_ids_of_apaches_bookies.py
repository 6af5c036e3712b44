"""`octavo bookie check` said "no damage found" of an Apache bookie's folders, which it cannot read.

Its VERSION file is a cookie like ours, and none of its other files has a name of ours: so nothing
was there to be damaged. And a bookie of ours that was started under the id of one of Apache's, on
the same host and port, was told that its data is missing, and to accept the loss.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.bookie.disk.files import RealDisk
from octavo.bookie.ledgers.cookies import CookieRefused, check_cookies, lost_folders
from octavo.inspect.folders import NoBookieHere, find_folders
from octavo.metadata.cookie import Cookie, encode_cookie

APACHES = Cookie("10.0.0.1:3181", "/bk/journal", ("/bk/ledgers",), instance_id="one")
OURS = Cookie(
    "10.0.0.1:3181", "/bk/journal", ("/bk/ledgers",), instance_id="one", incarnation="0123"
)
EMPTY: dict[str, Cookie | None] = {"/bk/journal": None, "/bk/ledgers": None}


def test_apaches_folders_are_said_to_be_apaches(tmp_path: Path) -> None:
    for name in ("journal", "ledgers"):
        folder = tmp_path / name / "current"
        folder.mkdir(parents=True)
        (folder / "VERSION").write_bytes(encode_cookie(APACHES))
        (folder / "0.log").write_bytes(b"BKLO" + bytes(1020))
    with pytest.raises(NoBookieHere, match=r"3181, which is one of Apache's: .*bookkeeper shell"):
        find_folders(RealDisk(), [str(tmp_path)])


def test_the_id_of_a_bookie_of_apaches_is_refused() -> None:
    with pytest.raises(
        CookieRefused, match=r"belongs to an Apache BookKeeper bookie.*octavo bookie forget"
    ):
        check_cookies(OURS, APACHES, EMPTY, [])


def test_also_with_the_loss_accepted() -> None:
    with pytest.raises(CookieRefused, match="belongs to an Apache BookKeeper bookie"):
        lost_folders(OURS, APACHES, EMPTY, [], "")
