"""Collects and runs the attempts against a secured cluster."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from tests.attack import campaign
from tests.attack.canary import SLOWEST_SHARE
from tests.attack.secured import (  # noqa: F401  (they enter themselves)
    attempts_doors,
    attempts_ports,
    attempts_quotas,
    attempts_users,
)
from tests.attack.secured.attempts_users import AUDIENCE, ISSUER, ISSUER_PEM
from tests.attack.secured.world import SEALED, SECURED, SecuredWorld
from tests.attack.world import Attempt
from tests.support.keys import add_key, key_of

SHORT_SHARE = 0.1


def chosen(only: str = "", *, short: bool = False, seed: int = 1) -> list[Attempt]:
    """Return the attempts whose names contain `only`; in the short form a tenth of each kind."""
    found = [one for one in SECURED.values() if only in one.name and not (short and one.long)]
    if short:
        rng = random.Random(seed)
        found = [one for one in found if ":" not in one.name or rng.random() < SHORT_SHARE]
    return found


def run(
    folder: Path,
    attempts: list[Attempt],
    tell: Callable[[campaign.Outcome], None],
    *,
    share: float = SLOWEST_SHARE,
) -> list[campaign.Outcome]:
    keys = folder.with_name(f"{folder.name}-issuer.pem")
    keys.write_bytes(ISSUER_PEM)
    security = {"jwt_keys_file": keys, "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE}
    sets = [f"--set=security.{name}={value}" for name, value in security.items()]
    kept = folder.with_name(f"{folder.name}-keys")
    add_key(kept, key_of(1, SEALED))
    sets.append(f"--set=keys.file={kept}")
    return campaign.run(
        folder,
        attempts,
        tell,
        share=share,
        options=("--secure", *sets),
        make_world=SecuredWorld,
    )
