"""Prove which bookie owns the folders: by a cookie in each folder and in metadata, and by a lock.

A bookie denies entries that it does not have, so it must never start on folders that may have lost
entries. The rules, as in BookKeeper's `Cookie`:

- Every folder and metadata carry the same cookie: start.
- None has a cookie, and the folders hold nothing else: stamp them, with a new incarnation.
- Empty ledger folders were added at the end of the list, and the operator accepts them: stamp them.
- Otherwise refuse, and say what was found, what was expected and what to do.

Stamping writes the folders first, then metadata. After a crash in between, the next start stamps
the folders again: no promise was made from them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.files import Disk, DiskError, File, draft_of, replace_file
from octavo.bookie.ledgers.high_water import NAME as HIGH_WATER_FILE
from octavo.bookie.ledgers.limbo import NAME as LIMBO_FILE
from octavo.metadata.cookie import Cookie, decode_cookie, encode_cookie
from octavo.metadata.store import BadRecord
from octavo.protocol.codes import OctavoError, Scope

VERSION_FILE = "VERSION"
LOCK_FILE = "LOCK"
_NOT_DATA = frozenset(
    {
        VERSION_FILE,
        draft_of(VERSION_FILE),
        LIMBO_FILE,
        draft_of(LIMBO_FILE),
        HIGH_WATER_FILE,
        draft_of(HIGH_WATER_FILE),
        LOCK_FILE,
        "octavo.lock",
        "lost+found",
    }
)
_VERSION_BYTES_MAX = 64 * 1024


class FolderUnusable(OctavoError):
    name = "folder-unusable"
    scope = Scope.PROCESS


class CookieRefused(OctavoError):
    """The folders do not, or not certainly, belong to this bookie. Nothing was changed."""

    name = "cookie-refused"
    scope = Scope.PROCESS


def lock_folders(disk: Disk, folders: Sequence[str]) -> list[File]:
    """Create missing folders; blocking. Raises `FolderUnusable`."""
    locks: list[File] = []
    for folder in folders:
        try:
            disk.make_directory(folder)
            locks.append(disk.lock(f"{folder}/{LOCK_FILE}"))
        except (DiskError, OSError) as error:
            for lock in locks:
                lock.close()
            raise FolderUnusable(
                f"data folder {folder} cannot be used: {error}; this process must be able to "
                "write there, and no other bookie may use it"
            ) from error
    return locks


def read_cookies(disk: Disk, folders: Sequence[str]) -> dict[str, Cookie | None]:
    """Read cookies, None where there is none; blocking. Raises `CookieRefused` for damage."""
    found: dict[str, Cookie | None] = {}
    for folder in folders:
        path = f"{folder}/{VERSION_FILE}"
        try:
            file = disk.open(path)
        except FileNotFoundError:
            found[folder] = None
            continue
        try:
            found[folder] = decode_cookie(file.pread(_VERSION_BYTES_MAX, 0))
        except BadRecord as error:
            raise CookieRefused(
                f"{path} is damaged: {error}; copy it from another folder of this bookie, all "
                "carry the same file"
            ) from error
        finally:
            file.close()
    return found


def write_cookies(disk: Disk, folders: Sequence[str], cookie: Cookie) -> None:
    """Write the cookie into the folders; durable, blocking."""
    data = encode_cookie(cookie)
    for folder in folders:
        replace_file(disk, f"{folder}/{VERSION_FILE}", data)


def folders_with_data(disk: Disk, folders: Sequence[str]) -> list[str]:
    """Return the folders that hold more than a cookie and a lock; blocking."""
    return [folder for folder in folders if set(disk.list_directory(folder)) - _NOT_DATA]


def new_cookie(
    config: BookieConfig, bookie_id: str, instance_id: str, rng: random.Random
) -> Cookie:
    return Cookie(
        bookie_id=bookie_id,
        journal_dir=",".join(config.journal_directories),
        ledger_dirs=config.ledger_directories,
        instance_id=instance_id,
        incarnation=f"{rng.getrandbits(64):016x}",
    )


def check_cookies(
    expected: Cookie,
    recorded: Cookie | None,
    on_disk: dict[str, Cookie | None],
    with_data: Sequence[str],
) -> Cookie | None:
    """Return the cookie to start with, or None when the folders must be stamped. Pure.

    `expected` is what a new cookie would say, `recorded` the cookie in metadata, `with_data` the
    folders that hold data. Raises `CookieRefused`.
    """
    for folder, cookie in on_disk.items():
        if cookie is not None:
            _check_owner(folder, cookie, expected)
    if recorded is None:
        _check_unrecorded(expected, on_disk, with_data)
        return None
    _check_configured(expected, recorded)
    for folder, cookie in on_disk.items():
        if cookie is None:
            raise CookieRefused(
                f"folder {folder} carries no cookie, but bookie {expected.bookie_id} has been set "
                f"up before (incarnation {recorded.incarnation or 'unknown'}, "
                f"{_folders_of(recorded)}): its data is missing. Mount the right disk. If the data "
                "is gone for good, start once with --accept-loss: what this bookie still has is "
                "served, what it may have lost is answered as unknown (docs/operations.md, When a "
                "disk is lost). Or give it a new bookie_id and empty folders"
            )
        if is_earlier_stamp(folder, cookie, recorded):
            continue
        if cookie != recorded:
            raise CookieRefused(
                f"folder {folder} was stamped by another life of bookie {expected.bookie_id}: it "
                f"says {_describe(cookie)}, metadata says {_describe(recorded)}. Use the folder "
                "that belongs to this life, or give this bookie a new bookie_id and empty folders"
            )
    return recorded


def lost_folders(
    expected: Cookie,
    recorded: Cookie,
    on_disk: dict[str, Cookie | None],
    with_data: Sequence[str],
    begun: str,
) -> list[str]:
    """Return the empty folders that may be stamped again, when the loss is accepted. Pure.

    `begun` is the incarnation in the limbo file: an interrupted start may have stamped some folders
    with it. Raises `CookieRefused` for a state that accepting the loss does not repair.
    """
    _check_configured(expected, recorded)
    lost: list[str] = []
    for folder, cookie in on_disk.items():
        if cookie is None:
            if folder in with_data:
                raise CookieRefused(
                    f"folder {folder} is not empty and carries no cookie: it belongs to something "
                    "else, or its VERSION file was removed. Copy VERSION from another folder of "
                    "this bookie, or empty the folder if its data is given up"
                )
            lost.append(folder)
            continue
        _check_owner(folder, cookie, expected)
        if is_earlier_stamp(folder, cookie, recorded):
            continue
        if cookie not in (recorded, replace(recorded, incarnation=begun or recorded.incarnation)):
            raise CookieRefused(
                f"folder {folder} was stamped by another life of bookie {expected.bookie_id}: it "
                f"says {_describe(cookie)}, metadata says {_describe(recorded)}. What it holds is "
                "too old to be served: empty it if you accept that loss too"
            )
    return lost


def adds_folders(expected: Cookie, recorded: Cookie) -> bool:
    """Whether ledger folders were added at the end, and nothing else changed. Pure.

    The order must stay: the first folder has the index and the ledger state.
    """
    return bool(recorded.incarnation) and _is_shorter(
        recorded, replace(expected, incarnation=recorded.incarnation)
    )


def is_earlier_stamp(folder: str, cookie: Cookie, recorded: Cookie) -> bool:
    """Whether this life stamped `folder` before the newest ledger folders were added. Pure.

    A start that ends after it wrote the metadata leaves a folder so.
    """
    added = recorded.ledger_dirs[len(cookie.ledger_dirs) :]
    return folder not in added and _is_shorter(cookie, recorded)


def _is_shorter(cookie: Cookie, longer: Cookie) -> bool:
    """Whether they differ only in more ledger folders at the end of `longer`."""
    count = len(cookie.ledger_dirs)
    return (
        count < len(longer.ledger_dirs)
        and replace(longer, ledger_dirs=longer.ledger_dirs[:count]) == cookie
    )


def folders_to_stamp(
    cookie: Cookie,
    recorded: Cookie,
    on_disk: dict[str, Cookie | None],
    with_data: Sequence[str],
    journals: Sequence[str],
) -> list[str]:
    """Return the accepted new folders that need a stamp. Pure.

    `cookie` is `recorded` with these folders. Raises `CookieRefused` when an earlier folder has
    changed, or a new one is not empty or is a journal folder.
    """
    added = cookie.ledger_dirs[len(recorded.ledger_dirs) :]
    found: list[str] = []
    for folder, stamp in on_disk.items():
        if folder not in added:
            _check_unchanged(folder, stamp, cookie, recorded)
            continue
        if folder in journals:
            raise CookieRefused(
                f"new ledger folder {folder} is a journal folder of this bookie: add a folder that "
                "is used for nothing else"
            )
        if stamp is not None:
            _check_owner(folder, stamp, cookie)
        if stamp == cookie:
            continue  # an interrupted start has stamped it
        if folder in with_data:
            raise CookieRefused(
                f"new ledger folder {folder} is not empty: it belongs to something else. Add an "
                "empty folder"
            )
        found.append(folder)
    return found


def _check_unchanged(folder: str, stamp: Cookie | None, cookie: Cookie, recorded: Cookie) -> None:
    if stamp is None:
        raise CookieRefused(
            f"folder {folder} carries no cookie, and a bookie whose data is missing gets no new "
            f"folders. Mount the right disk; or start first with {_folders_of(recorded)} and "
            "--accept-loss, then with the new folders"
        )
    _check_owner(folder, stamp, cookie)
    if stamp not in (recorded, cookie):
        raise CookieRefused(
            f"folder {folder} was stamped by another life of bookie {cookie.bookie_id}: it says "
            f"{_describe(stamp)}, metadata says {_describe(recorded)}. Use the folder that belongs "
            "to this life"
        )


def _check_configured(expected: Cookie, recorded: Cookie) -> None:
    if not recorded.incarnation:
        raise CookieRefused(
            f"bookie id {expected.bookie_id} belongs to an Apache BookKeeper bookie, with "
            f"{_folders_of(recorded)}. Give this bookie another bookie_id or port, and empty "
            "folders. Or, when Apache's bookie has ended for good and no ledger names it: "
            f"octavo bookie forget {expected.bookie_id}"
        )
    if adds_folders(expected, recorded):
        added = expected.ledger_dirs[len(recorded.ledger_dirs) :]
        raise CookieRefused(
            f"bookie {expected.bookie_id} was set up with {_folders_of(recorded)}, and is now "
            f"configured with {', '.join(added)} as well. If the new folders are empty and this "
            "bookie should store there too, start once with --accept-new-folders. Otherwise: "
            "Configure it as it was"
        )
    if replace(recorded, incarnation="") != replace(expected, incarnation=""):
        raise CookieRefused(
            f"bookie {expected.bookie_id} was set up with {_folders_of(recorded)} in cluster "
            f"{recorded.instance_id}, and is now configured with {_folders_of(expected)} in "
            f"cluster {expected.instance_id}. Configure it as it was: the same folders, in the "
            "same order, under the same paths. If this is another bookie, give it another "
            "bookie_id. Ledger folders can be added at the end of the list (--accept-new-folders)"
        )


def _check_owner(folder: str, found: Cookie, expected: Cookie) -> None:
    if found.bookie_id != expected.bookie_id:
        raise CookieRefused(
            f"folder {folder} belongs to bookie {found.bookie_id}, this is bookie "
            f"{expected.bookie_id}: give this bookie another folder, or start it with "
            f"bookie_id {found.bookie_id}"
        )
    if found.instance_id != expected.instance_id:
        raise CookieRefused(
            f"folder {folder} belongs to the cluster with instance id {found.instance_id}, the "
            f"metadata store to {expected.instance_id}: use that cluster's metadata URL, "
            "or an empty folder"
        )


def _check_unrecorded(
    expected: Cookie, on_disk: dict[str, Cookie | None], with_data: Sequence[str]
) -> None:
    if not with_data:
        return
    stamped = [folder for folder, cookie in on_disk.items() if cookie is not None]
    if stamped:
        raise CookieRefused(
            f"folder {stamped[0]} holds data of bookie {expected.bookie_id}, but metadata has no "
            "cookie of that bookie: it was decommissioned, or the metadata was lost. Restore the "
            "metadata, or start with empty folders"
        )
    raise CookieRefused(
        f"folder {with_data[0]} is not empty and carries no cookie: it belongs to something else, "
        "or its VERSION file was removed. Name an empty folder"
    )


def _folders_of(cookie: Cookie) -> str:
    return f"journal {cookie.journal_dir}, ledgers {', '.join(cookie.ledger_dirs)}"


def _describe(cookie: Cookie) -> str:
    return (
        f"{_folders_of(cookie)}, instance {cookie.instance_id}, "
        f"incarnation {cookie.incarnation or 'unknown'}"
    )
