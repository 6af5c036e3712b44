"""Each consumer that came to a key-shared subscription of a thousand held up its broker for 0.3 s.

All slots were shared out anew and all keys offered anew, 10,000 of them, for each that came or
left: 250 workers that started together took the broker's loop for 19 s. Found by calls that each
named another consumer. The bounds are far from what it takes; what is checked is that it comes to
the same.
"""

from __future__ import annotations

import random

from octavo.broker.state.cursor import Cursor
from octavo.broker.subscriptions.keys import KeyOrder
from octavo.broker.subscriptions.slots import Slots, hash_of, slot_of


def test_a_change_comes_to_the_same_as_all_anew() -> None:
    rng = random.Random(1)
    names = [f"c{number}" for number in range(60)]
    slots = Slots()
    for _ in range(200):
        there = rng.sample(names, rng.randrange(len(names)))
        slots = Slots(there, slots)
        anew = Slots(there)
        assert slots.names == anew.names
        assert slots.ranges() == anew.ranges()
        for slot in rng.sample(range(65_536), 20):
            assert slots.owner(slot) == anew.owner(slot)


def test_each_gets_the_keys_of_its_slots_however_they_change() -> None:
    rng = random.Random(2)
    names = [f"c{number}" for number in range(20)]
    cursor, count = Cursor(), 300
    keys = KeyOrder(cursor, 10 * count)
    keys.belong_to(names[:1])
    hashes = [hash_of(b"%d" % (offset % 90)) for offset in range(count)]
    look = keys.wanted(names[0], count)
    assert look is not None
    keys.learn(look, enumerate(hashes), count)
    given: list[int] = []
    for _ in range(400):
        there = rng.sample(names, rng.randrange(1, len(names)))
        keys.belong_to(there)
        held = sum(map(len, keys._offers.values()))
        assert held <= 3 * 90, "what is over is let go"
        who = rng.choice(there)
        taken = keys.take(who, 2)
        for offset in taken:
            assert Slots(there).owner(slot_of(hashes[offset])) == who
            cursor.ack(offset, offset + 1)
        for offset in taken:
            keys.acked(offset)
        given += taken
    keys.belong_to(["last"])
    while taken := keys.take("last", 50):
        for offset in taken:
            cursor.ack(offset, offset + 1)
            keys.acked(offset)
        given += taken
    assert sorted(given) == [*range(count)]
    for one in set(hashes):
        of_key = [offset for offset in given if hashes[offset] == one]
        assert of_key == sorted(of_key)


def test_one_that_comes_moves_few() -> None:
    names = [f"c{number}" for number in range(300)]
    before = Slots(names)
    after = Slots([*names, "new"], before)
    moved = sum(before.owner(slot) != after.owner(slot) for slot in range(65_536))
    assert 0 < moved < 65_536 // 100
