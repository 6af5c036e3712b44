"""Objects that hold connections, tasks or threads, and so belong to a single process."""

from __future__ import annotations

from typing import NoReturn

from octavo.client.errors import InvalidCall


class OfThisProcess:
    """Refuses copies and pickles with an `InvalidCall` that says what to do."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise InvalidCall(
            f"{self!r} holds connections, so it cannot be pickled or copied: pass the URL, and "
            "make a client where it is used"
        )
