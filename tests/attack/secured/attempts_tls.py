"""The ports before authentication: old versions, no TLS, foreign certificates."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import struct
import subprocess
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from unittest import mock

from octavo.protocol import v3
from octavo.protocol.frames import LENGTH, read_request
from octavo.tls import authority
from octavo.tls.authority import Authority
from tests.attack.secured.attempts import bearer, request, secured
from tests.attack.secured.world import SecuredWorld, certificate_folder
from tests.attack.world import exchange, open_to, said_in
from tests.support.processes.standalone import standalone
from tests.support.v3_frames import read_frame, request_frame

Address = tuple[str, int]


def ports(world: SecuredWorld) -> list[Address]:
    return [*world.brokers, *world.bookies, *world.admin_ports()]


def believing(world: SecuredWorld) -> ssl.SSLContext:
    """Make a client's context that allows what this cluster must refuse."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(world.ca)
    context.check_hostname = False
    return context


async def shaken(address: Address, context: ssl.SSLContext) -> str:
    try:
        async with asyncio.timeout(10):
            _, writer = await asyncio.open_connection(*address, ssl=context)
    except (ssl.SSLError, OSError):
        return ""
    tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
    writer.transport.abort()
    return f"{tls.version()} {tls.cipher()}"


Weaken = Callable[[ssl.SSLContext], None]
DOWNGRADES: dict[str, Weaken] = {}


def weakened(context: ssl.SSLContext, weaken: Weaken) -> ssl.SSLContext:
    """Make a context with weak parameters; where this machine's library lacks them, with similar
    parameters."""
    try:
        weaken(context)
    except (ssl.SSLError, ValueError):
        _ciphers("AES128-SHA")(context)
    return context


def enter_downgrade(name: str, weaken: Weaken) -> None:
    DOWNGRADES[name] = weaken

    async def run(world: SecuredWorld) -> None:
        context = weakened(believing(world), weaken)
        for address in ports(world):
            found = await shaken(address, context)
            assert not found, f"{address} speaks {found}"

    secured(f"downgrade: {name}")(run)


def _at_most(version: ssl.TLSVersion) -> Callable[[ssl.SSLContext], None]:
    def weaken(context: ssl.SSLContext) -> None:
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = version

    return weaken


def _ciphers(text: str) -> Callable[[ssl.SSLContext], None]:
    def weaken(context: ssl.SSLContext) -> None:
        context.set_ciphers(f"{text}:@SECLEVEL=0")
        context.maximum_version = ssl.TLSVersion.TLSv1_2

    return weaken


enter_downgrade("TLS 1.0", _at_most(ssl.TLSVersion.TLSv1))
enter_downgrade("TLS 1.1", _at_most(ssl.TLSVersion.TLSv1_1))
for weak in ("NULL", "aNULL", "RC4", "3DES", "kRSA", "CAMELLIA", "AES128-SHA", "ECDHE+AES+SHA1"):
    enter_downgrade(f"ciphers {weak}", _ciphers(weak))


@secured("no TLS at any port, with a good token")
async def in_the_clear(world: SecuredWorld) -> None:
    """A listener on the way has the token by then."""
    for address in (*world.brokers, *world.admin_ports()):
        answer = await exchange(address, request(lines=[bearer(world.tokens["root"])]), 5)
        world.guard(answer)
        assert said_in(answer).status in (0, 400), answer[:300]
    for address in world.bookies:
        for frame in (read_request(world.ledger, 0), read_frame(world.ledger, 0)):
            answer = await exchange(address, frame, 5)
            world.guard(answer)
            assert len(answer) < 100, answer


@secured("START_TLS with requests behind it, before its answer")
async def injected(world: SecuredWorld) -> None:
    """Bytes injected before TLS must not count as the client's."""
    start = request_frame(v3.Op.START_TLS, 1, "startTLSRequest")
    for address in world.bookies:
        for more in (read_frame(world.ledger, 0, txn=2), read_request(world.ledger, 0), b"\x00"):
            answer = await exchange(address, start + more, 5)
            world.guard(answer)
            assert len(answer) < 100, "one answer, and the end"


@secured("START_TLS, then a request in the clear")
async def not_shaken(world: SecuredWorld) -> None:
    start = request_frame(v3.Op.START_TLS, 1, "startTLSRequest")
    for address in world.bookies:
        reader, writer = await open_to(address)
        writer.write(start)
        async with asyncio.timeout(10):
            await reader.readexactly(LENGTH.unpack(await reader.readexactly(LENGTH.size))[0])
            writer.write(read_frame(world.ledger, 0, txn=2))
            with contextlib.suppress(ConnectionError):
                answer = await reader.read()
                world.guard(answer)
                assert len(answer) < 20, "an alert at most"
        writer.transport.abort()


@secured("requests before START_TLS")
async def before_it(world: SecuredWorld) -> None:
    start = request_frame(v3.Op.START_TLS, 9, "startTLSRequest")
    for address in world.bookies:
        for first in (read_frame(world.ledger, 0), read_request(world.ledger, 0)):
            answer = await exchange(address, first + start, 5)
            world.guard(answer)
            assert len(answer) < 100, answer


NO_HELLOS = {
    "a record of nothing": b"\x16\x03\x01\x00\x00",
    "a record longer than any": b"\x16\x03\x01\xff\xff" + bytes(70_000),
    "a hello of zeros": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + bytes(508),
    "a hello of SSL 3": b"\x16\x03\x00\x00\x2f\x01\x00\x00\x2b\x03\x00" + bytes(41),
    "a hello of SSL 2": b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + bytes(37),
    "an alert": b"\x15\x03\x03\x00\x02\x02\x28",
    "application data": b"\x17\x03\x03\x00\x20" + bytes(32),
    "a heartbeat that asks for more": b"\x18\x03\x02\x00\x03\x01\x40\x00",
    "a change of ciphers": b"\x14\x03\x03\x00\x01\x01",
    "its first byte alone": b"\x16",
    "noise behind its first byte": b"\x16" + bytes(range(256)) * 40,
    "HTTP behind its first byte": b"\x16GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


def enter_no_hello(name: str, data: bytes) -> None:
    async def run(world: SecuredWorld) -> None:
        for address in ports(world):
            answer = await exchange(address, data, 1.5)
            assert len(answer) < 400, answer[:400]
            assert b"200 OK" not in answer

    secured(f"hello: {name}")(run)


for one, what in NO_HELLOS.items():
    enter_no_hello(one, what)


def of_another_ca(world: SecuredWorld) -> tuple[Path, Path]:
    folder = certificate_folder(world, "other")
    if not (folder / "root.pem").exists():
        Authority.opened(folder)[0].issue("root", ["root", "localhost"], days=1)
    return folder / "root.pem", folder / "root.key"


def long_ago(world: SecuredWorld) -> tuple[Path, Path]:
    """Signed by the cluster's CA, whose key is lent for it."""
    folder = certificate_folder(world, "ended")
    if not (folder / "root.pem").exists():
        for name in ("ca.pem", "ca.key"):
            (folder / name).write_bytes((world.folder / name).read_bytes())
        then = authority._now() - timedelta(days=30)
        with mock.patch.object(authority, "_now", return_value=then):
            Authority.opened(folder)[0].issue("root", ["root"], days=1)
    return folder / "root.pem", folder / "root.key"


def enter_certificate(name: str, files: Callable[[SecuredWorld], tuple[Path, Path]]) -> None:
    async def run(world: SecuredWorld) -> None:
        context = believing(world)
        context.load_cert_chain(*files(world))
        for broker in range(len(world.brokers)):
            with contextlib.suppress(OSError):
                answer = await world.all_of(request(), broker=broker, tls=context)
                assert said_in(answer).status in (0, 401), answer[:500]
        for address in world.bookies:
            with contextlib.suppress(OSError):
                answer = await exchange(address, read_request(world.ledger, 0), 3, tls=context)
                world.guard(answer)

    secured(f"certificate: {name}")(run)


enter_certificate("root's, of another CA", of_another_ca)
enter_certificate("root's, that has ended", long_ago)


@secured("a revoked certificate, where ports ask for certificates")
async def revoked(world: SecuredWorld) -> None:
    """Refuse a certificate that is on the revocation list at the start, and a certificate that
    is added later."""
    folder = certificate_folder(world, "mutual")
    ca, _ = Authority.opened(folder / "tls")
    shown = {name: ca.issue(name, [f"{name}.clients"], days=1) for name in ("good", "bad", "later")}
    ca.revoke(["bad"], days=1)
    how = ("--tls", "--bookies=1", "--brokers=1", "--set=tls.mutual=true", "--set=tls.reload_ms=50")

    async def comes_in(name: str, address: Address, data: bytes) -> bool:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(ca.file)
        context.check_hostname = False
        context.load_cert_chain(shown[name].certificate, shown[name].key)
        with contextlib.suppress(OSError):
            return bool(await exchange(address, data, 3, len, context))
        return False

    starting = standalone(folder, *how, f"--set=tls.crl={ca.revoked_file}")
    cluster = await asyncio.to_thread(starting.__enter__)
    try:
        doors = [
            (
                _address_of(cluster.cluster.of_kind("broker")[0].address),
                request(path="/v1/cluster"),
            ),
            (_address_of(cluster.cluster.of_kind("bookie")[0].address), read_request(1, 0)),
        ]
        for address, data in doors:
            assert await comes_in("good", address, data)
            assert await comes_in("later", address, data)
            assert not await comes_in("bad", address, data), address
        ca.revoke(["later"], days=1)
        for address, data in doors:
            until_s = time.monotonic() + 30
            while await comes_in("later", address, data):
                assert time.monotonic() < until_s, f"{address} has not heard of it"
                await asyncio.sleep(0.1)
            assert await comes_in("good", address, data)
            assert not await comes_in("bad", address, data), address
    finally:
        await asyncio.to_thread(starting.__exit__, None, None, None)


def _address_of(text: str) -> Address:
    host, _, port = text.rpartition("//")[2].rpartition(":")
    return host, int(port)


@secured("a client asks for another protocol within TLS")
async def other_protocols(world: SecuredWorld) -> None:
    context = believing(world)
    context.set_alpn_protocols(["h2", "spdy/3"])
    for address in ports(world):
        reader, writer = await asyncio.open_connection(*address, ssl=context)
        tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
        assert tls.selected_alpn_protocol() is None
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        async with asyncio.timeout(15):
            with contextlib.suppress(ConnectionError):
                assert b" 200 " not in await reader.read()
        writer.transport.abort()
    assert reader is not None


@secured("a renegotiation, asked for in a handshake of TLS 1.2")
async def renegotiation(world: SecuredWorld) -> None:
    for host, port in (world.brokers[0], world.bookies[0]):
        process = await asyncio.create_subprocess_exec(
            "openssl", "s_client", "-connect", f"{host}:{port}", "-tls1_2", "-quiet",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=dict(os.environ),
        )  # fmt: skip
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                said, _ = await process.communicate(b"R\n")
                world.guard(said)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    began = time.monotonic()
    await world.refused(request(), (401,))
    assert time.monotonic() - began < 5


@secured("handshakes that do not end")
async def slow_handshakes(world: SecuredWorld) -> None:
    """Half a hello each, ten times as many as allowed: other clients still get in."""
    half = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64)
    for address in (world.brokers[0], world.bookies[0]):
        writers = []
        for _ in range(2_000):
            with contextlib.suppress(OSError):
                _, writer = await open_to(address)
                writer.write(half)
                writers.append(writer)
        began = time.monotonic()
        context = believing(world)
        while not await shaken(address, context):
            assert time.monotonic() - began < 5, "nobody else comes in"
        for writer in writers:
            writer.transport.abort()


@secured("handshakes by the drop")
async def by_the_drop(world: SecuredWorld) -> None:
    drop = struct.pack(">BHH", 22, 0x0301, 512)
    drips = [await open_to(address) for address in ports(world) for _ in range(10)]
    for at in range(len(drop)):
        for _, writer in drips:
            writer.write(drop[at : at + 1])
        await asyncio.sleep(0.3)
    await world.refused(request(), (401,))
    for _, writer in drips:
        writer.transport.abort()
