"""The state machine that Hypothesis drives: any operation, at any time, with others in progress."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.engine_model.engine import ENTRIES, SLOTS, Engine

STEPS_OF_ONE = 60
HISTORIES_OF_A_PIECE = 50

slots = st.integers(0, SLOTS - 1)
firsts = st.integers(0, ENTRIES - 1)
waits = st.booleans()


class EngineMachine(RuleBasedStateMachine):
    histories = 0
    steps = 0
    deaths = 0

    engine: Engine

    def _step(self) -> Engine:
        EngineMachine.steps += 1
        return self.engine

    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed: int) -> None:
        EngineMachine.histories += 1
        self.engine = Engine(seed)

    @rule(slot=slots, first=firsts, count=st.integers(1, 4), wait=waits)
    def add(self, slot: int, first: int, count: int, wait: bool) -> None:
        self._step().add(slot, first, count, recovery=False, wait=wait)

    @rule(slot=slots, first=firsts, count=st.integers(1, 4), wait=waits)
    def recovery_add(self, slot: int, first: int, count: int, wait: bool) -> None:
        self._step().add(slot, first, count, recovery=True, wait=wait)

    @rule(slot=slots, wait=waits)
    def fence(self, slot: int, wait: bool) -> None:
        engine = self._step()
        engine.do(engine.fence(slot), wait=wait)

    @rule(slot=slots, lac=firsts, wait=waits)
    def set_lac(self, slot: int, lac: int, wait: bool) -> None:
        engine = self._step()
        engine.do(engine.set_lac(slot, lac), wait=wait)

    @rule(slot=slots, by_collector=st.booleans(), wait=waits)
    def delete(self, slot: int, by_collector: bool, wait: bool) -> None:
        self._step().delete(slot, by_collector=by_collector, wait=wait)

    @rule(wait=waits)
    def checkpoint(self, wait: bool) -> None:
        engine = self._step()
        engine.do(engine.storage.checkpoint(), wait=wait)

    @rule(compact=st.booleans(), wait=waits)
    def collect(self, compact: bool, wait: bool) -> None:
        self._step().collect(compact=compact, wait=wait)

    @rule(settled=st.booleans())
    def look(self, settled: bool) -> None:
        self._step().look(settled=settled)

    @rule()
    def restart(self) -> None:
        self._step().restart()

    @rule(power=st.booleans(), after_us=st.integers(0, 2000), rng_seed=st.integers(0, 2**16))
    def die(self, power: bool, after_us: int, rng_seed: int) -> None:
        self._step().die(power=power, after_us=after_us, seed=rng_seed)

    def teardown(self) -> None:
        engine = self.engine
        engine.look(settled=True)
        engine.die(power=True, after_us=0, seed=1)
        EngineMachine.deaths += engine.deaths
        errors = list(engine.loop.errors)
        engine.loop.close()
        assert not errors, errors


class Disagreement(AssertionError):
    """The engine did what the model forbids; has the seed and the shortest history found."""


class Piece(NamedTuple):
    histories: int
    steps: int
    deaths: int


def run(histories: int, its_seed: int, *, shrink: bool = True) -> Piece:
    EngineMachine.histories = EngineMachine.steps = EngineMachine.deaths = 0
    machine = type("Seeded", (EngineMachine,), {})
    seed(its_seed)(machine)
    how = settings(
        max_examples=histories,
        stateful_step_count=STEPS_OF_ONE,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(machine, settings=how)
    except Exception as error:
        story = "\n".join(getattr(error, "__notes__", ()))
        what = f"seed {its_seed}: {type(error).__name__}: {error}"
        raise Disagreement(f"{what}\n{story}") from error
    return Piece(EngineMachine.histories, EngineMachine.steps, EngineMachine.deaths)


def run_piece(number: int) -> Piece:
    return run(HISTORIES_OF_A_PIECE, number)
