"""After failed logins a caller waits before the next try, longer each time. Pure.

Failures are counted by address and user together, so that another address cannot lock a user out.
After failures for `USERS_OF_ADDRESS_MAX` users, an address's other users share one pause.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import NamedTuple

from octavo.protocol.log_limiter import host_of
from octavo.security.principal import Unauthenticated

FREE_TRIES = 5
"""Failures without a pause: people mistype."""
PAUSE_S_MIN = 1.0
PAUSE_S_MAX = 60.0
FORGOTTEN_S = 900.0
"""Earlier failures are forgotten when none follows within this time."""
USERS_OF_ADDRESS_MAX = 64
_ANY = ""


class LoginsPaused(Unauthenticated):
    """Too many failed logins or password checks: the proof was not looked at."""

    name = "logins-paused"
    http_status = 429
    retryable = True

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class _Failures(NamedTuple):
    times: int
    last_s: float
    until_s: float


_NONE = _Failures(0, 0.0, 0.0)


class FailedLogins:
    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._failures: OrderedDict[tuple[str, str], _Failures] = OrderedDict()
        self._users: dict[str, int] = {}
        """The number of entries of each address."""

    def __len__(self) -> int:
        return len(self._failures)

    def check(self, address: str, user: str, now_s: float) -> None:
        pause_s = self._known(self._key(address, user), now_s).until_s - now_s
        if pause_s > 0:
            raise LoginsPaused(
                f"too many failed logins: try again in {max(1, round(pause_s))} s", pause_s
            )

    def failed(self, address: str, user: str, now_s: float) -> None:
        key = self._key(address, user)
        times = self._known(key, now_s).times + 1
        over = times - FREE_TRIES
        pause_s = min(PAUSE_S_MIN * 2 ** min(over, 16), PAUSE_S_MAX) if over >= 0 else 0.0
        self._forget(key)
        if len(self._failures) >= self._entries_max:
            self._forget(next(iter(self._failures)))
        self._failures[key] = _Failures(times, now_s, now_s + pause_s)
        self._users[key[0]] = self._users.get(key[0], 0) + 1

    def succeeded(self, address: str, user: str) -> None:
        self._forget((source_of(address), user))

    def _key(self, address: str, user: str) -> tuple[str, str]:
        source = source_of(address)
        if (source, user) in self._failures or self._users.get(source, 0) < USERS_OF_ADDRESS_MAX:
            return source, user
        return source, _ANY

    def _known(self, key: tuple[str, str], now_s: float) -> _Failures:
        found = self._failures.get(key, _NONE)
        return found if now_s - found.last_s < FORGOTTEN_S else _NONE

    def _forget(self, key: tuple[str, str]) -> None:
        if self._failures.pop(key, None) is None:
            return
        self._users[key[0]] -= 1
        if not self._users[key[0]]:
            del self._users[key[0]]


def source_of(peer: str) -> str:
    """Return the address of `host` or `host:port` that failures are counted under.

    For IPv6 it is the /64 network: a household has 2^64 addresses.
    """
    for text in (peer, host_of(peer).strip("[]")):
        try:
            found = ipaddress.ip_address(text)
        except ValueError:
            continue
        if isinstance(found, ipaddress.IPv6Address):
            if found.ipv4_mapped is not None:
                return str(found.ipv4_mapped)
            return str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))
        return str(found)
    return host_of(peer)[:64]
