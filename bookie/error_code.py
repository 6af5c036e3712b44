"""Map errors to the codes that answer them, for all parts that answer requests."""

from __future__ import annotations

import structlog

from octavo.protocol.codes import BookieError, Code, OctavoError, ProtocolError

log = structlog.get_logger()


def code_of(error: Exception, what: str, ledger_id: object, entry_id: object) -> Code:
    """Return the answer's code; log an unexpected error, whose code is IO."""
    if isinstance(error, BookieError):
        return error.code
    if isinstance(error, ProtocolError):
        return Code.BAD_REQUEST
    log.error(
        "request_failed",
        request=what,
        ledger=ledger_id,
        entry=entry_id,
        error=str(error),
        exc_info=None if isinstance(error, OctavoError) else error,
    )
    return Code.IO
