"""Exclusive access of a producer: which producer has it, when it is lost, and what is durable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.errors import ExclusiveProducer, ProducerBusy, StaleProducerAccess
from octavo.broker.state.format import State, access_op, encode, snapshot
from octavo.broker.state.producers import Access, AccessState

SESSION_MS = 1_000


def acquire(access: Access, who: str, now_ms: int = 0, *, fencing: bool = False) -> int:
    return access.acquire(who, now_ms, session_ms=SESSION_MS, fencing=fencing).epoch


def test_one_has_it_and_others_are_told() -> None:
    access = Access(AccessState())
    access.check(None, 0)
    with pytest.raises(StaleProducerAccess, match="nobody has it"):
        access.check(1, 0)
    epoch = acquire(access, "a")
    access.check(epoch, 10)
    with pytest.raises(ExclusiveProducer, match="'a' alone"):
        access.check(None, 10)
    with pytest.raises(ProducerBusy, match="'a' alone") as busy:
        acquire(access, "b", 20)
    assert busy.value.left_ms == SESSION_MS - 10
    for wrong in (epoch - 1, epoch + 1):
        with pytest.raises(StaleProducerAccess, match="'a' has it"):
            access.check(wrong, 20)


def test_the_same_name_again_fences_its_former_self() -> None:
    access = Access(AccessState())
    first = acquire(access, "a")
    second = acquire(access, "a")
    assert second > first
    access.check(second, 0)
    with pytest.raises(StaleProducerAccess):
        access.check(first, 0)


def test_who_is_silent_may_be_followed_and_who_fences_waits_for_nobody() -> None:
    access = Access(AccessState())
    first = acquire(access, "a")
    access.check(first, SESSION_MS - 1)
    with pytest.raises(ProducerBusy):
        acquire(access, "b", 2 * SESSION_MS - 2)
    access.check(first, 5 * SESSION_MS)  # late, but no other producer has followed
    second = acquire(access, "b", 6 * SESSION_MS)
    third = acquire(access, "c", 6 * SESSION_MS, fencing=True)
    assert first < second < third
    with pytest.raises(StaleProducerAccess):
        access.check(second, 6 * SESSION_MS)


def test_released_once_and_by_its_holder() -> None:
    access = Access(AccessState())
    epoch = acquire(access, "a")
    with pytest.raises(StaleProducerAccess):
        access.release(epoch - 1)
    assert access.release(epoch) == AccessState(epoch + 1, "")
    assert access.release(epoch) is None, "the answer was lost, and the call made again"
    access.check(None, 0)
    assert acquire(access, "b") == epoch + 2
    with pytest.raises(StaleProducerAccess):
        access.release(epoch)


def test_with_a_new_owner_its_holder_has_its_time_anew() -> None:
    epoch = 7
    access = Access(AccessState(epoch, "a", SESSION_MS))
    with pytest.raises(ProducerBusy):
        acquire(access, "b", 50_000)
    access.check(epoch, 50_500)
    with pytest.raises(ProducerBusy):
        acquire(access, "b", 51_499)
    assert acquire(access, "b", 51_500) == epoch + 1


STEPS = st.lists(
    st.tuples(st.sampled_from(["acquire", "fence", "release", "publish", "plain", "time", "owner"]),
              st.sampled_from("abc")),
    max_size=50,
)  # fmt: skip


@given(STEPS)
def test_one_epoch_is_one_producers_and_never_comes_back(steps: list[tuple[str, str]]) -> None:
    access, now_ms, log = Access(AccessState()), 0, [encode([["v", 1]])]
    mine: dict[str, int] = {}
    given_to: dict[int, str] = {}
    stored: list[int] = []
    for what, who in steps:
        now_ms += 1
        try:
            if what in ("acquire", "fence"):
                epoch = acquire(access, who, now_ms, fencing=what == "fence")
                log.append(encode([access_op(access.state)]))
                assert epoch not in given_to
                mine[who] = epoch
                given_to[epoch] = who
            elif what == "release":
                access.release(mine.get(who, 0))
                log.append(encode([access_op(access.state)]))
            elif what == "publish":
                access.check(mine.get(who, 0), now_ms)
                stored.append(mine[who])
            elif what == "plain":
                access.check(None, now_ms)
                assert not access.state.producer
            elif what == "time":
                now_ms += SESSION_MS
            else:
                state = State()
                for entry in log:
                    state.apply(entry)
                assert state.access == access.state
                access = Access(state.access)
                log = [*snapshot([], [], 0, access=state.access), *log[-1:]]
        except (ProducerBusy, StaleProducerAccess, ExclusiveProducer):
            pass
    assert stored == sorted(stored), "nothing of an earlier epoch lies behind a later one"
