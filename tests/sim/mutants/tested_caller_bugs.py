"""Planted bugs of callers' access to other callers' objects; a test has to find them."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit
from tests.sim.mutants.tested import TestedBug

_BATCHES = "cluster/test_broker_bulk_loads.py"
_RECOVER = "cluster/test_partition.py"
_FOLLOW = "cluster/test_streams.py"
_PUSH = "cluster/test_streams.py"
_GATHERING = "unit/broker/test_publisher.py"
_FORGED = "cluster/test_forged.py"
_UPGRADE = "unit/broker_operations/test_links.py"
_UPGRADES = "unit/broker_http/test_upgrades.py"

BUGS = (
    TestedBug(
        "state-ledger-is-no-ones",
        "recovery of a partition's state ledger is allowed while it is in use",
        """The owner writes the state ledger too. When it is fenced, acks end, and the partition has
        to be opened again.""",
        "a topic is not stopped from outside",
        _RECOVER,
        (
            Edit(
                "octavo.broker.log.orphan_ledgers:named_ledgers",
                "return named if record.state_ledger is None else named | {record.state_ledger}",
                "return named",
            ),
        ),
    ),
    TestedBug(
        "ledger-not-yet-named-is-no-ones",
        "recovery of a ledger is allowed before its owner has named it",
        """A ledger exists for a moment before the record names it. If it is recovered in between,
        it is named closed, and the first add is fenced.""",
        "a topic is not stopped from outside",
        _RECOVER,
        (
            Edit(
                "octavo.broker.cluster.in_use:writes",
                "label.epoch >= record.epoch",
                "label.epoch > record.epoch",
            ),
        ),
    ),
    TestedBug(
        "forced-recovery-without-end",
        "forced recoveries are not counted",
        "A client that forces recoveries in a loop stops the topic.",
        "a topic is not stopped from outside",
        _RECOVER,
        (
            Edit(
                "octavo.broker.cluster.in_use:RecoveryDoor.force",
                "self._forced_s = now_s",
                "pass",
            ),
        ),
    ),
    TestedBug(
        "any-number-follows",
        "a batch with a number far ahead is committed, and all below it are dropped",
        """The number is higher than the newest, so the batch is taken. All batches up to it then
        count as repeats, and are answered and dropped.""",
        "X1 (batches ascend one by one)",
        _BATCHES,
        (
            Edit(
                "octavo.broker.bulkload.rules:check_order",
                "if after is None:",
                "if after is None and batch < expected:",
            ),
        ),
    ),
    TestedBug(
        "after-is-not-compared",
        "a batch may follow a batch that is not the newest",
        """The writer says which batch was the last. If that is not compared, the slower of two
        writers with one id skips what the other has committed.""",
        "X1 (batches ascend one by one)",
        _BATCHES,
        (
            Edit(
                "octavo.broker.bulkload.rules:check_order",
                "if record.batch not in (after, -1):",
                "if False:",
            ),
        ),
    ),
    TestedBug(
        "callers-without-a-token-pass",
        "a call without a token may use a bulk load that has one",
        """Bulk loads of old writers have no token. With the edit, a caller without a token may use
        the bulk loads of all others as well.""",
        "an id is its owner's",
        _BATCHES,
        (
            Edit(
                "octavo.broker.bulkload.rules:check_caller",
                'if record.token_digest not in ("", caller.digest):',
                'if caller.digest and record.token_digest not in ("", caller.digest):',
            ),
        ),
    ),
    TestedBug(
        "a-commit-binds-nobody",
        "a commit of ledgers does not bind the bulk load to its caller",
        """A bulk load that publishes is bound to its caller when it begins; a commit by ledgers has
        no begin, so the commit must bind it.""",
        "an id is its owner's",
        _BATCHES,
        (
            Edit(
                "octavo.broker.bulkload.rules:committing",
                "token_digest=record.token_digest or digest,",
                "token_digest=record.token_digest,",
            ),
        ),
    ),
    TestedBug(
        "proof-for-one-broker-holds-for-another",
        "the proof of an upgrade does not cover the broker that is asked",
        "A recorded upgrade to one broker begins a connection to every other broker.",
        "a broker proves its connections",
        _UPGRADE,
        (
            Edit(
                "octavo.broker.operations.upgrade:_proof_of",
                "upgrade.asking, upgrade.answering, upgrade.nonce",
                "upgrade.asking, upgrade.nonce",
            ),
        ),
    ),
    TestedBug(
        "call-for-another-broker-is-taken",
        "a broker accepts a connection that was meant for another broker",
        """The proof is valid. When an address has changed hands, the broker there claims what the
        caller meant for another broker.""",
        "a broker proves its connections",
        _UPGRADES,
        (
            Edit(
                "octavo.broker.http.broker_connections:Door._checked",
                "if upgrade.answering != self._broker_id:",
                "if upgrade.answering is None:",
            ),
        ),
    ),
    TestedBug(
        "a-recorded-upgrade-begins-again",
        "a recorded upgrade is accepted again",
        """No operation can be asked for without the secret. But each repeat holds a place for five
        seconds, and the places for brokers are few.""",
        "a broker proves its connections",
        _UPGRADES,
        (
            Edit(
                "octavo.broker.http.broker_connections:Door.accept",
                "if not self._nonces.is_new(upgrade.nonce):",
                "if False:",
            ),
        ),
    ),
    TestedBug(
        "registered-by-name-alone",
        "calls go to the address in an owner's record without checking it",
        "A client that can write the record has callers' requests sent to any host.",
        "calls go to registered brokers only",
        _FORGED,
        (
            Edit(
                "octavo.broker.cluster.registry:BrokerRegistry.check_registered",
                "if self.live.get(owner.broker_id) == owner:",
                "if owner.broker_id in self.live:",
            ),
        ),
    ),
    TestedBug(
        "message-in-hand-is-done",
        "a delivery loop acks the message that its body still works on",
        """The body has asked for a message and not finished it. If the program ends now, that
        message is lost.""",
        "at least once",
        "cluster/test_receive.py",
        (
            Edit(
                "octavo.client.handing:Handing.notice",
                "max(0, self._hand.taken - 1)",
                "min(self._hand.taken, len(self._hand.deliveries))",
            ),
        ),
    ),
    TestedBug(
        "stream-begins-its-page-anew",
        "a stream repeats a page after a failed fetch",
        """A page fails while the partition moves, and is read again. A place that is kept for the
        stream, not for the page, repeats messages that the reader has.""",
        "offsets of a stream follow each other",
        _FOLLOW,
        (
            Edit(
                "octavo.broker.http.api.read:_Following.run",
                "page = await self._next(offset)",
                "page = await self._next(offset - len(page.messages[:1]))",
            ),
        ),
    ),
    TestedBug(
        "follower-forgets-what-a-stream-brought",
        "a client whose stream ends reads the stream's messages again",
        """The client reads with calls first, then with a stream, which may break off. If it notes
        only the messages of the calls, it reads those of the stream twice.""",
        "who follows has each message once",
        "unit/octavo/test_consumer.py",
        (
            Edit(
                "octavo.client.following:pages",
                "place, wait_s = messages[-1].offset + 1, 0.0",
                "wait_s = 0.0",
            ),
        ),
    ),
    TestedBug(
        "stream-waits-for-a-deleted-topic",
        "a reader waits forever when its topic was deleted and recreated",
        """`topic-replaced` may pass when the broker that says so is behind. If it never counts as
        final, a reader waits for ever.""",
        "a stream ends with its topic",
        _FOLLOW,
        (
            Edit(
                "octavo.broker.http.stream:through_moves",
                "if error.looked:",
                "if False:",
            ),
        ),
    ),
    TestedBug(
        "each-reader-fetches-for-itself",
        "each reader at the end of a partition fetches its own page",
        "A thousand readers of a partition read and encode each batch a thousand times.",
        "one read and one encoding a batch",
        _FOLLOW,
        (
            Edit(
                "octavo.broker.http.stream:Pages.at",
                "self._fetching[place] = task",
                "self._fetching[place[0], place[1], id(task)] = task",
            ),
        ),
    ),
    TestedBug(
        "a-socket-keeps-what-is-out",
        "a WebSocket that closes keeps its messages leased",
        """A socket that closes says that its consumer has finished. Other consumers wait half a
        minute for its messages.""",
        "closing gives back",
        _PUSH,
        (
            Edit(
                "octavo.broker.http.api.push:Socket.run",
                "await self._feed.give_back(self._out.ack_ids(), were_sent=True)",
                "pass",
            ),
        ),
    ),
    TestedBug(
        "the-unsent-stays-leased",
        "messages received for a stream but not sent stay leased when it ends",
        "The messages are in a queue that has no reader, until their leases end.",
        "what is not sent is given back",
        _PUSH,
        (
            Edit(
                "octavo.broker.http.api.push:Feed._end",
                "await self.give_back(ack_ids, were_sent=False)",
                "pass",
            ),
        ),
    ),
    TestedBug(
        "credits-for-each-call",
        "a stream's credits limit each call, not the total",
        "A consumer that never acks gets all messages.",
        "no more is out than there are credits",
        _PUSH,
        (
            Edit(
                "octavo.broker.subscriptions.subscription:Subscription._dispatch",
                "asked.out_max - self._dispatcher.held_by(consumer, now_ms)",
                "asked.out_max",
            ),
        ),
    ),
    TestedBug(
        "each-try-is-another-call",
        "a stream that repeats a receive gets other messages; the lost answer's stay leased",
        "The messages of the lost answer stay leased to no consumer until their leases end.",
        "the same call again gets the same",
        _PUSH,
        (
            Edit(
                "octavo.broker.http.api.push:Feed._receive",
                "self._ask(one)",
                "self._ask(replace(one, request=secrets.token_hex(6)))",
            ),
        ),
    ),
    TestedBug(
        "a-sockets-acks-are-tried-once",
        "an ack over a WebSocket is refused while its partition moves",
        """Over HTTP the caller tries again. For a socket, the broker must find the new owner and
        send the ack there.""",
        "a stream goes on through its owner's death",
        _PUSH,
        (
            Edit(
                "octavo.broker.http.api.push:Socket._apply",
                "if late or not problem_of(error).can_retry:",
                "if True:",
            ),
        ),
    ),
    TestedBug(
        "shared-batch-one-offset",
        "all messages of a shared batch get its first offset",
        "For a batch of one message, as most tests make it, that is right.",
        "each message has its own place",
        _GATHERING,
        (
            Edit(
                "octavo.broker.partition.message_batcher:Joined.placed",
                "offset = published.first_offset + self.number",
                "offset = published.first_offset",
            ),
        ),
    ),
    TestedBug(
        "who-leaves-takes-the-batch-along",
        "a caller that leaves cancels its whole shared batch",
        "Awaiting the future itself, without a shield, cancels it.",
        "each message has its own place",
        _GATHERING,
        (
            Edit(
                "octavo.broker.partition.message_batcher:MessageBatcher.publish",
                "await asyncio.shield(joined.stored)",
                "await joined.stored",
            ),
        ),
    ),
    TestedBug(
        "an-open-batch-is-forgotten",
        "an open batch is not sent after the previous one failed",
        """It is sent when a batch under way is stored. If that batch fails, its callers wait for
        ever.""",
        "a publish is answered",
        _GATHERING,
        (
            Edit(
                "octavo.broker.partition.message_batcher:MessageBatcher._store",
                "    self._under_way -= 1\n        self._send()",
                "    self._under_way -= 1\n        shared.done.exception() or self._send()",
            ),
        ),
    ),
    TestedBug(
        "published-after-it-was-committed",
        "a committed batch is published again",
        """Brokers remember a bounded number of producers; the bulk load's record knows a committed
        batch longer. The edit ignores its answer, so a driver that is behind publishes once
        more.""",
        "X10, S9 (each row once)",
        "cluster/test_spark_sink.py",
        (Edit("octavo.spark.commit:publish", 'if began["repeated"]:', "if False:"),),
    ),
)
