"""`octavo acl`: who may do what: rules and roles, and why somebody may or may not.

One record in the metadata store, changed whole; brokers and bookies follow it within seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.options import AsJson, BadOption, Data, Metadata, metadata_url
from octavo.cli.output import emit_json, emit_table, out, say
from octavo.cli.store import with_store

if TYPE_CHECKING:
    from octavo.metadata.store import MetadataStore
    from octavo.security.policy import PolicyRecord
    from octavo.security.principal import Identity

app = typer.Typer(
    help="Allow and deny: list rules, explain decisions, give roles.", no_args_is_help=True
)
role_app = typer.Typer(help="Give and take roles; rules are made for a role.", no_args_is_help=True)
app.add_typer(role_app, name="role")

Principal = Annotated[
    str,
    typer.Argument(
        metavar="PRINCIPAL",
        help="user:NAME, group:NAME, role:NAME, user:* (all who are known) or * (anybody).",
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
        "bookies, or *. A name that ends in * stands for all that begin so.",
    ),
]
Member = Annotated[str, typer.Argument(metavar="PRINCIPAL", help="user:NAME or group:NAME.")]
Role = Annotated[str, typer.Argument(metavar="ROLE", help="role:NAME.")]


@app.command()
def allow(
    principal: Principal,
    operations: Operations,
    resource: Resource,
    metadata: Metadata = None,
    data: Data = None,
) -> None:
    """Add a rule that allows. What no rule allows is denied, once the cluster is secured.

    \b
    Examples:
      octavo acl allow user:shop produce topic:payments/orders --data ./octavo-data
      octavo acl allow group:billing consume 'topic:payments/*'
      octavo acl allow group:billing create,consume 'subscription:payments/*'
      octavo acl allow role:operators all '*' --metadata zk://127.0.0.1:2181/octavo
    """
    _add(principal, operations, resource, True, metadata, data)


@app.command()
def deny(
    principal: Principal,
    operations: Operations,
    resource: Resource,
    metadata: Metadata = None,
    data: Data = None,
) -> None:
    """Add a rule that denies: it wins over any that allow.

    \b
    Example:
      octavo acl deny user:intern all 'topic:payments/salaries*' --data ./octavo-data
    """
    _add(principal, operations, resource, False, metadata, data)


def _add(
    principal: str,
    operations: str,
    resource: str,
    allows: bool,
    metadata: str | None,
    data: Path | None,
) -> None:
    from octavo.security.policy import make_rule, with_rule

    rule = make_rule(principal, operations, resource, allow=allows)
    changed = _change(metadata, data, lambda record: with_rule(record, rule))
    say(str(rule))
    if not changed.secured:
        say("this cluster is not secured, so it counts from `octavo security secure` on")


@app.command()
def remove(
    principal: Principal,
    operations: Operations,
    resource: Resource,
    metadata: Metadata = None,
    data: Data = None,
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

    _change(metadata, data, without)
    if not removed[0]:
        raise BadOption(
            f"there is no rule of {principal} about {operations} and {resource}: "
            f"`octavo acl list --principal '{principal}'` shows those there are"
        )
    say(f"removed {removed[0]} rule{'s' if removed[0] > 1 else ''}")


@app.command("list")
def list_rules(
    principal: Annotated[
        str | None, typer.Option(metavar="PRINCIPAL", help="Only rules of this one.")
    ] = None,
    metadata: Metadata = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List the rules, in the order in which they were made.

    \b
    Examples:
      octavo acl list --data ./octavo-data
      octavo acl list --principal user:shop --json
    """
    record = _read(metadata, data)
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
        say("this cluster is not secured: anybody may do anything (octavo security secure)")


def _effect(allows: bool) -> str:
    return "allow" if allows else "deny"


@app.command()
def explain(
    principal: Principal,
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="One operation.")],
    resource: Annotated[
        str, typer.Argument(metavar="RESOURCE", help="One resource, without a * at its end.")
    ],
    groups: Annotated[
        list[str] | None,
        typer.Option(
            "--group", help="A group that their token names, beside those of their record."
        ),
    ] = None,
    metadata: Metadata = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Say whether somebody may do something, and why, or why not.

    \b
    Examples:
      octavo acl explain user:alice produce topic:payments/orders --data ./octavo-data
      octavo acl explain anonymous describe cluster --json
    """
    from octavo.security.policy import policy_of
    from octavo.security.rules import parse_operations, parse_resource

    wanted = parse_operations(operation)
    if len(wanted) != 1:
        raise BadOption(f"{operation!r}: explain is about one operation, such as produce")
    (one,) = wanted
    what = parse_resource(resource)

    async def work(store: MetadataStore) -> tuple[PolicyRecord, Identity]:
        from octavo.security.policy import PolicyStore

        record, _ = await PolicyStore(store).read_record()
        return record, await _identity(store, principal, groups or ())

    record, identity = with_store(metadata_url(metadata, data), work)
    policy = policy_of(record)
    decision = policy.decide(identity, one, what)
    lines = policy.explain(identity, one, what)
    if as_json:
        emit_json({"allowed": decision.allowed, "why": lines})
        return
    for line in lines:
        out.print(line, markup=False)


async def _identity(
    store: MetadataStore, principal: str, groups: list[str] | tuple[str, ...]
) -> Identity:
    """Somebody with the groups of their record, and others that a token may name."""
    from octavo.security.identity.users import UserStore, groups_of
    from octavo.security.principal import ANONYMOUS, Identity, checked_principal

    if principal == ANONYMOUS.name:
        return ANONYMOUS
    checked_principal(principal, "user", "group")
    found = groups_of(tuple(one.removeprefix("group:") for one in groups))
    if principal.startswith("user:"):
        record = await UserStore(store).read(principal.partition(":")[2])
        if record is not None:
            found |= groups_of(record.groups)
    return Identity(principal, found)


# ---- roles


@role_app.command("add")
def add_role(principal: Member, role: Role, metadata: Metadata = None, data: Data = None) -> None:
    """Give a user or group a role: all rules of the role are theirs.

    \b
    Example:
      octavo acl role add group:ops role:operators --data ./octavo-data
    """
    from octavo.security.policy import with_role

    _change(metadata, data, lambda record: with_role(record, principal, role))
    say(f"{principal} has {role}")


@role_app.command("remove")
def remove_role(
    principal: Member, role: Role, metadata: Metadata = None, data: Data = None
) -> None:
    """Take a role from a user or group.

    \b
    Example:
      octavo acl role remove group:ops role:operators --data ./octavo-data
    """
    from octavo.security.policy import without_role

    _change(metadata, data, lambda record: without_role(record, principal, role))
    say(f"{principal} has {role} no more")


@role_app.command("list")
def list_roles(metadata: Metadata = None, data: Data = None, as_json: AsJson = False) -> None:
    """List who has which role.

    \b
    Example:
      octavo acl role list --data ./octavo-data
    """
    roles = _read(metadata, data).roles
    if as_json:
        emit_json([{"principal": one.principal, "role": one.role} for one in roles])
        return
    emit_table(("principal", "role"), [(one.principal, one.role) for one in roles])


def _read(metadata: str | None, data: Path | None) -> PolicyRecord:
    from octavo.security.policy import PolicyStore

    async def work(store: MetadataStore) -> PolicyRecord:
        return (await PolicyStore(store).read_record())[0]

    return with_store(metadata_url(metadata, data), work)


def _change(
    metadata: str | None, data: Path | None, make: Callable[[PolicyRecord], PolicyRecord]
) -> PolicyRecord:
    from octavo.security.policy import PolicyStore

    async def work(store: MetadataStore) -> PolicyRecord:
        await PolicyStore(store).change(make)
        return (await PolicyStore(store).read_record())[0]

    return with_store(metadata_url(metadata, data), work)
