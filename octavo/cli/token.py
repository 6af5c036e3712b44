"""`octavo token`: the cluster's own tokens."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.options import AsJson, BadOption, Data, Metadata, metadata_url
from octavo.cli.output import emit_fields, emit_json, out, say
from octavo.cli.secrets import Groups, group_names, read_secret
from octavo.cli.store import checked_store_url, with_store

if TYPE_CHECKING:
    from octavo.metadata.store import MetadataStore
    from octavo.security.identity.token_form import Token

app = typer.Typer(help="Make, inspect and revoke tokens.", no_args_is_help=True)

Principal = Annotated[
    str,
    typer.Option("--principal", metavar="user:NAME", help="The tokens' user.", show_default=False),
]
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@app.command()
def create(
    principal: Principal,
    ttl: Annotated[str, typer.Option(help="How long it is valid: 90s, 15m, 12h, 30d.")] = "30d",
    groups: Groups = None,
    metadata: Metadata = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Make a token for the header `Authorization: Bearer TOKEN`. The user need not exist.

    \b
    Example:
      octavo token create --principal user:alice --data ./octavo-data > alice.token
    """
    from octavo.security.principal import checked_principal

    name = checked_principal(principal, "user").partition(":")[2]
    ttl_s, names = ttl_seconds(ttl), group_names(groups)

    async def work(store: MetadataStore) -> str:
        from octavo.metadata.secret import cluster_secret
        from octavo.security.identity.tokens import TOKEN_KEY_USE, issue
        from octavo.security.identity.users import NOBODY, UserStore

        record = await UserStore(store).read(name) or NOBODY
        if record.disabled:
            raise BadOption(f"{name} is disabled: `octavo user enable {name}` lets them in again")
        key = (await cluster_secret(store)).key(TOKEN_KEY_USE)
        return issue(
            key,
            principal,
            ttl_s=ttl_s,
            now_s=max(time.time(), record.not_before_s),  # after the last revocation
            groups=[f"group:{one}" for one in names],
        )

    token = with_store(metadata_url(metadata, data), work)
    ends_at = datetime.fromtimestamp(time.time() + ttl_s, UTC)
    if as_json:
        emit_json({"token": token, "principal": principal, "ends_at": ends_at.isoformat()})
        return
    out.print(token, markup=False)
    say(f"{principal}, until {ends_at:%Y-%m-%d %H:%M} UTC")


@app.command()
def inspect(
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Holds the token. Default: stdin.")
    ] = None,
    metadata: Metadata = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Show a token's claims and, if a cluster is named, whether the cluster accepts it.

    \b
    Example:
      octavo token inspect < alice.token
    """
    from octavo.security.identity.token_form import read_token

    url = checked_store_url(metadata, data) if metadata or data else None
    token = read_token(read_secret(file, "the token"))
    judged = url and with_store(url, lambda store: _judged(store, token))
    if as_json:
        emit_json(
            {"alg": token.algorithm, "kid": token.kid, "claims": token.claims, "verdict": judged}
        )
        return
    fields: dict[str, object] = {"alg": token.algorithm, "kid": token.kid}
    fields |= {name: _shown(name, value) for name, value in token.claims.items()}
    fields["verdict"] = judged or "not checked: name a cluster with --data or --metadata"
    emit_fields(fields)


@app.command()
def revoke(
    principal: Principal, metadata: Metadata = None, data: Data = None, as_json: AsJson = False
) -> None:
    """Revoke all tokens that were issued to a user until now. New tokens are valid.

    \b
    Example:
      octavo token revoke --principal user:alice --data ./octavo-data
    """
    from octavo.security.identity.users import UserStore
    from octavo.security.principal import checked_principal

    name = checked_principal(principal, "user").partition(":")[2]
    with_store(
        metadata_url(metadata, data),
        lambda store: UserStore(store).revoke_tokens(name, time.time()),
    )
    if as_json:
        emit_json({"principal": principal, "done": "revoked"})
    else:
        say(f"tokens of {principal} issued until now are revoked")


def ttl_seconds(text: str) -> int:
    from octavo.security.identity.tokens import TTL_S_MAX

    found = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", text)
    if found is None or not (ttl_s := int(found[1]) * _UNITS[found[2]]) <= TTL_S_MAX:
        raise BadOption(
            f"--ttl {text!r}: write a number with s, m, h or d, up to {TTL_S_MAX // 86_400}d"
        )
    return ttl_s


async def _judged(store: MetadataStore, token: Token) -> str:
    from octavo.metadata.secret import cluster_secret
    from octavo.security.identity import tokens
    from octavo.security.identity.users import NOBODY, UserStore
    from octavo.security.principal import Unauthenticated

    secret = await cluster_secret(store)
    try:
        found = tokens.verify(secret.key(tokens.TOKEN_KEY_USE), token, now_s=time.time())
    except Unauthenticated as error:
        return f"refused: {error}"
    record = await UserStore(store).read(found.name) or NOBODY
    if record.disabled:
        return "refused: the user is disabled"
    if (found.issued_at_s or 0) < record.not_before_s:
        return "refused: the token was revoked"
    return "good"


def _shown(name: str, value: Any) -> str:
    if name in ("exp", "iat", "nbf") and isinstance(value, int | float) and value < 2**40:
        return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S} UTC"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
