"""Admit calls: identify the caller and check its rights, before a body is read or work is done.

A missing or wrong proof gets a 401, a call without a right a 403. Without security every caller may
make every call, except calls between brokers. A `Grant` holds for one generation of the policy, and
as long as the proof; a long call checks it again (`holds`) when woken (`Wakes`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from octavo.broker.http.connections import Connection
from octavo.broker.http.needs import Right
from octavo.broker.http.problems import Problem
from octavo.broker.internal_topics import INTERNAL_NAMESPACES
from octavo.broker.operations.authorizer import Authorizer
from octavo.security.audit import Decided
from octavo.security.principal import (
    ANONYMOUS,
    Authenticates,
    Identity,
    Shown,
    Unauthenticated,
)
from octavo.security.rules import Resource

if TYPE_CHECKING:
    from aiohttp import web

    from octavo.broker.http.router import Route
    from octavo.security.authority import Authority


OnUnauthenticated = Callable[[str, str, str], None]
CheckBroker = Callable[[Mapping[str, str]], Identity]


class HasCertificate(Protocol):
    @property
    def certificate(self) -> bytes | None: ...


class Grant(NamedTuple):
    identity: Identity
    generation: int
    shown: Shown | None = None


class Wakes:
    def __init__(self) -> None:
        self._sleepers: dict[asyncio.Future[None], None] = {}  # a dict keeps their order

    def describe(self) -> dict[str, int]:
        return {"sleepers": len(self._sleepers)}

    @contextmanager
    def next(self) -> Iterator[asyncio.Future[None]]:
        sleeper = asyncio.get_running_loop().create_future()
        self._sleepers[sleeper] = None
        try:
            yield sleeper
        finally:
            del self._sleepers[sleeper]

    def wake(self) -> None:
        for sleeper in self._sleepers:
            if not sleeper.done():
                sleeper.set_result(None)


class Gate(Authorizer):
    def __init__(
        self,
        authority: Authority | None,
        authenticator: Authenticates | None,
        clock: Callable[[], int],
        count_denied: Callable[[str], object],
        check_broker: CheckBroker | None = None,
        *,
        required: bool = False,
    ) -> None:
        """Judge calls; without `authority` all are allowed.

        Without `check_broker` no call is another broker's. `required`: do not serve an unsecured
        cluster.
        """
        super().__init__(authority, clock, count_denied)
        self.on_unauthenticated: OnUnauthenticated | None = None
        self.wakes = Wakes()
        self._authenticator = authenticator
        self._required = required
        self._check_broker = check_broker
        self._free = Grant(ANONYMOUS, -1)
        if authority is not None:
            authority.on_change(self.wakes.wake)

    async def admit(
        self,
        request: web.BaseRequest,
        route: Route,
        variables: Mapping[str, str],
    ) -> Grant:
        needs, generation = route.needs, self.generation
        peer = request.remote or "unknown"
        if needs.is_inner:
            identity = self._broker_of(request.headers)
            self._check_secured()
            return Grant(identity, generation)
        if not self.secured:
            if not needs.is_open:
                self._check_secured()
            if self._free.generation != generation:
                self._free = Grant(ANONYMOUS, generation)
            self._check_internal(ANONYMOUS, route, variables, peer)
            return self._free
        if needs.is_open:
            return Grant(ANONYMOUS, generation)
        resources = [(right, right.resource(variables)) for right in _with_instead(needs.rights)]
        shown = self._shown(request, peer)
        identity = await self._identify(shown, route)
        self._check_valid(identity)
        found = dict(resources)
        for right in needs.rights:
            asked = Decided(identity, right.operation, found[right], True, peer, call=route.name)
            if not self._may(identity, right, found):
                self._deny(asked, some=right.some)
            self._tell(asked)
        self._check_internal(identity, route, variables, peer)
        return Grant(identity, generation, shown)

    def holds(self, grant: Grant) -> bool:
        if grant.generation != self.generation or self._is_over(grant.identity):
            return False
        if grant.shown is None or self._authenticator is None:
            return True
        return self._authenticator.at_hand(grant.shown) == grant.identity

    def holds_for(self, grant: Grant, connection: HasCertificate) -> bool:
        if self.secured:
            certificate = None if grant.shown is None else grant.shown.certificate
            if connection.certificate != certificate:
                return False
        return self.holds(grant)

    def _broker_of(self, headers: Mapping[str, str]) -> Identity:
        if self._check_broker is None:
            raise Problem(403, "brokers-only", "this is a call between brokers")
        return self._check_broker(headers)

    def _check_secured(self) -> None:
        if self._required and not self.secured:
            raise Problem(
                503,
                "not-secured",
                "this broker serves secured clusters only (security.required), and this one is "
                "not: `octavo security secure --admin user:NAME`",
            )

    def _shown(self, request: web.BaseRequest, peer: str) -> Shown | None:
        headers = request.headers.getall("Authorization", ())
        if len(headers) > 1:
            raise Unauthenticated("there are several Authorization headers; there may be one")
        connection = request.protocol
        assert isinstance(connection, Connection)
        certificate = connection.certificate
        if not headers and certificate is None:
            return None
        return Shown(headers[0] if headers else None, certificate, peer)

    async def _identify(self, shown: Shown | None, route: Route) -> Identity:
        if shown is None:
            return ANONYMOUS
        if self._authenticator is None:
            raise Unauthenticated("this broker knows no way to check what was shown")
        found = self._authenticator.at_hand(shown)
        if found is not None:
            return found
        try:
            return await self._authenticator.identify(shown)
        except Unauthenticated as error:  # the authenticator has logged it
            self._count_denied("unauthenticated")
            if self.on_unauthenticated is not None:
                self.on_unauthenticated(shown.peer, route.name, str(error))
            raise

    def _may(self, identity: Identity, right: Right, found: Mapping[Right, Resource]) -> bool:
        resource = found[right]
        if right.some:
            allowed = self.may_some(identity, resource)
        else:
            allowed = self.may(identity, right.operation, resource)
        if allowed or right.instead is None:
            return allowed
        return self._may(identity, right.instead, found)

    def _check_internal(
        self, identity: Identity, route: Route, variables: Mapping[str, str], peer: str
    ) -> None:
        if variables.get("namespace") not in INTERNAL_NAMESPACES:
            return
        for right in route.needs.rights:
            if not right.some:
                resource = right.resource(variables)
                self._check_door(
                    Decided(identity, right.operation, resource, True, peer, call=route.name)
                )


def _with_instead(rights: Iterable[Right]) -> Iterator[Right]:
    for right in rights:
        yield right
        if right.instead is not None:
            yield from _with_instead((right.instead,))
