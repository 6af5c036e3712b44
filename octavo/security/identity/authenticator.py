"""Decide who a caller is, by what it shows.

A wrong header `Authorization` fails the call even with a good certificate. Without both, the caller
is anonymous. A verified proof is cached for at most `VERIFIED_S`, and dropped when the user, the
keys or the revocations change; `generation` then tells open streams to check again.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from octavo.protocol.log_limiter import LogLimiter
from octavo.security.identity import tokens
from octavo.security.identity.api_keys import KEY_MARK, KEY_PREFIX, ApiKeys, identity_of_key
from octavo.security.identity.certificates import CERTIFICATE_MARK, identity_of
from octavo.security.identity.failed_logins import FailedLogins, LoginsPaused, source_of
from octavo.security.identity.files import WatchedFile
from octavo.security.identity.foreign import ForeignTokens
from octavo.security.identity.jwt_keys import KeySet
from octavo.security.identity.password_checks import PasswordChecks
from octavo.security.identity.passwords import (
    MECHANISMS,
    PLAIN_BYTES_MAX,
    WRONG,
    Credential,
    is_password,
    made_up,
    parse_basic,
    parse_plain,
)
from octavo.security.identity.scram import ScramServer
from octavo.security.identity.token_form import (
    LEEWAY_S,
    TOKEN_CHARS_MAX,
    Claims,
    Token,
    WrongSignature,
    read_token,
)
from octavo.security.identity.users import Users, groups_of
from octavo.security.principal import (
    ANONYMOUS,
    Identity,
    Shown,
    Standing,
    Unauthenticated,
    is_principal_name,
)
from octavo.security.settings import SecurityConfig

VERIFIED_S = 60.0
"""A verified proof is not verified again within this time."""
_NAMED_CHARS = 200
"""Bounds the name kept from a token that may be forged."""
HEADER_CHARS_MAX = max(TOKEN_CHARS_MAX, PLAIN_BYTES_MAX) + 16

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Keys:
    tokens: bytes = field(repr=False)
    salts: bytes = field(repr=False)
    """For the made-up salts of unknown users."""


class Files(NamedTuple):
    """None where a file is not set."""

    revoked: WatchedFile[frozenset[int]] | None = None
    api_keys: WatchedFile[ApiKeys] | None = None
    jwt_keys: WatchedFile[KeySet] | None = None

    def refresh(self) -> bool:
        """Return whether any file had changed. Blocks."""
        # a list, not a generator: refresh every file
        changed = [one.refresh() for one in self if one is not None]
        return any(changed)


class _Verified(NamedTuple):
    identity: Identity
    until_ms: float


class Authenticator:
    def __init__(
        self,
        config: SecurityConfig,
        *,
        keys: Keys,
        users: Users,
        files: Files,
        foreign: ForeignTokens | None,
        clock: Callable[[], int],
        rng: random.Random,
    ) -> None:
        self.config = config
        self.users = users
        self.failed_logins = FailedLogins(config.failed_logins_max)
        self.salt_key = keys.salts
        self._keys = keys
        self._files = files
        self._foreign = foreign
        self._clock = clock
        self._checks = PasswordChecks(
            config.password_checks_max, config.password_checks_waiting_max
        )
        self._rng = rng
        self._hash_key = rng.randbytes(32)
        self._verified: OrderedDict[bytes, _Verified] = OrderedDict()
        self._checking: dict[bytes, asyncio.Task[Identity]] = {}
        self._generation = 0
        self._refused = LogLimiter()
        self._listeners: list[Callable[[], None]] = []
        self._moved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def describe(self) -> dict[str, int]:
        return {"checking": len(self._checking)}

    @property
    def generation(self) -> int:
        """Grows whenever a cached identity may have become wrong."""
        return self._generation

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def until_changed(self, generation: int) -> None:
        while self._generation == generation:
            await self._moved.wait()

    async def start(self) -> None:
        self.users.on_change(self._forget_users)
        try:
            await self.users.start()
            if self._foreign is not None:
                self._foreign.on_change(self._forget)
                await self._foreign.start()
        except BaseException:
            await self.close()
            raise
        if any(self._files):
            self._task = asyncio.create_task(self._watch_files(), name="security files")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        for task in list(self._checking.values()):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._foreign is not None:
            await self._foreign.close()
        await self.users.close()
        self._checks.close()

    def at_hand(self, shown: Shown) -> Identity | None:
        """Return the identity if it is cached or nothing was shown. Does not wait."""
        if shown.authorization is None and shown.certificate is None:
            return ANONYMOUS
        return self._known(self._key(shown))

    def _known(self, key: bytes) -> Identity | None:
        found = self._verified.get(key)
        if found is None or found.until_ms <= self._clock():  # kept for `_of_token` all the same
            return None
        self._verified.move_to_end(key)
        return found.identity

    async def identify(self, shown: Shown) -> Identity:
        """Return the caller's identity; `ANONYMOUS` when it shows nothing.

        Raises `Unauthenticated` if the proof is wrong; `LoginsPaused` (a subclass) if it was not
        looked at.
        """
        found = self.at_hand(shown)
        if found is not None:
            return found
        try:
            if shown.authorization is not None and len(shown.authorization) > HEADER_CHARS_MAX:
                raise Unauthenticated(
                    f"the Authorization header is longer than {HEADER_CHARS_MAX} characters"
                )
            return await self._proved(shown)
        except Unauthenticated as error:
            self.tell(shown.peer, error)
            raise

    async def plain(self, message: bytes, peer: str) -> Identity:
        try:
            user, password = parse_plain(message)
            key = self._digest(b"p", message)
            return self._known(key) or await self._of_password(key, user, password, peer)
        except Unauthenticated as error:
            self.tell(peer, error)
            raise

    def scram(self, mechanism: str, peer: str) -> ScramLogin:
        return ScramLogin(self, mechanism, peer, self._rng.randbytes(24).hex())

    # ---- proofs

    async def _proved(self, shown: Shown) -> Identity:
        key = self._key(shown)
        if shown.authorization is None:
            assert shown.certificate is not None
            return self._remember(key, self._of_certificate(shown.certificate))
        scheme, _, value = shown.authorization.strip().partition(" ")
        value = value.strip()
        if scheme.lower() == "basic":
            return await self._of_password(key, *parse_basic(value), shown.peer)
        if scheme.lower() != "bearer" or not value:
            raise Unauthenticated(
                "the header Authorization must be Bearer with a token or an API key, or Basic "
                "with user and password"
            )
        if value.startswith(KEY_PREFIX):
            return self._remember(key, self._of_api_key(value))
        # No await may come between the check and `_remember`: a revocation in between would not
        # find the proof in the cache, and it would stay valid.
        return self._remember(key, await self._of_token(key, read_token(value), shown.peer))

    def _of_certificate(self, der: bytes) -> Identity:
        revoked = self._files.revoked.value if self._files.revoked is not None else frozenset()
        identity = identity_of(der, self.config.certificate_principal, revoked)
        if identity.expires_at_s is not None and identity.expires_at_s * 1000 <= self._clock():
            raise Unauthenticated("the certificate has expired")
        return self.held_against_record(identity)

    def _of_api_key(self, key: str) -> Identity:
        known: ApiKeys = self._files.api_keys.value if self._files.api_keys is not None else {}
        return self.held_against_record(identity_of_key(key, known))

    async def _of_token(self, key: bytes, token: Token, peer: str) -> Identity:
        named = _named_in(token)
        # Forgers behind the same proxy must not lock the real user out: a token that is cached as
        # verified skips the check for paused logins.
        if key not in self._verified:
            self.failed_logins.check(peer, named, now_s())
        try:
            claims = await self._verify_token(token)
        except WrongSignature:
            self.failed_logins.failed(peer, named, now_s())
            raise
        identity = Identity(
            f"user:{claims.name}", groups_of(claims.groups), "token", claims.expires_at_s
        )
        return self.held_against_record(identity, claims.issued_at_s)

    async def _verify_token(self, token: Token) -> Claims:
        wall_s = self._clock() / 1000
        if token.kid == tokens.KID:
            return tokens.verify(self._keys.tokens, token, now_s=wall_s)
        if self._foreign is None:
            raise Unauthenticated("the token is not this cluster's, and no other issuer is set up")
        claims = await self._foreign.verify(token, wall_s)
        if claims.issued_at_s is None:
            return claims
        # The issuer's clock may be ahead by `LEEWAY_S`: count the token as that much older, or a
        # token from before a revocation would pass.
        return claims._replace(issued_at_s=max(0.0, claims.issued_at_s - LEEWAY_S))

    async def _of_password(self, key: bytes, user: str, password: str, peer: str) -> Identity:
        # Check a password once, however many requests come with it at once.
        task = self._checking.get(key)
        if task is None:
            task = asyncio.create_task(self._check_password(key, user, password, peer))
            self._checking[key] = task
            task.add_done_callback(lambda done: self._checked(key, done))
        return await asyncio.shield(task)

    def _checked(self, key: bytes, task: asyncio.Task[Identity]) -> None:
        self._checking.pop(key, None)
        if not task.cancelled():
            task.exception()  # mark it as seen: every waiting request may have gone

    async def _check_password(self, key: bytes, user: str, password: str, peer: str) -> Identity:
        name = user if is_principal_name(user) else ""

        def may() -> None:
            self.failed_logins.check(peer, name, now_s())

        may()
        record = self.users.get(name)
        # For an unknown user, check a made-up credential, so that the answer takes as long.
        mechanism = MECHANISMS[0]
        known = None if record.disabled else record.credential(mechanism)
        credential = known or made_up(mechanism, user, self.salt_key)
        right = await self._checks.run(
            peer, lambda: is_password(mechanism, password, credential), may
        )
        if not right or known is None or record != self.users.get(name):
            self.failed_logins.failed(peer, name, now_s())
            raise Unauthenticated(WRONG)
        self.failed_logins.succeeded(peer, name)
        identity = self.held_against_record(Identity(f"user:{name}", source="password"))
        return self._remember(key, identity)

    def held_against_record(self, identity: Identity, issued_at_s: float | None = None) -> Identity:
        """Check an identity against the user's record, and add the record's groups.

        Raises `Unauthenticated`.
        """
        user = identity.name.partition(":")[2]
        record = self.users.get(user)
        if record.disabled:
            raise Unauthenticated("what was shown is no longer accepted")
        # A token without an issue time may have been issued before the revocation.
        if identity.source == "token" and (issued_at_s or 0) < record.not_before_s:
            raise Unauthenticated("the token was revoked")
        standing = identity.standing._replace(record=self.users.version(user))
        return identity._replace(
            groups=identity.groups | groups_of(record.groups), standing=standing
        )

    def lapsed(self, identity: Identity, standing: Standing) -> str:
        """Return why an identity that another process verified is no longer valid; empty if it is
        valid.

        If `standing` names a later user record than this process has read, the identity is valid.
        """
        user = identity.name.partition(":")[2]
        record = self.users.get(user)
        if record.disabled:
            return f"{identity.name} is disabled"
        if self.users.version(user) > standing.record:
            return f"what the cluster knows of {identity.name} has changed since"
        if standing.mark.startswith(CERTIFICATE_MARK) and self._files.revoked is not None:
            serial = _bytes(standing.mark.removeprefix(CERTIFICATE_MARK))
            if int.from_bytes(serial) in self._files.revoked.value:
                return f"the certificate of {identity.name} was revoked"
        if standing.mark.startswith(KEY_MARK) and self._files.api_keys is not None:
            key = self._files.api_keys.value.get(_bytes(standing.mark.removeprefix(KEY_MARK)))
            if key is None:
                return f"the API key of {identity.name} is no longer known"
            groups = key.groups | groups_of(record.groups)
            if self.users.version(user) == standing.record and not identity.groups <= groups:
                return f"the API key of {identity.name} has lost a group"
        return ""

    # ---- cache of verified proofs

    def _key(self, shown: Shown) -> bytes:
        if shown.authorization is not None:
            return self._digest(b"h", shown.authorization.encode(errors="surrogatepass"))
        assert shown.certificate is not None
        return self._digest(b"c", shown.certificate)

    def _digest(self, kind: bytes, data: bytes) -> bytes:
        return hashlib.blake2b(kind + data, key=self._hash_key, digest_size=32).digest()

    def _remember(self, key: bytes, identity: Identity) -> Identity:
        until_ms = self._clock() + 1000 * VERIFIED_S
        if identity.expires_at_s is not None:
            until_ms = min(until_ms, 1000 * identity.expires_at_s)
        self._verified.pop(key, None)
        if len(self._verified) >= self.config.verified_max:
            self._verified.popitem(last=False)
        self._verified[key] = _Verified(identity, until_ms)
        return identity

    def _forget_users(self, names: frozenset[str]) -> None:
        principals = {f"user:{name}" for name in names}
        for key, found in list(self._verified.items()):
            if found.identity.name in principals:
                del self._verified[key]
        self._changed()

    def _forget(self) -> None:
        self._verified.clear()
        self._changed()

    def _changed(self) -> None:
        self._generation += 1
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
        for listener in tuple(self._listeners):
            listener()

    async def _watch_files(self) -> None:
        while True:
            await asyncio.sleep(self.config.files_reload_ms / 1000)
            try:
                changed = await asyncio.to_thread(self._files.refresh)
            except Exception as error:
                log.error("security_file_not_loaded", reason=repr(error), exc_info=error)
            else:
                if changed:
                    self._forget()

    def tell(self, peer: str, error: Unauthenticated) -> None:
        host = source_of(peer)
        times = self._refused.count(now_s(), host)
        if times:
            paused = isinstance(error, LoginsPaused)
            log.warning("login_failed", peer=host, reason=str(error), times=times, paused=paused)


class ScramLogin:
    def __init__(self, of: Authenticator, mechanism: str, peer: str, nonce: str) -> None:
        self._of, self._mechanism, self._peer = of, mechanism, peer
        self._server = ScramServer(mechanism, self._find, salt_key=of.salt_key, nonce=nonce)
        self.identity: Identity | None = None

    def step(self, message: bytes) -> bytes:
        try:
            if self._server.named:
                self._of.failed_logins.check(self._peer, self._server.named, now_s())
            answer = self._server.step(message)
            if self._server.user is not None:
                self.identity = self._of.held_against_record(
                    Identity(f"user:{self._server.user}", source="password")
                )
                self._of.failed_logins.succeeded(self._peer, self._server.user)
        except Unauthenticated as error:
            if str(error) == WRONG:
                self._of.failed_logins.failed(self._peer, self._server.named, now_s())
            self._of.tell(self._peer, error)
            raise
        return answer

    def _find(self, name: str) -> Credential | None:
        self._of.failed_logins.check(self._peer, self._server.named, now_s())
        record = self._of.users.get(name)
        return None if record.disabled else record.credential(self._mechanism)


def _named_in(token: Token) -> str:
    """Return the name under which failures of this token are counted: the user it claims.

    It begins with "token ": no user's name has a space, so failed passwords count separately.
    """
    said = token.claims.get("sub")
    return f"token {said[:_NAMED_CHARS]}" if isinstance(said, str) else "token"


def _bytes(digits: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except ValueError:  # the mark is not in hex
        return b""


def now_s() -> float:
    return asyncio.get_running_loop().time()
