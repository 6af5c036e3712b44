"""Planted bugs of the broker's topic log: ownership, ledger list, cursors, producers."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

MUTANTS = (
    Mutant(
        "unanswered-record-deletes-its-ledger",
        15,
        "BookKeeper #3466",
        "a lost answer counts as a refusal, and a ledger that the record names is deleted",
        """Under packet loss, records named ledgers that did not exist.""",
        "S9, P51 (a chain names only ledgers that are there)",
        "replies of the metadata store that get lost at a take-over or a roll-over",
        (
            Edit(
                "octavo.broker.log.record:PartitionRecordKeeper._put",
                "        except MetadataUnavailable:\n            unsure = True\n",
                "        except MetadataUnavailable as error:\n"
                "            raise OwnershipLost(str(error), refused=True) from error\n",
            ),
        ),
    ),
    Mutant(
        "cursor-beyond-the-last-message",
        17,
        "Pulsar #2666, PR #2673",
        "consumers get messages before these are durable, so a cursor can pass the end",
        """A cursor ahead of the last position made its topic unavailable. Here a consumer gets
        messages before they are durable and acks them; then the next owner's recovery cuts them
        off.""",
        "S9 (no phantom, cursor ≤ end)",
        "consumers at the end of a partition, a take-over with publishes under way",
        (
            Edit(
                "octavo.broker.partition.log:PartitionLog.end_offset",
                "return self._publisher.confirmed_offset",
                "return self._publisher.next_offset",
            ),
        ),
    ),
    Mutant(
        "acks-lost-on-restart",
        18,
        "Pulsar #22709, #18236",
        "consumers' acks are answered before they are durable",
        """Acks were answered when they were in memory, and a restart delivered the acked messages
        again.""",
        "S9 (an ack that was answered holds)",
        "consumers, take-overs",
        (
            Edit(
                "octavo.broker.subscriptions.subscription:Subscription.acknowledge",
                "await self._persist(ack_op(self.info.name, ranges))",
                "pass",
            ),
        ),
    ),
    Mutant(
        "cursor-reset-on-restart",
        18,
        "Pulsar #22709, #18236",
        "a take-over discards all cursors",
        """After a restart, subscriptions began again at their start.""",
        "S9 (an ack that was answered holds)",
        "consumers, take-overs",
        (
            Edit(
                "octavo.broker.subscriptions.subscriptions:SubscriptionSet.restore",
                "self._cursors = cursors",
                "pass",
            ),
        ),
    ),
    Mutant(
        "late-message-of-an-old-epoch",
        24,
        "Kafka KIP-890 (class)",
        "a message of an older producer epoch is stored",
        """A request of an old instance of a producer arrived after a new instance had begun, and
        was stored.""",
        "S9 (a new epoch shuts out the older one)",
        "producers that come back under a new epoch while requests are late",
        (
            Edit(
                "octavo.broker.state.producers:ProducerTable.check",
                "    if known is not None and epoch < known.epoch:",
                "    if known is not None and epoch < known.epoch:\n        return None\n"
                "    if known is not None and epoch < known.epoch:",
            ),
        ),
    ),
    Mutant(
        "paused-broker-writes-to-the-chain",
        25,
        "LedgerChaining (TLA+); split-brain class",
        "a broker whose session ended still writes the partition's record",
        """A broker's session ended while it was paused, and another broker took the partition. When
        the first broker woke up, it continued and changed the record.""",
        "S9 (of two owners one chain wins)",
        "a broker paused past its session, with a ledger to trim or to roll",
        (
            Edit(
                "octavo.broker.cluster.ownership:OwnershipManager._claim_lost",
                "if tenure is not None:\n"
                '        self._abandon(tenure, "this broker\'s session has ended")',
                "del tenure",
            ),
            Edit(
                "octavo.broker.log.record:PartitionRecordKeeper._put",
                "        except VersionConflict:\n            pass",
                "        except VersionConflict:\n"
                "            _, version = await self._topics.read_partition(*self._name)\n"
                "            continue",
            ),
        ),
    ),
    Mutant(
        "dedup-table-not-restored",
        0,
        "S9",
        "a take-over forgets which messages producers have sent",
        """The table of producers is rebuilt from the state ledger and the later batches. The edit
        begins with an empty table: a repeat of a stored batch is stored again, or refused as a
        gap.""",
        "S9 (none twice)",
        "deduplicating producers, take-overs",
        (
            Edit(
                "octavo.broker.partition.opening:PartitionOpener._producers",
                "    return table, scanned\n",
                "    return ProducerTable(self._config.producers_max), scanned\n",
            ),
        ),
    ),
    Mutant(
        "claim-without-recovery",
        0,
        "LedgerChaining (TLA+)",
        "a take-over does not recover the last ledger, so the old owner can still add",
        """A new owner must fence and close the newest ledger before it adds another. The edit
        believes the readable LAC: the old owner still gets acks, for a ledger that the chain
        counts as ended.""",
        "S9, S3 (LedgerChaining)",
        "take-overs with publishes under way",
        (
            Edit(
                "octavo.broker.partition.opening:PartitionOpener._close_last",
                "    return await self._ledgers.recover(last.ledger_id)",
                "    reader = await self._ledgers.open(last.ledger_id)\n"
                "    end = await reader.refresh()\n"
                "    length = 0\n"
                "    if end >= 0:\n"
                "        length = (await reader.read(end, end))[0].length\n"
                "    await reader.close()\n"
                "    return replace(reader.metadata, last_entry=end, length=length)",
            ),
        ),
    ),
)
