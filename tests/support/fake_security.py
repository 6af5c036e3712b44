"""Callers and permissions for tests, without a store. The token `Bearer alice` is user:alice;
`Bearer alice+staff` is also in group:staff, until `withdrawn`."""

from __future__ import annotations

from octavo.security.authority import Authority
from octavo.security.policy import make_rule
from octavo.security.principal import ANONYMOUS, Identity, Shown, Unauthenticated
from octavo.security.rules import OPEN, Policy


class FakeAuthenticator:
    def __init__(self) -> None:
        self.withdrawn: set[str] = set()
        self.verified: dict[Shown, Identity] = {}
        self.certificates: dict[bytes, str] = {}
        self.expires_at_s: float | None = None
        self.asked = 0

    async def identify(self, shown: Shown) -> Identity:
        self.asked += 1
        source, end_s = "token", self.expires_at_s
        if shown.authorization is not None:
            kind, _, token = shown.authorization.partition(" ")
            if kind != "Bearer" or not token.isascii() or token.startswith("bad"):
                raise Unauthenticated("the token is not one of ours")
            name, *groups = token.split("+")
        elif shown.certificate is not None:
            name, groups, source = self.certificates[shown.certificate], [], "certificate"
        else:
            return ANONYMOUS
        if name in self.withdrawn:
            raise Unauthenticated(f"user {name} is disabled")
        found = Identity(f"user:{name}", frozenset(f"group:{one}" for one in groups), source, end_s)
        self.verified[shown] = found
        return found

    def at_hand(self, shown: Shown) -> Identity | None:
        found = self.verified.get(shown)
        if found is None or found.name.removeprefix("user:") in self.withdrawn:
            return None
        return found


class FakeAuthority(Authority):
    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.set(OPEN)

    def set(self, policy: Policy) -> None:
        self._take(policy, self._version + 1)

    def secure(self, *rules: str) -> None:
        """Set the rules, each as `allow user:alice produce topic:a/*`."""
        made = []
        for rule in rules:
            effect, who, what, which = rule.split(" ")
            made.append(make_rule(who, what, which, allow=effect == "allow"))
        self.set(Policy(made, secured=True))


def as_user(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}
