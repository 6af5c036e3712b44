"""A broker's process: `python -m octavo.process.broker SPEC [CONTROL_FD]`."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from pathlib import Path

from octavo.broker.broker import Broker
from octavo.broker.config import BrokerConfig
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.server import BrokerServer
from octavo.broker.operations.upgrade import KEY_USE
from octavo.clock import wall_clock_ms
from octavo.keys import data_keys_of
from octavo.ledger.client import LedgerClient
from octavo.ledger.options import LedgerOptions
from octavo.metadata.opening import open_store
from octavo.metadata.secret import cluster_secret
from octavo.process.life import Life, run_process
from octavo.process.recovery_log import RecoveryLog
from octavo.process.schema_workers import SchemaWorkers
from octavo.process.security import followed_rights
from octavo.process.spec import ProcessSpec, read_spec
from octavo.security.bookie_tokens import BookieTokens, prover
from octavo.security.keys.config import KeysConfig
from octavo.security.settings import SecurityConfig
from octavo.tls.contexts import certificates_of, kept_fresh
from octavo.tls.settings import TlsConfig


async def serve_broker(spec: ProcessSpec, life: Life) -> None:
    config = spec.config(BrokerConfig, "broker")
    http = spec.config(HttpConfig, "http")
    options = spec.config(LedgerOptions, "ledger")
    tls = certificates_of(spec.config(TlsConfig, "tls"))
    security = spec.config(SecurityConfig, "security")
    keys = data_keys_of(spec.config(KeysConfig, "keys"))
    rng = random.SystemRandom()
    store = open_store(
        spec.metadata_url,
        session_timeout_ms=spec.session_timeout_ms,
        credentials_file=spec.metadata_credentials_file,
        tls=tls,
    )
    await store.start()
    try:
        secret = await cluster_secret(store)
        ledgers = LedgerClient(
            store,
            options=options,
            rng=rng,
            clock=wall_clock_ms,
            observe_recovery=RecoveryLog(),
            tls=tls,
            prove=prover(BookieTokens(secret, wall_clock_ms), spec.name),
            keys=keys,
        )
        await ledgers.start()
        try:
            schemas = SchemaWorkers()
            broker = Broker(
                store, ledgers, config, rng=rng, clock=wall_clock_ms, schema_engine=schemas
            )
            async with (
                contextlib.aclosing(schemas),
                followed_rights(store, security, wall_clock_ms, rng) as rights,
            ):
                server = BrokerServer(
                    broker,
                    store=store,
                    ledgers=ledgers,
                    clock=wall_clock_ms,
                    call_key=secret.key(KEY_USE),
                    http=http,
                    tls=tls,
                    authority=rights.authority,
                    authenticator=rights.authenticator,
                    security=security,
                )
                await server.start()
                failed = asyncio.ensure_future(life.fail_with(broker.failed))
                try:
                    life.ready(broker_id=broker.broker_id, url=server.url)
                    async with kept_fresh(tls):
                        await life.until_stopped()
                finally:
                    failed.cancel()
                    await server.stop()
        finally:
            await ledgers.close()
    finally:
        await store.close()


def main() -> int:
    spec = read_spec(Path(sys.argv[1]))
    control = int(sys.argv[2]) if len(sys.argv) > 2 else None
    return run_process(serve_broker, spec, control)


if __name__ == "__main__":
    sys.exit(main())
