"""The server side of SCRAM-SHA-256 and -512 (RFC 5802, RFC 7677). Pure.

An unknown user gets the same answers until the last step. Refused: clients that insist on channel
binding (`-PLUS`), or ask for another user's rights (authzid). `scramp` does the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable

from scramp import ScramException, ScramMechanism

from octavo.security.identity.passwords import WRONG, Credential, made_up
from octavo.security.principal import Unauthenticated, is_principal_name

MESSAGE_BYTES_MAX = 4096

Find = Callable[[str], Credential | None]
"""Returns None for an unknown user. May raise `Unauthenticated`."""


class ScramServer:
    """One SCRAM login. After the second step `user` is set; an error ends it."""

    def __init__(self, mechanism: str, find: Find, *, salt_key: bytes, nonce: str) -> None:
        """Check one login.

        `salt_key`: for made-up salts. `nonce`: printable and random, for this login only.
        """
        self._mechanism, self._find, self._salt_key = mechanism, find, salt_key
        self._server = ScramMechanism(mechanism).make_server(self._of_user, s_nonce=nonce)
        self._steps = 0
        self._named = ""
        self._known = False
        self._refused: Unauthenticated | None = None

    @property
    def user(self) -> str | None:
        return self._named if self._steps == 2 and self._refused is None else None

    @property
    def named(self) -> str:
        """Return the user name of the first step, not yet proved."""
        return self._named

    def step(self, message: bytes) -> bytes:
        """Return the answer to the client's message. After an error every step raises
        `Unauthenticated`.
        """
        if self._refused is None and self._steps < 2:
            try:
                return self._stepped(message)
            except Unauthenticated as error:
                self._refused = error
            except (ScramException, ValueError, IndexError) as error:
                self._refused = self._refused or Unauthenticated(_words(error))
        raise self._refused or Unauthenticated("the login is over")

    def _stepped(self, message: bytes) -> bytes:
        if len(message) > MESSAGE_BYTES_MAX:
            raise Unauthenticated(f"a SCRAM message is longer than {MESSAGE_BYTES_MAX} bytes")
        text = message.decode()
        if self._steps == 0:
            self._server.set_client_first(text)
            answer: str = self._server.get_server_first()
        else:
            self._server.set_client_final(text)
            if not self._known:
                raise Unauthenticated(WRONG)
            answer = self._server.get_server_final()
        self._steps += 1
        return answer.encode()

    def _of_user(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        self._named = name if is_principal_name(name) else "?"
        try:
            found = self._find(name)
        except Unauthenticated as error:
            self._refused = error
            raise
        self._known = found is not None
        one = found or made_up(self._mechanism, name, self._salt_key)
        return one.salt, one.stored_key, one.server_key, one.iterations


def _words(error: Exception) -> str:
    if not isinstance(error, ScramException):
        return "a SCRAM message is damaged"
    kind = error.server_error.value if error.server_error is not None else "other-error"
    return _OF.get(kind, "a SCRAM message is damaged")


_OF = {
    "invalid-proof": WRONG,
    "channel-binding-not-supported": "channel binding is not offered here: use it without -PLUS",
    "unsupported-channel-binding-type": "channel binding is not offered here: use it without -PLUS",
    "channel-bindings-dont-match": "the client's channel binding flag was changed on the way",
}
