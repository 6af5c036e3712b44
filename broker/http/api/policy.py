"""The policy over HTTP, for administrators of a secured cluster without access to its metadata.

It is read and written as a whole, with `If-Match`, so that an administrator cannot overwrite unseen
changes. Only with access to the metadata can a cluster be secured or opened (`octavo security`):
otherwise the first caller of an open cluster could take it over. An administrator cannot lock
themselves out by mistake.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from octavo.broker.http.call import Call
from octavo.broker.http.problems import Problem
from octavo.broker.log.open_batches import Turns
from octavo.security.identity.users import UserStore, groups_of
from octavo.security.policy import (
    PolicyRecord,
    PolicyStore,
    make_rule,
    policy_in_turns,
    record_of,
    rule_record,
)
from octavo.security.principal import checked_principal
from octavo.security.rules import CLUSTER, Operation

RULES_MAX = 10_000
"""The limit of roles, too: every process has them all in memory, and a record ends at 1 MB."""
POLICY_BYTES_MAX = 2 * 1024 * 1024
"""Limit of the body; its record takes at most half of that."""


class PolicyRule(msgspec.Struct, forbid_unknown_fields=True):
    """What one principal may or must not do, in the words of `octavo acl`."""

    effect: Literal["allow", "deny"]
    principal: str
    operations: Annotated[str, Meta(description="with commas, or all")]
    resource: str


class PolicyRole(msgspec.Struct, forbid_unknown_fields=True):
    """A user or group has a role."""

    principal: str
    role: str


class PolicyBody(msgspec.Struct, forbid_unknown_fields=True):
    """All rules and roles."""

    schema_name: ClassVar = "Policy"

    rules: Annotated[list[PolicyRule], Meta(max_length=RULES_MAX)]
    roles: Annotated[list[PolicyRole], Meta(max_length=RULES_MAX)] = []


class PolicyShown(PolicyBody):
    """The same, as it stands; `ETag` has its version."""

    secured: bool = False


async def get_policy(call: Call) -> web.StreamResponse:
    """`GET /v1/policy`."""
    return _answer(call, *await PolicyStore(call.services.store).read_record())


class UserGroups(msgspec.Struct):
    """What the record of a user names; a token may name others."""

    groups: list[str]


async def get_user_groups(call: Call) -> web.StreamResponse:
    """`GET /v1/policy/groups/{user}`: of a user without a record there are none."""
    name = call.variables["user"]
    checked_principal(f"user:{name}", "user")
    record = await UserStore(call.services.store).read(name)
    found = frozenset() if record is None else groups_of(record.groups)
    return call.reply(UserGroups(sorted(found)))


async def put_policy(call: Call) -> web.StreamResponse:
    """`PUT /v1/policy`, in place of the policy with the version of `If-Match`."""
    body = await call.read_json(PolicyBody, bytes_max=POLICY_BYTES_MAX)
    policies = PolicyStore(call.services.store)
    seen, version = await policies.read_record()
    if not seen.secured:
        raise Problem(
            409,
            "not-secured",
            "this cluster is not secured, which its metadata alone can change: "
            "`octavo security secure --admin user:NAME --metadata URL`",
        )
    if call.headers.get("If-Match", "").strip() != _tag(version):
        raise Problem(
            412,
            "policy-changed",
            f"If-Match has to be {_tag(version)}, the ETag of the policy that is replaced: "
            "read it again, and decide anew",
            headers={"ETag": _tag(version)},
        )
    wanted = await _record(body, seen, call.services.broker.open_batches.turns)
    decision = (await policy_in_turns(wanted)).decide(call.identity, Operation.ADMIN, CLUSTER)
    if not decision.allowed:
        raise Problem(
            422,
            "shut-out",
            f"with it {call.identity.name} could change nothing any more: {decision.reason}",
        )

    def change(record: PolicyRecord) -> PolicyRecord:
        if record not in (seen, wanted):  # `wanted`: the answer was lost
            raise Problem(412, "policy-changed", "somebody was faster: read it again")
        return wanted

    await policies.change(change)
    return _answer(call, *await policies.read_record())


async def _record(body: PolicyBody, seen: PolicyRecord, turns: Turns) -> PolicyRecord:
    """Make the record. Raises `InvalidRule`, `InvalidPrincipal`."""
    rules = []
    for one in body.rules:
        await turns.take(1)
        rule = make_rule(one.principal, one.operations, one.resource, allow=one.effect == "allow")
        rules.append(rule_record(rule))
    return record_of(rules, [(one.principal, one.role) for one in body.roles], extra=seen.extra)


def _answer(call: Call, record: PolicyRecord, version: int) -> web.Response:
    shown = PolicyShown(
        rules=[
            PolicyRule(
                "allow" if one.allow else "deny", one.principal, one.operations, one.resource
            )
            for one in record.rules
        ],
        roles=[PolicyRole(one.principal, one.role) for one in record.roles],
        secured=record.secured,
    )
    return call.reply(shown, headers={"ETag": _tag(version)})


def _tag(version: int) -> str:
    return f'"{version}"'
