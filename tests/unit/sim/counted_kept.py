"""Counters and queues that no `describe()` names, and why; `test_quiescence.py` reads it."""

from __future__ import annotations

from collections.abc import Mapping

KEPT: Mapping[str, str] = {
    "a cache: full is its normal state, and its bound is held by its own tests": """
        bookie.read.cache:ReadCache.bytes broker.log.cache:TailCache._cleared
        broker.log.cache:TailCache._order broker.log.cache:TailCache.cached_bytes
        broker.log.open_batches:OpenBatches.kept_bytes broker.log.reader:LogReader._ahead""",
    "what is stored or unacked: a state of the data, which clients change": """
        broker.partition.log:PartitionLog._growth broker.state.cursor:Cursor._beyond
        broker.subscriptions.delays:Delays._count broker.subscriptions.dispatch:Dispatcher._ready
        ledger.rereplication.keeper:CopyKeeper._waited_for metadata.election:Ownership._held""",
    "background work that never ends while the process lives": """
        bookie.node:BookieNode._tasks broker.broker:Broker._rounds broker.broker:Broker._tasks
        broker.cluster.background_tasks:BackgroundTasks._under_way
        broker.cluster.deletion:Deletions._taken_up broker.http.overview:Overview._tasks
        client.doubt:Doubts._tasks client.partition_queue:PartitionQueue._tasks
        ledger.bookies.bookies:Bookies._tasks
        ledger.client:LedgerClient._tasks tls.listening:TlsListener._accepting""",
    "lives for one call or one stream, and goes with it": """
        broker.http.api.deliveries:Share.release broker.http.api.batching:Publishing._queues
        broker.http.api.batching:_PartitionQueue.pieces broker.http.api.push:Feed._pulls
        broker.http.api.push:Feed._unsent broker.http.api.push:Socket._acks
        ledger.recover.recovery:Recovery._tasks""",
    "a part of a queue whose owner counts its items": """
        bookie.back_pressure:Flow._batch_bytes bookie.entrylog.open_logs:_OpenLog.reads
        bookie.journal.journal:JournalQueue._stretches
        bookie.journal.journal:_Lane.items bookie.journal.journal:_Stretch._new
        bookie.journal.journal:_Stretch._old broker.subscriptions.key_shared:_Key.waiting
        protocol.fair_queue:FairQueue._lanes protocol.fair_queue:FairQueue._length""",
    "a rate or a total: it says what happened, nothing is held": """
        bookie.gc.status:CollectorStatus.rounds broker.cluster.in_use:RecoveryDoor._begun_s""",
}
