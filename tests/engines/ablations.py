"""The plugin with one clause left out, each in a class: every one of them must be caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidegate_engines.vllm.lost import LostBlocks
from tidegate_engines.vllm.tables import reach
from tidegate_engines.vllm.versions import Engine, StaleEngine, TellingEngine

#: Random runs of which at least one breaks when a clause is left out: some show in one of a hundred only.
RUNS = 300


def first_broken(breaks: Callable[[int], object]) -> tuple[bool, str]:
    """Whether one of ``RUNS`` runs breaks, in words too. Those after the first that does are not run."""
    for seed in range(RUNS):
        if breaks(seed):
            return True, f"broken in run {seed + 1} of {RUNS}"
    return False, f"none of {RUNS} runs broken"


class NoRequeue(LostBlocks):
    """Requests that lost a block go on."""

    def _requeue(self, hit):
        pass


class NoDrop(LostBlocks):
    """What a hit request has under way is used."""

    def __init__(self, scheduler, job, engine: Engine, run: int):
        super().__init__(scheduler, job, engine, run)
        if isinstance(engine, StaleEngine):
            engine.requeue = lambda scheduler, request, now: Engine.requeue(
                engine, scheduler, request, now
            )

    def _drop(self, hit):
        pass


class DropOneStep(LostBlocks):
    """Only the step that arrives is dropped, not the one behind it."""

    def _drop(self, hit):
        for flight in list(self.flights)[:1]:
            flight.dropped |= hit & flight.output.num_scheduled_tokens.keys()


class NoDisown(LostBlocks):
    """The prefix cache is left as it is."""

    def _disown(self, disowned):
        pass


class DisownLostOnly(LostBlocks):
    """Only the lost blocks leave the prefix cache, not what was written from them."""

    def _lose(self, lost):
        hit, _ = self._reach(lost)
        self._requeue(hit)
        self._drop(hit)
        self._disown(lost)
        self._withhold(lost)


class NoWithhold(LostBlocks):
    """Lost ids may be allocated at once."""

    def _withhold(self, lost):
        pass

    def _give_back(self, back):
        pass


class DirectHoldersOnly(LostBlocks):
    """Whoever holds a block that was written from a lost one, but no lost one, goes on."""

    def _reach(self, lost):
        hit, disowned = set(), set(lost)
        tables = [(name, self._table(name)) for name in self.scheduler.requests]
        for flight in self.flights:
            tables += [*flight.within.items(), *flight.parted.items()]
        for name, table in tables:
            places = [place for part in table if (place := part.place(lost, None)) is not None]
            if places:
                hit.add(name)
                disowned |= {block for part in table for block in part.since(min(places))}
        return hit, disowned


class NoParted(LostBlocks):
    """Requests that gave their blocks up while their step was under way are forgotten."""

    def parting(self, request):
        self._published.pop(request.request_id, None)
        said = self._said.pop(request.request_id, None)
        if said is not None:
            self.job.forget(said.number)


class NoWithin(LostBlocks):
    """Blocks that left a window while the step that reads them was under way are forgotten."""

    def _within(self, name):
        return []


class FirstGroupOnly(LostBlocks):
    """Only what is lost of the first group of layers is anybody's loss."""

    def _table(self, name):
        return super()._table(name)[:1]

    def _within(self, name):
        return []


class OwnGroupOnly(LostBlocks):
    """Only later blocks of the group that lost one were written from garbage."""

    def _reach(self, lost):
        tables = [(name, self._table(name)) for name in self.scheduler.requests]
        for flight in self.flights:
            tables += [*flight.within.items(), *flight.parted.items()]
        alone = [((name, at), [part]) for name, table in tables for at, part in enumerate(table)]
        hit, disowned = reach(alone, lost)
        return {name for name, _ in hit}, disowned


class KeepPrevious(LostBlocks):
    """A request resumed in the very next step is taken for one that never stopped."""

    def __init__(self, scheduler, job, engine: Engine, run: int):
        super().__init__(scheduler, job, engine, run)
        original = engine.requeue

        def requeue(scheduler, request, now):
            held = set(scheduler.prev_step_scheduled_req_ids)
            original(scheduler, request, now)
            scheduler.prev_step_scheduled_req_ids |= held

        engine.requeue = requeue


class TellNobody(LostBlocks):
    """Workers are not told that a request has left."""

    def __init__(self, scheduler, job, engine: Engine, run: int):
        super().__init__(scheduler, job, engine, run)
        engine.tell_preempted = lambda output, requeued: None


class KeepPlaceholders(LostBlocks):
    """The request still counts output that will never come."""

    def __init__(self, scheduler, job, engine: Engine, run: int):
        super().__init__(scheduler, job, engine, run)
        engine.drop_in_flight = lambda request: None


class KeepDiscards(LostBlocks):
    """Outputs that a reset told vLLM to discard are taken away, and discarded again."""

    def __init__(self, scheduler, job, engine: Engine, run: int):
        super().__init__(scheduler, job, engine, run)

        def drop_in_flight(request):
            request.num_output_placeholders = 0

        engine.drop_in_flight = drop_in_flight


class NobodyPasses(LostBlocks):
    """A request that could not run even alone keeps all behind it waiting."""

    def about_to_schedule(self):
        self._aside._knows = False
        super().about_to_schedule()


@dataclass(frozen=True)
class Ablation:
    """A clause left out, and where the engine itself does not stand in for it."""

    plugin: type[LostBlocks]
    #: Only with a step scheduled ahead, or only without the second model runner, ...
    asynchronous: tuple[bool, ...] = (False, True)
    second_runner: tuple[bool, ...] = (False, True)
    #: The ways of vLLM that do not do it themselves.
    ways: tuple[type[Engine], ...] = (Engine, TellingEngine, StaleEngine)
    #: The traffic that shows it.
    traffic: tuple[tuple[str, object], ...] = ()


#: Where output under way is counted in steps, not marked stale.
COUNTED = (Engine, TellingEngine)

#: Full attention and two groups with a window, at whose edge blocks go by every few tokens.
HYBRID = (("windows", (None, 6, 6)), ("blocks", 110), ("reclaim", 0.02))
#: The same for many requests of few prefixes, of which one reads what another has written.
SHARED = (
    ("windows", (None, 30, 30)),
    ("blocks", 170),
    ("reclaim", 0.03),
    ("requests", 30),
    ("running", 6),
    ("token_budget", 64),
)

TIGHT = (("blocks", 34), ("abort", 0.05), ("reclaim", 0.02))

ABLATIONS = [
    Ablation(NoRequeue),
    Ablation(NoDrop),
    Ablation(DropOneStep, asynchronous=(True,), ways=COUNTED),
    Ablation(NoDisown),
    Ablation(DisownLostOnly),
    Ablation(NoWithhold),
    Ablation(NoParted, asynchronous=(True,), traffic=(*TIGHT, ("run", 1))),
    # From 0.26 on vLLM itself keeps what steps under way read.
    Ablation(NoWithin, asynchronous=(True,), ways=(Engine,), traffic=HYBRID),
    Ablation(FirstGroupOnly, traffic=HYBRID),
    # Not seen to matter in 300 runs of 0.33.0; `test_vllm_offline.py` has a case of its own.
    Ablation(OwnGroupOnly, asynchronous=(True,), ways=(Engine,), traffic=SHARED),
    Ablation(KeepPrevious, asynchronous=(True,), second_runner=(False,)),
    Ablation(
        TellNobody, second_runner=(True,), ways=(Engine,), traffic=(("priorities", True),)
    ),
    Ablation(KeepPlaceholders, asynchronous=(True,), traffic=TIGHT),
    Ablation(
        KeepDiscards,
        asynchronous=(True,),
        ways=COUNTED,
        traffic=(("resets", 0.05), ("reclaim", 0.02)),
    ),
]
