"""A loop over messages whose topic was deleted said that acks could not be sent, and that messages
would come again: they never will. It says now that the topic is not there.
"""

from __future__ import annotations

import pytest

from octavo import Client
from octavo.client.errors import NotFound
from tests.support.broker_thread import broker_thread


def test_a_loop_over_a_topic_that_is_deleted() -> None:
    with broker_thread() as broker, Client(broker.url) as client:
        client.create_topic("t")
        client.publish_many("t", [(None, "x")] * 100)
        found = client.subscribe("t", "s", type="shared").deliveries()
        assert next(found).offset == 0
        client.delete_topic("t")
        with pytest.raises(NotFound):
            for _ in found:
                pass
