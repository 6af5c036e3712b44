"""`octavo certs`: a CA for development and certificates of nodes, from one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octavo.cli.options import AsJson
from octavo.cli.output import emit_json, out

DAYS = 365


def certs(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAMES]",
            help="Host names and IP addresses by which the node is reached. "
            "Default: localhost, 127.0.0.1, ::1 and this machine's name.",
            show_default=False,
        ),
    ] = None,
    folder: Annotated[
        Path, typer.Option("--dir", help="Folder of the CA and all it signs.")
    ] = Path("octavo-certs"),
    name: Annotated[
        str,
        typer.Option(
            help="Name of the files, and the certificate's subject: a name for each node."
        ),
    ] = "node",
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long it is valid.")] = DAYS,
    revoke: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Instead of making a certificate, add this certificate to the CA's revocation "
            "list (ca.crl), and renew the list. May be repeated.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a certificate for development, and a CA at the first call.

    \b
    Example:
      octavo certs                                     (octavo-certs/ca.pem, node.pem, node.key)
    """
    from octavo.tls.authority import Authority, own_names

    if revoke:
        _revoke(folder, names or [], revoke, days, as_json=as_json)
        return
    authority, is_new = Authority.opened(folder)
    made = authority.issue(name, names or own_names(), days=days)
    if as_json:
        emit_json(
            {
                "ca": str(authority.file),
                "ca_is_new": is_new,
                "certificate": str(made.certificate),
                "key": str(made.key),
                "names": list(made.names),
                "ends_at": made.ends_at.isoformat(),
            }
        )
        return
    out.print(
        f"ca           {authority.file}{' (new)' if is_new else ''}\n"
        f"certificate  {made.certificate}, for {', '.join(made.names)}, "
        f"until {made.ends_at:%Y-%m-%d}\n"
        f"key          {made.key}\n\n"
        f"a node    OCTAVO_TLS_CERTIFICATE={made.certificate} OCTAVO_TLS_KEY={made.key} "
        f"OCTAVO_TLS_CA={authority.file} octavo broker …\n"
        f"a client  curl --cacert {authority.file} https://…",
        markup=False,
    )


def _revoke(
    folder: Path, names: list[str], revoked: list[str], days: int, *, as_json: bool
) -> None:
    from octavo.tls.authority import Authority
    from octavo.tls.settings import TlsError

    if names:
        raise TlsError(
            f"{names[0]!r}: --revoke makes no certificate; leave out the names of a node"
        )
    if not (folder / "ca.pem").exists():
        raise TlsError(f"{folder} holds no CA: name the CA's folder with --dir")
    authority, _ = Authority.opened(folder)
    count = authority.revoke(revoked, days=days)
    if as_json:
        emit_json({"crl": str(authority.revoked_file), "revoked": count, "days": days})
        return
    out.print(
        f"list      {authority.revoked_file}, {count} revoked; renew it within {days} days\n"
        f"a node    OCTAVO_TLS_CRL={authority.revoked_file}",
        markup=False,
    )
