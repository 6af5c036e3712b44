"""Where commands find policy and quotas: in the metadata store, or at a broker, as who administers.

Whoever reaches the metadata may do everything, before a cluster is secured too. At a broker one
needs a right (`admin` on `cluster`) and shows a token, as for any other call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, cast

import typer

from octavo.cli.options import Data, Metadata, broker_urls, metadata_url
from octavo.cli.store import with_store

if TYPE_CHECKING:
    from octavo.client.client import AsyncClient
    from octavo.client.settings import Quota
    from octavo.metadata.store import MetadataStore
    from octavo.security.policy import PolicyRecord
    from octavo.security.quotas import QuotasRecord

    Change = Callable[[PolicyRecord], PolicyRecord]
    QuotaChange = Callable[[QuotasRecord], QuotasRecord]

ATTEMPTS = 20
"""So often others may be faster, each time another one."""

BrokerUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="A broker's URL: through it, as whom the token says, and not by the metadata store.",
        show_default=False,
    ),
]


class PolicyPlace(Protocol):
    """Reads and changes the policy, and the quotas."""

    def read(self) -> PolicyRecord:
        """As it stands."""

    def change(self, make: Change) -> PolicyRecord:
        """Set it to `make(what stands there)`; what stands there then."""

    def groups(self, user: str) -> frozenset[str] | None:
        """The groups of a user's record; None where they cannot be known."""

    def quotas(self) -> QuotasRecord:
        """All quotas, as they are set."""

    def change_quota(self, subject: str, make: QuotaChange) -> QuotasRecord:
        """Set them to `make(what is set)`, which is another one for `subject` alone."""


class InMetadata:
    """By the metadata store."""

    def __init__(self, url: str) -> None:
        self._url = url

    def read(self) -> PolicyRecord:
        """Raises `MetadataUnavailable`, `BadRecord`; so do the others."""
        from octavo.security.policy import PolicyStore

        async def work(store: MetadataStore) -> PolicyRecord:
            return (await PolicyStore(store).read_record())[0]

        return with_store(self._url, work)

    def change(self, make: Change) -> PolicyRecord:
        """Raises `RecordTooLong`, too."""
        from octavo.security.policy import PolicyStore

        async def work(store: MetadataStore) -> PolicyRecord:
            await PolicyStore(store).change(make)
            return (await PolicyStore(store).read_record())[0]

        return with_store(self._url, work)

    def groups(self, user: str) -> frozenset[str] | None:
        """Of the record, if there is one."""
        from octavo.security.identity.users import UserStore, groups_of

        async def work(store: MetadataStore) -> frozenset[str]:
            record = await UserStore(store).read(user)
            return frozenset() if record is None else groups_of(record.groups)

        return with_store(self._url, work)

    def quotas(self) -> QuotasRecord:
        """Of the record."""
        from octavo.security.quotas import quota_store

        async def work(store: MetadataStore) -> QuotasRecord:
            return (await quota_store(store).read())[0]

        return with_store(self._url, work)

    def change_quota(self, subject: str, make: QuotaChange) -> QuotasRecord:  # noqa: ARG002
        """`make` may be called again, when somebody was faster."""
        from octavo.security.quotas import quota_store

        async def work(store: MetadataStore) -> QuotasRecord:
            return (await quota_store(store).change(make))[0]

        return with_store(self._url, work)


class AtBroker:
    """By a broker's `/v1/policy` and `/v1/quotas`."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls

    def read(self) -> PolicyRecord:
        """Raises `ApiError`, `Unreachable`; so does `change`."""
        from octavo.cli.topic import ask

        async def work(client: AsyncClient) -> PolicyRecord:
            return record_of(await client.policy())

        return ask(self._urls, work)

    def change(self, make: Change) -> PolicyRecord:
        """`make` may be called again, when somebody was faster."""
        from octavo.cli.topic import ask
        from octavo.client.errors import ApiError

        async def work(client: AsyncClient) -> PolicyRecord:
            attempt = 0
            while True:
                found = await client.policy()
                before = record_of(found)
                made = make(before)
                if made == before:
                    return before
                try:
                    changed = await client.set_policy(
                        *_body_of(made), version=str(found["version"])
                    )
                except ApiError as error:
                    attempt += 1
                    if error.code != "policy-changed" or attempt == ATTEMPTS:
                        raise
                else:
                    return record_of(changed)

        return ask(self._urls, work)

    def groups(self, user: str) -> frozenset[str] | None:
        """A broker of before cannot tell."""
        from octavo.cli.topic import ask
        from octavo.client.errors import ApiError

        async def work(client: AsyncClient) -> frozenset[str] | None:
            try:
                return frozenset(await client.user_groups(user))
            except ApiError as error:
                if error.code != "no-such-call":
                    raise
                return None

        return ask(self._urls, work)

    def quotas(self) -> QuotasRecord:
        """Raises `ApiError`, `Unreachable`; so does `change_quota`."""
        from octavo.cli.topic import ask

        async def work(client: AsyncClient) -> QuotasRecord:
            return quotas_record_of(await client.quotas())

        return ask(self._urls, work)

    def change_quota(self, subject: str, make: QuotaChange) -> QuotasRecord:
        """Who changes the same subject at the same moment and is later has the last word."""
        from octavo.cli.topic import ask

        async def work(client: AsyncClient) -> QuotasRecord:
            made = make(quotas_record_of(await client.quotas()))
            wanted = made.of(subject)
            if wanted is None:
                await client.delete_quota(subject)
            else:
                await client.set_quota(subject, **cast("Quota", wanted.said))
            return made

        return ask(self._urls, work)


def quotas_record_of(found: Mapping[str, Mapping[str, Any]]) -> QuotasRecord:
    """What a broker says of the quotas."""
    from octavo.security.quotas import QuotaRecord, QuotasRecord

    return QuotasRecord(
        tuple(QuotaRecord(subject=subject, **said) for subject, said in found.items())
    )


def record_of(found: Mapping[str, Any]) -> PolicyRecord:
    """What a broker says of the policy."""
    from octavo.security.policy import PolicyRecord, RoleRecord, RuleRecord

    return PolicyRecord(
        bool(found["secured"]),
        tuple(
            RuleRecord(
                one["principal"], one["effect"] == "allow", one["operations"], one["resource"]
            )
            for one in found["rules"]
        ),
        tuple(RoleRecord(one["principal"], one["role"]) for one in found["roles"]),
    )


def _body_of(record: PolicyRecord) -> tuple[list[Any], list[Any]]:
    return (
        [
            {
                "effect": "allow" if one.allow else "deny",
                "principal": one.principal,
                "operations": one.operations,
                "resource": one.resource,
            }
            for one in record.rules
        ],
        [{"principal": one.principal, "role": one.role} for one in record.roles],
    )


def with_place(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with the options that say where the policy is; it gets it as `place`."""
    signature = inspect.signature(command, eval_str=True)
    kinds = {"url": BrokerUrl, "metadata": Metadata, "data": Data}
    own = [one for one in signature.parameters.values() if one.name != "place"]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        where = {name: given.pop(name) for name in kinds}
        command(place=_place(**where), **given)

    parameters = [
        *own,
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in kinds.items()
        ),
    ]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _place(url: str | None, metadata: str | None, data: Path | None) -> PolicyPlace:
    if url:
        if data is not None:
            broker_urls(None, data)  # whose CA and token are shown
        return AtBroker(broker_urls(url, None))
    return InMetadata(metadata_url(metadata, data))
