"""Every route says what it is charged to, and the audit hears of it."""

from __future__ import annotations

import pytest

from octavo.broker.http.charges import Charge
from octavo.broker.http.former_names import FormerNames
from octavo.broker.http.router import Route
from octavo.broker.http.routes import ROUTES
from octavo.security.rules import Operation

ALL_ROUTES = FormerNames().routes(ROUTES)


def test_a_new_call_cannot_forget_its_charge() -> None:
    with pytest.raises(TypeError, match="charge"):
        Route(  # type: ignore[call-arg]
            method="GET", path="/", handler=ROUTES[0].handler, name="x", tag="x", summary="x",
            needs=ROUTES[0].needs,
        )  # fmt: skip


@pytest.mark.parametrize("route", ALL_ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_the_charge_goes_with_what_the_call_does(route: Route) -> None:
    charge = route.charge
    assert (charge is Charge.FREE) == (route.needs.is_inner or route.tag == "health")
    takes_bytes = any(
        content.media_type in ("text/plain", "application/octet-stream") for content in route.body
    )
    if takes_bytes and not route.needs.is_inner:
        assert charge in (Charge.PUBLISHES, Charge.UPLOADS), "its body becomes messages"
    operations = {right.operation for right in route.needs.rights}
    if charge in (Charge.PUBLISHES, Charge.UPLOADS):
        assert operations & {Operation.PRODUCE, Operation.CREATE}
    if charge in (Charge.TAKES, Charge.STREAMS):
        assert operations & {Operation.CONSUME, Operation.ADMIN}


@pytest.mark.parametrize("route", ALL_ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_the_audit_hears_of_it_by_a_right_or_it_is_nobodys_deed(route: Route) -> None:
    assert route.needs.rights or route.needs.is_inner or route.needs.is_open
