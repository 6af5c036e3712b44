"""Planted bugs of callers' access to other callers' objects; a test has to find them."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit
from tests.sim.mutants.tested import TestedBug

_BATCHES = "cluster/test_broker_bulk_loads.py"
_RECOVER = "cluster/test_partition_faults.py"
_FOLLOW = "cluster/test_follow.py"
_PUSH = "cluster/test_push.py"
_GATHERING = "unit/broker/test_gathering.py"
_FORGED = "cluster/test_forged_calls.py"

BUGS = (
    TestedBug(
        "state-ledger-is-no-ones",
        "recovery of a partition's state ledger is allowed while it is in use",
        """The state ledger is written by the owner as well: fenced, it ends acks and the
        producers' table, and the partition has to be opened anew. That a partition's record names
        it apart is easily overlooked.""",
        "a topic is not stopped from outside",
        _RECOVER,
        (
            Edit(
                "octavo.broker.log.leftover:named_ledgers",
                "return named if record.state_ledger is None else named | {record.state_ledger}",
                "return named",
            ),
        ),
    ),
    TestedBug(
        "ledger-not-yet-named-is-no-ones",
        "recovery of a ledger is allowed before its owner has named it",
        """Between making a ledger and naming it there is a write of metadata. Recovered in
        between, it is named closed, and the first add is fenced.""",
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
        """Whoever forces it in a loop stops the topic as before. That a recovery waits its turn
        at the door looks like limit enough.""",
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
        """It is newer than the newest, and that was all that once counted. Every batch up to there
        is a repeat from then on, answered as done and dropped.""",
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
        """The writer says which batch was the last; that this is true looks like its own affair.
        Of two writers with one id the slower one jumps over what the other has committed.""",
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
        """Old writers have none, and their ids go on; so do, by the edit, all others' for whoever
        says nothing.""",
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
        """Whoever publishes begins, and that binds the id; a commit by ledgers has no begin. The
        edit lets it keep what the record has: nothing.""",
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
        "proof-of-one-call-holds-for-another",
        "the proof between brokers does not cover the method",
        """Path, caller and target look like all that a call is. Whoever reads the traffic makes a
        broker claim a partition by what another one only looked at.""",
        "what counts between brokers counts from brokers only",
        _FORGED,
        (
            Edit(
                "octavo.broker.http.broker_calls:BrokerProof._proof",
                "fields = (method, path, *(",
                "fields = (path, *(",
            ),
        ),
    ),
    TestedBug(
        "call-for-another-broker-is-taken",
        "a broker accepts a call that was meant for another broker",
        """The proof holds, so it came from a broker. At an address that has changed hands it claims
        what the caller believes to be another one's.""",
        "what counts between brokers counts from brokers only",
        _FORGED,
        (
            Edit(
                "octavo.broker.http.call:_passed",
                "if own != found.target:",
                "if found.target is None:",
            ),
        ),
    ),
    TestedBug(
        "callers-speak-for-brokers",
        "a broker forwards headers of its caller that only brokers may set",
        """It proves what it sends, and with it headers that name escaped ones: the owner then
        stores another key than it would have been given directly.""",
        "any broker answers as the owner does",
        _FORGED,
        (
            Edit(
                "octavo.broker.http.forwarding:Peers.forward",
                "if key.lower() not in _NOT_PASSED_ON",
                "if key.lower() not in _HOP_BY_HOP",
            ),
        ),
    ),
    TestedBug(
        "registered-by-name-alone",
        "calls go to the address in an owner's record without checking it",
        """The id is looked up, the address is taken from the record: whoever writes it has callers'
        requests sent to any host.""",
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
        """The body says how many messages it has asked for, and the last of them is not done before
        it asks for one more. A program that ends in the midst of its work has lost a message
        then.""",
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
        """While the partition moves a page fails, and is asked for again. Whoever keeps the place
        in the stream, and not in the last page, repeats what the reader has.""",
        "offsets of a stream follow each other",
        _FOLLOW,
        (
            Edit(
                "octavo.broker.http.api.follow:_Following.run",
                "page = await self._next(offset)",
                "page = await self._next(offset - len(page.messages[:1]))",
            ),
        ),
    ),
    TestedBug(
        "follower-forgets-what-a-stream-brought",
        "a client whose stream ends reads the stream's messages again",
        """The client reads to the end by calls, and then has a stream, which may break off at any
        time. Whoever notes only what the calls brought has all of the stream twice.""",
        "who follows has each message once",
        "unit/octavo/test_following.py",
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
        """That the topic is another one is told as something that passes, for the broker that says
        so may be the one that has not heard. A reader would wait for ever, without a word.""",
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
        """A thousand readers of one partition read and encode each batch a thousand times.""",
        "one read and one encoding a batch",
        _FOLLOW,
        (
            Edit(
                "octavo.broker.http.pages:Pages.at",
                "self._fetching[place] = task",
                "self._fetching[place[0], place[1], id(task)] = task",
            ),
        ),
    ),
    TestedBug(
        "a-socket-keeps-what-is-out",
        "a WebSocket that closes keeps its messages leased",
        """As a consumer does that calls and goes away. But one that closes has said that it is
        through, and the others wait half a minute for what it had.""",
        "closing gives back",
        _PUSH,
        (
            Edit(
                "octavo.broker.http.api.sockets:Socket.run",
                "await self._feed.give_back(self._out.ack_ids(), were_sent=True)",
                "pass",
            ),
        ),
    ),
    TestedBug(
        "the-unsent-stays-leased",
        "messages received for a stream but not sent stay leased when it ends",
        """It is in a queue that nobody reads any more, and its leases end some time.""",
        "what is not sent is given back",
        _PUSH,
        (
            Edit(
                "octavo.broker.http.api.feed:Feed._end",
                "await self.give_back(ack_ids, were_sent=False)",
                "pass",
            ),
        ),
    ),
    TestedBug(
        "credits-for-each-call",
        "a stream's credits limit each call, not the total",
        """A consumer that takes and never acks is given all that there is.""",
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
        """What the lost answer had is leased to nobody who knows of it, until its leases end.""",
        "the same call again gets the same",
        _PUSH,
        (
            Edit(
                "octavo.broker.http.api.feed:Feed._receive",
                "self._ask(one)",
                "self._ask(replace(one, request=secrets.token_hex(6)))",
            ),
        ),
    ),
    TestedBug(
        "a-sockets-acks-are-tried-once",
        "an ack over a WebSocket is refused while its partition moves",
        """By HTTP the caller tries again. Over a socket the broker in front follows the owner, and
        what it was told has to follow as well.""",
        "a stream goes on through its owner's death",
        _PUSH,
        (
            Edit(
                "octavo.broker.http.api.sockets:Socket._apply",
                "if late or not problem_of(error).can_retry:",
                "if True:",
            ),
        ),
    ),
    TestedBug(
        "shared-batch-one-offset",
        "all messages of a shared batch get its first offset",
        """Of a batch of one message, which is what each test of a single publish makes, it is the
        right one.""",
        "each message has its own place",
        _GATHERING,
        (
            Edit(
                "octavo.broker.partition.gathering:Joined.placed",
                "offset = published.first_offset + self.number",
                "offset = published.first_offset",
            ),
        ),
    ),
    TestedBug(
        "who-leaves-takes-the-batch-along",
        "a caller that leaves cancels its whole shared batch",
        """Awaiting the future itself looks the same, and cancels it.""",
        "each message has its own place",
        _GATHERING,
        (
            Edit(
                "octavo.broker.partition.gathering:Gathering.publish",
                "await asyncio.shield(joined.stored)",
                "await joined.stored",
            ),
        ),
    ),
    TestedBug(
        "an-open-batch-is-forgotten",
        "an open batch is not sent after the previous one failed",
        """It goes when one of those under way is stored; where that fails, nobody sends it, and
        its callers wait for ever.""",
        "a publish is answered",
        _GATHERING,
        (
            Edit(
                "octavo.broker.partition.gathering:Gathering._store",
                "    self._under_way -= 1\n        self._send()",
                "    self._under_way -= 1\n        shared.done.exception() or self._send()",
            ),
        ),
    ),
    TestedBug(
        "published-after-it-was-committed",
        "a committed batch is published again",
        """Brokers remember so many producers only, and not for ever; the record of the bulk load
        knows a committed batch longer. The edit does not heed its answer, so a driver that is
        behind, or has other rows by now, publishes once more.""",
        "X10, S9 (each row once)",
        "cluster/test_spark_sink_producer.py",
        (Edit("octavo.spark.commit:publish", 'if began["repeated"]:', "if False:"),),
    ),
)
