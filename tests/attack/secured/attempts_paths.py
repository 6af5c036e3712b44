"""Names and paths that look like a permitted object and mean a forbidden one."""

from __future__ import annotations

from tests.attack.secured.attempts import bearer, request, secured
from tests.attack.secured.world import STRANGER, SecuredWorld

TENANT = "/v1/topics/tenant"
GET_OF_SECRET = "messages?from=earliest"
PATHS = {
    "dots": f"{TENANT}/../vault/secret/{GET_OF_SECRET}",
    "dots, encoded": f"{TENANT}/%2e%2e/vault/secret/{GET_OF_SECRET}",
    "dots, half encoded": f"{TENANT}/.%2e/vault/secret/{GET_OF_SECRET}",
    "dots, encoded twice": f"{TENANT}/%252e%252e/vault/secret/{GET_OF_SECRET}",
    "dots as long as UTF-8 can make them": f"{TENANT}/%c0%ae%c0%ae/vault/secret/{GET_OF_SECRET}",
    "dots behind a name": f"{TENANT}/own/../../vault/secret/{GET_OF_SECRET}",
    "dots and a semicolon": f"{TENANT}/..;/vault/secret/{GET_OF_SECRET}",
    "a backslash": f"{TENANT}\\..\\vault\\secret\\{GET_OF_SECRET}",
    "a backslash, encoded": f"{TENANT}/..%5cvault%5csecret/{GET_OF_SECRET}",
    "a slash, encoded": f"{TENANT}/..%2fvault%2fsecret/{GET_OF_SECRET}",
    "a slash in the namespace": f"/v1/topics/tenant%2f..%2fvault/secret/{GET_OF_SECRET}",
    "a slash for one that is there": f"/v1/topics/vault%2fsecret/{GET_OF_SECRET}",
    "a slash as long as UTF-8 can make it": f"/v1/topics/vault%c0%afsecret/{GET_OF_SECRET}",
    "two slashes": f"/v1/topics//vault/secret/{GET_OF_SECRET}",
    "two slashes before": f"//v1/topics/vault/secret/{GET_OF_SECRET}",
    "two slashes behind the namespace": f"/v1/topics/vault//secret/{GET_OF_SECRET}",
    "a host before": f"//tenant/v1/topics/vault/secret/{GET_OF_SECRET}",
    "a dot for a step": f"/v1/topics/./vault/secret/{GET_OF_SECRET}",
    "a dot at the end of the topic": f"/v1/topics/vault/secret./{GET_OF_SECRET}",
    "a dot at the end of the namespace": f"/v1/topics/vault./secret/{GET_OF_SECRET}",
    "a slash at the end": "/v1/topics/vault/secret/messages/?from=earliest",
    "a space at the end": f"/v1/topics/vault/secret%20/{GET_OF_SECRET}",
    "a space before": f"/v1/topics/%20vault/secret/{GET_OF_SECRET}",
    "a plus for a space": f"/v1/topics/vault/secret+/{GET_OF_SECRET}",
    "a tab": f"/v1/topics/vault/secret%09/{GET_OF_SECRET}",
    "a zero byte at the end": f"/v1/topics/vault/secret%00/{GET_OF_SECRET}",
    "a zero byte before the rest": f"{TENANT}/own%00/../../vault/secret/{GET_OF_SECRET}",
    "a line's end": f"/v1/topics/vault/secret%0a/{GET_OF_SECRET}",
    "a line's end and a header": f"/v1/topics/vault/secret%0d%0aX:%20y/{GET_OF_SECRET}",
    "capital letters": f"/v1/topics/VAULT/SECRET/{GET_OF_SECRET}",
    "a capital letter": f"/v1/topics/Vault/secret/{GET_OF_SECRET}",
    "capital letters of the call": f"/V1/TOPICS/vault/secret/{GET_OF_SECRET}",
    "wide letters": f"/v1/topics/%EF%BD%96ault/secret/{GET_OF_SECRET}",
    "a letter that looks alike": f"/v1/topics/v%D0%B0ult/secret/{GET_OF_SECRET}",
    "a letter with a long s": f"/v1/topics/vault/%C5%BFecret/{GET_OF_SECRET}",
    "an accent of its own": f"/v1/topics/vault/se%CC%81cret/{GET_OF_SECRET}",
    "a letter of no width": f"/v1/topics/vault%E2%80%8B/secret/{GET_OF_SECRET}",
    "right to left": f"/v1/topics/%E2%80%AEtluav/secret/{GET_OF_SECRET}",
    "a semicolon": f"/v1/topics/vault/secret;a=b/{GET_OF_SECRET}",
    "a colon": f"/v1/topics/vault:secret/{GET_OF_SECRET}",
    "a star": f"/v1/topics/vault/*/{GET_OF_SECRET}",
    "a star for both": f"/v1/topics/*/*/{GET_OF_SECRET}",
    "a question mark, encoded": f"/v1/topics/vault/secret%3f/{GET_OF_SECRET}",
    "a number sign": f"{TENANT}/own#/../../vault/secret/{GET_OF_SECRET}",
    "a percent sign alone": f"/v1/topics/vault/secret%/{GET_OF_SECRET}",
    "a percent sign and no digits": f"/v1/topics/vault/secret%zz/{GET_OF_SECRET}",
    "percent u": f"/v1/topics/vault/%u0073ecret/{GET_OF_SECRET}",
    "a whole address": f"https://localhost/v1/topics/vault/secret/{GET_OF_SECRET}",
    "another's whole address": f"http://evil.example/v1/topics/vault/secret/{GET_OF_SECRET}",
    "a granted prefix, gone on": f"{TENANT}/../vaults/../vault/secret/{GET_OF_SECRET}",
    "a name as long as may be": f"{TENANT}/{'a' * 249}/../../vault/secret/{GET_OF_SECRET}",
    "a name longer than the bound": f"/v1/topics/{'tenant' * 100}/secret/{GET_OF_SECRET}",
    "a path longer than any": f"/v1/topics/vault/secret/{'./' * 3_000}{GET_OF_SECRET}",
    "a parameter that names another": "/v1/topics/tenant/own/messages?topic=vault/secret&from=0",
    "a parameter twice": "/v1/topics/tenant/own/messages?from=0&from=../../vault/secret",
    "a partition of another": f"{TENANT}/own/partitions/..%2f..%2fvault%2fsecret/{GET_OF_SECRET}",
    "the topic's ledger": "/v1/ledgers/{ledger}/entries/0",
    "the topic's ledger, by another number": "/v1/ledgers/%30{ledger}/entries/0",
    "the bulk load's prefix, gone on": "/v1/bulk-loads/mallory-%2f..%2fnight",
    "the call's former name": "/v1/transactions/night",
}  # fmt: skip


def enter_path(name: str, path: str) -> None:
    """Try it as a stranger and as mallory, whose rules have prefixes."""

    async def run(world: SecuredWorld) -> None:
        there = path.replace("{ledger}", str(world.ledger))
        for who in (STRANGER, "mallory"):
            lines = [] if who is STRANGER else [bearer(world.tokens[who])]
            for broker in range(len(world.brokers)):
                for method in ("GET", "DELETE", "PUT", "POST"):
                    body = b"" if method in ("GET", "DELETE") else b"{}"
                    data = request(method, there, [b"Content-Type: application/json", *lines], body)
                    said = await world.refused(
                        data, (0, 400, 401, 403, 404, 405, 414, 421, 422, 431), broker=broker
                    )
                    assert who is not STRANGER or said.status != 403, said

    secured(f"path: {name}")(run)


for one, where in PATHS.items():
    enter_path(one, where)


@secured("names that a rule's prefix must not reach")
async def beside_the_prefix(world: SecuredWorld) -> None:
    """`topic:tenant/*` does not match `tenant2/…`, nor `vaults/*` `vault/…`."""
    for path in ("/v1/topics/tenant2/own", "/v1/topics/tenan/own", "/v1/topics/vault/s",
                 "/v1/topics/vault2/secret", "/v1/namespaces/tenant2"):  # fmt: skip
        for method in ("GET", "PUT", "DELETE"):
            said = await world.ask(method, path, who="mallory")
            assert said.status == 403, (method, path, said)


@secured("topics that their maker would take for others'")
async def made_to_look_alike(world: SecuredWorld) -> None:
    """Every topic that mallory can make is below `tenant/` for the code, whatever it looks like."""
    for name in ("..", "%2e%2e", "own%2f..%2f..%2fvault%2fmine", ".", "own%00", "*", "%2a"):
        said = await world.ask("PUT", f"{TENANT}/{name}", {}, who="mallory")
        assert said.status in (400, 403, 404, 405, 422), (name, said)
    said = await world.ask("GET", "/v1/topics/vault", who="root")
    assert b"mine" not in said.body, said
