"""A cookie proves that a folder belongs to a bookie; it is on each disk and in metadata.

    cookie := "5
" [ "# octavo-incarnation: " text "
" ] CookieFormat in protobuf text

BookKeeper's parser skips the comment (docs/formats/cookie.md).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from google.protobuf import text_format

from octavo.metadata.protobuf_schema import CookieFormat
from octavo.metadata.store import BadRecord

LAYOUT_VERSION = 5
_OLDEST_TEXT_VERSION = 4
_INCARNATION = "# octavo-incarnation: "


@dataclass(frozen=True, slots=True)
class Cookie:
    bookie_id: str
    journal_dir: str
    ledger_dirs: tuple[str, ...]
    instance_id: str = ""
    index_dirs: tuple[str, ...] = ()
    incarnation: str = ""


def encode_cookie(cookie: Cookie) -> bytes:
    assert "\n" not in cookie.incarnation
    message = CookieFormat(
        bookieHost=cookie.bookie_id,
        journalDir=cookie.journal_dir,
        ledgerDirs=_pack_dirs(cookie.ledger_dirs),
    )
    if cookie.instance_id:
        message.instanceId = cookie.instance_id
    if cookie.index_dirs:
        message.indexDirs = _pack_dirs(cookie.index_dirs)
    comment = f"{_INCARNATION}{cookie.incarnation}\n" if cookie.incarnation else ""
    text = text_format.MessageToString(message, as_utf8=False)
    return f"{LAYOUT_VERSION}\n{comment}{text}".encode("ascii")


@functools.lru_cache(maxsize=64)
def decode_cookie(data: bytes) -> Cookie:
    """Decode a cookie. Raises `BadRecord` unless the layout version is 4 or 5.

    Cached: a start reads the same bytes in each folder.
    """
    message = CookieFormat()
    try:
        version, _, body = data.decode().partition("\n")
        if not _OLDEST_TEXT_VERSION <= int(version) <= LAYOUT_VERSION:
            raise BadRecord(
                f"cookie layout version {int(version)}; known are {_OLDEST_TEXT_VERSION} "
                f"and {LAYOUT_VERSION}"
            )
        text_format.Parse(body, message)
    except (ValueError, text_format.ParseError) as error:
        raise BadRecord(f"not a cookie: {error}") from error
    incarnations = [line for line in body.splitlines() if line.startswith(_INCARNATION)]
    return Cookie(
        bookie_id=message.bookieHost,
        journal_dir=message.journalDir,
        ledger_dirs=_unpack_dirs(message.ledgerDirs),
        instance_id=message.instanceId,
        index_dirs=_unpack_dirs(message.indexDirs) if message.indexDirs else (),
        incarnation=incarnations[0].removeprefix(_INCARNATION) if incarnations else "",
    )


def _pack_dirs(dirs: tuple[str, ...]) -> str:
    return "\t".join((str(len(dirs)), *dirs))


def _unpack_dirs(text: str) -> tuple[str, ...]:
    count, *dirs = text.split("\t")
    if count != str(len(dirs)):
        raise BadRecord(f"cookie folders {text!r}: the count in front does not match the folders")
    return tuple(dirs)
