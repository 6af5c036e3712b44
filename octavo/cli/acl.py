"""`octavo acl`: rules and roles, in the metadata store or through a broker (`--url`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.options import AsJson, BadOption
from octavo.cli.output import emit_json, emit_table, out, say
from octavo.cli.policy_place import PolicyPlace, with_place
from octavo.cli.tree import Group

if TYPE_CHECKING:
    from octavo.security.policy import PolicyRecord
    from octavo.security.principal import Identity

app = typer.Typer(
    help="Allow and deny: list rules, explain decisions, give roles.", no_args_is_help=True
)
role_app = typer.Typer(help="Give and take roles.", no_args_is_help=True)
app.add_typer(role_app, name="role", cls=Group)

Principal = Annotated[
    str,
    typer.Argument(
        metavar="PRINCIPAL",
        help="user:NAME, group:NAME, role:NAME, user:* (all known users) or * (every caller).",
    ),
]
Operations = Annotated[
    str,
    typer.Argument(
        metavar="OPERATIONS",
        help="produce, consume, describe, create, delete, alter, admin, read, write; several with "
        "commas; or all.",
    ),
]
Resource = Annotated[
    str,
    typer.Argument(
        metavar="RESOURCE",
        help="topic:NS/TOPIC, subscription:NS/TOPIC/SUB, namespace:NS, transaction:ID, cluster, "
        "bookies, or *. A name that ends in * is a prefix.",
    ),
]
Member = Annotated[str, typer.Argument(metavar="PRINCIPAL", help="user:NAME or group:NAME.")]
Role = Annotated[str, typer.Argument(metavar="ROLE", help="role:NAME.")]


@app.command()
@with_place
def allow(
    place: PolicyPlace, principal: Principal, operations: Operations, resource: Resource
) -> None:
    """Add a rule that allows. A secured cluster denies everything that no rule allows.

    \b
    Example:
      octavo acl allow user:shop produce topic:payments/orders --data ./octavo-data
    """
    _add(place, principal, operations, resource, allows=True)


@app.command()
@with_place
def deny(
    place: PolicyPlace, principal: Principal, operations: Operations, resource: Resource
) -> None:
    """Add a rule that denies. It wins over all rules that allow.

    \b
    Example:
      octavo acl deny user:intern all 'topic:payments/salaries*' --data ./octavo-data
    """
    _add(place, principal, operations, resource, allows=False)


def _add(
    place: PolicyPlace, principal: str, operations: str, resource: str, *, allows: bool
) -> None:
    from octavo.security.policy import make_rule, with_rule

    rule = make_rule(principal, operations, resource, allow=allows)
    changed = place.change(lambda record: with_rule(record, rule))
    say(str(rule))
    if not changed.secured:
        say("this cluster is not secured: rules take effect after `octavo security secure`")


@app.command()
@with_place
def remove(
    place: PolicyPlace, principal: Principal, operations: Operations, resource: Resource
) -> None:
    """Remove a rule, as `octavo acl list` shows it, whether it allows or denies.

    \b
    Example:
      octavo acl remove user:shop produce topic:payments/orders --data ./octavo-data
    """
    from octavo.security.policy import make_rule, without_rule

    rules = [make_rule(principal, operations, resource, allow=one) for one in (True, False)]
    removed: list[int] = []

    def without(record: PolicyRecord) -> PolicyRecord:
        made = record
        for rule in rules:
            made = without_rule(made, rule)
        removed[:] = [len(record.rules) - len(made.rules)]
        return made

    place.change(without)
    if not removed[0]:
        raise BadOption(
            f"there is no rule of {principal} about {operations} and {resource}: "
            f"`octavo acl list --principal '{principal}'` shows the rules of {principal}"
        )
    say(f"removed {removed[0]} rule{'s' if removed[0] > 1 else ''}")


@app.command("list")
@with_place
def list_rules(
    place: PolicyPlace,
    principal: Annotated[
        str | None, typer.Option(metavar="PRINCIPAL", help="Only rules of this principal.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the rules, in the order in which they were made.

    \b
    Example:
      octavo acl list --data ./octavo-data
    """
    record = place.read()
    rules = [one for one in record.rules if principal in (None, one.principal)]
    if as_json:
        emit_json(
            [
                {
                    "effect": _effect(one.allow),
                    "principal": one.principal,
                    "operations": one.operations.split(","),
                    "resource": one.resource,
                }
                for one in rules
            ]
        )
        return
    emit_table(
        ("effect", "principal", "operations", "resource"),
        [(_effect(one.allow), one.principal, one.operations, one.resource) for one in rules],
    )
    if not record.secured:
        say("this cluster is not secured: every caller may do anything (octavo security secure)")


def _effect(allows: bool) -> str:
    return "allow" if allows else "deny"


@app.command()
@with_place
def explain(
    place: PolicyPlace,
    principal: Principal,
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="One operation.")],
    resource: Annotated[
        str, typer.Argument(metavar="RESOURCE", help="One resource, without a * at its end.")
    ],
    groups: Annotated[
        list[str] | None,
        typer.Option(
            "--group", help="A group that the token names, besides the groups of the user's record."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a principal may do something, and why, or why not.

    \b
    Example:
      octavo acl explain user:alice produce topic:payments/orders --data ./octavo-data
    """
    from octavo.security.policy import policy_of
    from octavo.security.rules import parse_operations, parse_resource

    wanted = parse_operations(operation)
    if len(wanted) != 1:
        raise BadOption(f"{operation!r}: explain takes a single operation, such as produce")
    (one,) = wanted
    what = parse_resource(resource)

    record = place.read()
    identity, is_whole = _identity(place, principal, groups or ())
    policy = policy_of(record)
    decision = policy.decide(identity, one, what)
    lines = policy.explain(identity, one, what)
    if not is_whole:
        lines.append(
            f"groups of the record of {principal} are not known through a broker: name them with "
            "--group"
        )
    if as_json:
        emit_json({"allowed": decision.allowed, "why": lines})
        return
    for line in lines:
        out.print(line, markup=False)


def _identity(
    place: PolicyPlace, principal: str, groups: list[str] | tuple[str, ...]
) -> tuple[Identity, bool]:
    from octavo.security.identity.users import groups_of
    from octavo.security.principal import ANONYMOUS, Identity, checked_principal

    if principal == ANONYMOUS.name:
        return ANONYMOUS, True
    checked_principal(principal, "user", "group")
    found = groups_of(tuple(one.removeprefix("group:") for one in groups))
    if not principal.startswith("user:"):
        return Identity(principal, found), True
    of_record = place.groups(principal.partition(":")[2])
    return Identity(principal, found | (of_record or frozenset())), of_record is not None


@role_app.command("add")
@with_place
def add_role(place: PolicyPlace, principal: Member, role: Role) -> None:
    """Give a user or group a role: all rules of the role apply to them.

    \b
    Example:
      octavo acl role add group:ops role:operators --data ./octavo-data
    """
    from octavo.security.policy import with_role

    place.change(lambda record: with_role(record, principal, role))
    say(f"{principal} has {role}")


@role_app.command("remove")
@with_place
def remove_role(place: PolicyPlace, principal: Member, role: Role) -> None:
    """Take a role from a user or group.

    \b
    Example:
      octavo acl role remove group:ops role:operators --data ./octavo-data
    """
    from octavo.security.policy import without_role

    place.change(lambda record: without_role(record, principal, role))
    say(f"{principal} no longer has {role}")


@role_app.command("list")
@with_place
def list_roles(place: PolicyPlace, as_json: AsJson = False) -> None:
    """List the roles of users and groups.

    \b
    Example:
      octavo acl role list --data ./octavo-data
    """
    roles = place.read().roles
    if as_json:
        emit_json([{"principal": one.principal, "role": one.role} for one in roles])
        return
    emit_table(("principal", "role"), [(one.principal, one.role) for one in roles])
