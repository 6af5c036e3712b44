"""Read and change policy and quotas, in the metadata store or through a broker.

A broker asks for a token with the right `admin` on `cluster`.
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
"""Other clients may change the policy too."""

BrokerUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="A broker's URL: use it, with your token, instead of the metadata store.",
        show_default=False,
    ),
]


class PolicyPlace(Protocol):
    def read(self) -> PolicyRecord: ...

    def change(self, make: Change) -> PolicyRecord:
        """Replace the policy by `make(policy)`; called again if another client has changed it
        meanwhile.
        """

    def groups(self, user: str) -> frozenset[str] | None:
        """Return the groups of a user's record; None if they cannot be read."""

    def quotas(self) -> QuotasRecord: ...

    def change_quota(self, subject: str, make: QuotaChange) -> QuotasRecord: ...


class InMetadata:
    def __init__(self, url: str) -> None:
        self._url = url

    def read(self) -> PolicyRecord:
        from octavo.security.policy import PolicyStore

        async def work(store: MetadataStore) -> PolicyRecord:
            return (await PolicyStore(store).read_record())[0]

        return with_store(self._url, work)

    def change(self, make: Change) -> PolicyRecord:
        from octavo.security.policy import PolicyStore

        async def work(store: MetadataStore) -> PolicyRecord:
            await PolicyStore(store).change(make)
            return (await PolicyStore(store).read_record())[0]

        return with_store(self._url, work)

    def groups(self, user: str) -> frozenset[str] | None:
        from octavo.security.identity.users import UserStore, groups_of

        async def work(store: MetadataStore) -> frozenset[str]:
            record = await UserStore(store).read(user)
            return frozenset() if record is None else groups_of(record.groups)

        return with_store(self._url, work)

    def quotas(self) -> QuotasRecord:
        from octavo.security.quotas import quota_store

        async def work(store: MetadataStore) -> QuotasRecord:
            return (await quota_store(store).read())[0]

        return with_store(self._url, work)

    def change_quota(self, subject: str, make: QuotaChange) -> QuotasRecord:  # noqa: ARG002
        from octavo.security.quotas import quota_store

        async def work(store: MetadataStore) -> QuotasRecord:
            return (await quota_store(store).change(make))[0]

        return with_store(self._url, work)


class AtBroker:
    def __init__(self, urls: list[str]) -> None:
        self._urls = urls

    def read(self) -> PolicyRecord:
        from octavo.cli.topic import ask

        async def work(client: AsyncClient) -> PolicyRecord:
            return record_of(await client.policy())

        return ask(self._urls, work)

    def change(self, make: Change) -> PolicyRecord:
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
        """Return None for an older broker, which does not know the call."""
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
        from octavo.cli.topic import ask

        async def work(client: AsyncClient) -> QuotasRecord:
            return quotas_record_of(await client.quotas())

        return ask(self._urls, work)

    def change_quota(self, subject: str, make: QuotaChange) -> QuotasRecord:
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
    from octavo.security.quotas import QuotaRecord, QuotasRecord

    return QuotasRecord(
        tuple(QuotaRecord(subject=subject, **said) for subject, said in found.items())
    )


def record_of(found: Mapping[str, Any]) -> PolicyRecord:
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
    """Add the options that name the policy's place to `command`, which gets it as `place`."""
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
            broker_urls(None, data)  # sets the environment for the cluster's CA and token
        return AtBroker(broker_urls(url, None))
    return InMetadata(metadata_url(metadata, data))
