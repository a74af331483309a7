"""``scripts/coserve schedule --background``: background requests in vLLM's real scheduler, in random runs.

A run has two engines that are given the same users' requests, aborts, resets and pauses: one with background requests
and the plugin, one with neither. The worker is that of ``tests/engines/fake.py``: a token is computed from every slot of
its request, so a block that two requests write, or that is read too early, makes a wrong token. What is right is computed
from tokens alone. Whether users were disturbed is told from vLLM's own tables and steps.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import riders
import vllm
from fake import VOCABULARY, Engine, Gpu, SecondWorker, Worker, truth
from harness import LONGEST, make_request, make_scheduler
from harness import Case as Shape
from tidegate_engines import coserve_abi
from tidegate_engines.vllm.background import scheduler as plugin
from vllm.lora.request import LoRARequest
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request, RequestStatus

#: Iterations of the core's loop after which a run is stuck.
STUCK = 6_000

#: Figures that are to be zero.
ZERO = (
    "wrong_answers",
    "preempted_users",
    "refused_users",
    "late_users",
    "beside_prompts",
    "over_budget",
    "missing",
    "leaked_blocks",
    "gave_up",
    "crashed",
)


@dataclass(frozen=True)
class Case:
    """What one run is of; all else follows from the seed."""

    seed: int
    shape: Shape
    #: Who decides: the library, or one that says anything.
    library: bool = False
    #: Chance at each call that the library fails.
    faults: float = 0.0
    adapters: bool = False
    pauses: float = 0.0


def case(seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(f"coserve {seed}")
    kind = rng.choice(("plain", "plain", "memory", "priorities", "caching", "resets", "adapters", "pauses", "faults", "usual"))
    shape = Shape(
        seed,
        asynchronous=rng.random() < 0.5,
        second_runner=rng.random() < 0.5,
        blocks={"memory": 34, "usual": 24}.get(kind, rng.choice((40, 48, 80))),
        block_size=16 if kind == "usual" else 4,
        token_budget=64 if kind == "usual" else 24,
        requests=10,
        running=rng.choice((3, 4, 6)),
        abort=0.03 if rng.random() < 0.3 else 0.0,
        prefix_caching=kind in ("caching", "resets", "usual"),
        priorities=kind == "priorities",
        resets=0.03 if kind == "resets" else 0.0,
        plugin=False,
    )
    return Case(
        seed,
        shape,
        library=rng.random() < 0.5,
        faults=0.02 if kind == "faults" else 0.0,
        adapters=kind == "adapters",
        pauses=0.05 if kind == "pauses" else 0.0,
    )


class Anything:
    """In the library's place: says anything that the library might say, and may fail."""

    def __init__(self, rng: random.Random, faults: float, inner: coserve_abi.Coserve | None) -> None:
        self._rng, self._faults, self._inner = rng, faults, inner
        self.said = (0, 0)

    def _fails(self) -> None:
        if self._rng.random() < self._faults:
            raise coserve_abi.CoserveError("tg_coserve_rides: a fault of the judge's")

    def rides(self, ask: coserve_abi.Ask) -> Any:
        self._fails()
        if self._inner is not None:
            found = self._inner.rides(ask)
        elif ask.prompts or self._rng.random() < 0.2:
            found = coserve_abi.Rides()
        else:
            rows = self._rng.randint(0, ask.background)
            prompt = self._rng.choice((0, self._rng.randint(0, ask.prompt), ask.prompt))
            found = coserve_abi.Rides(rows=rows, prompt=prompt)
        self.said = found.rows, found.prompt
        return found

    def rode(self, step: coserve_abi.Step) -> None:
        self._fails()
        if self._inner is not None:
            self._inner.rode(step)

    def see(self, *seen: int) -> None:
        self._fails()
        if self._inner is not None:
            self._inner.see(*seen)


class Side:
    """One of the two engines."""

    def __init__(self, case: Case, figures: Counter[str], with_plugin: bool) -> None:
        shape = case.shape
        self.case, self.figures = case, figures
        self.rng = random.Random(f"{case.seed} steps")
        self.gpu = Gpu(shape.blocks, shape.block_size, random.Random(case.seed))
        self.scheduler: Any = make_scheduler(shape, shape.blocks)
        if case.adapters:
            self.scheduler.lora_config = SimpleNamespace(max_loras=2)
        self.now = 0
        self.state: plugin.Background | None = None
        if with_plugin:
            config = coserve_abi.Config(kind=coserve_abi.SHARES, ttft_share=5_000, tpot_share=5_000)
            inner = coserve_abi.Coserve(config) if case.library else None
            self.decider = Anything(random.Random(f"{case.seed} rides"), case.faults, inner)
            self.state = plugin.Background(self.scheduler, self.decider, lambda: self.now)
            self.state.watch()
        worker = SecondWorker if shape.second_runner else Worker
        slots = (shape.running,) if shape.second_runner else ()
        self.worker = worker(self.gpu, shape.asynchronous, lambda: None, *slots)
        self.engine = Engine(self.scheduler, self.worker, self.rng, 2 if shape.asynchronous else 1)
        self.got: dict[str, list[int]] = {}
        #: Users' rows of each step, and whom vLLM preempted.
        self.steps: list[list[tuple[str, int]]] = []
        self.resetting = False
        self._listen()

    def _listen(self) -> None:
        scheduler, manager = self.scheduler, self.scheduler.kv_cache_manager
        schedule, allocate, preempt = scheduler.schedule, manager.allocate_slots, scheduler._preempt_request

        def on_schedule(*args: Any, **kwargs: Any) -> Any:
            self.decided = False
            if self.state is not None:
                self.decider.said = (0, 0)
            output = schedule(*args, **kwargs)
            self._judge(output)
            return output

        def on_allocate(request: Request, *args: Any, **kwargs: Any) -> Any:
            found = allocate(request, *args, **kwargs)
            if found is None and not background(request.request_id) and self._held():
                self.figures["refused_users"] += 1
            return found

        def on_preempt(request: Request, *args: Any, **kwargs: Any) -> Any:
            if not self.resetting and not background(request.request_id) and self._held():
                self.figures["preempted_users"] += 1
            return preempt(request, *args, **kwargs)

        scheduler.schedule, manager.allocate_slots, scheduler._preempt_request = on_schedule, on_allocate, on_preempt

    def _held(self) -> bool:
        """Whether a background request has blocks, while the plugin says who rides."""
        if self.state is None or not self.state.on:
            return False
        tables = self.scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks
        return any(background(name) and blocks for name, blocks in tables.items())

    def _judge(self, output: Any) -> None:
        """What a step holds."""
        counts = output.num_scheduled_tokens
        users = [(name, count) for name, count in counts.items() if not background(name)]
        if counts:
            self.steps.append(users)
        mine = sum(count for name, count in counts.items() if background(name))
        if not mine or self.state is None or not self.state.on:
            return
        self.figures["background_tokens"] += mine
        new = {one.req_id for one in output.scheduled_new_reqs} | set(output.scheduled_cached_reqs.resumed_req_ids)
        reads = any(count > 1 or name in new for name, count in users)
        waits = any(not background(one.request_id) for one in self.scheduler.waiting)
        self.figures["beside_users"] += bool(users)
        self.figures["beside_prompts"] += reads or waits
        self.figures["over_budget"] += mine > sum(self.decider.said)

    def request(self, name: str, script: Script) -> None:
        more: dict[str, Any] = {}
        if script.adapter:
            more["lora_request"] = LoRARequest(f"adapter {script.adapter}", script.adapter, "/none")
        arrival = float(script.number)
        self.got[name] = []
        request = make_request(
            self.case.shape, name, list(script.prompt), script.tokens, arrival, priority=script.priority, **more
        )
        self.scheduler.add_request(request)

    def step(self, took: int) -> None:
        self.now += took
        for name, tokens in self.engine.step().items():
            self.got[name] += tokens

    def busy(self) -> bool:
        return bool(self.scheduler.has_requests() or self.engine.queue)


@dataclass(frozen=True)
class Script:
    """A request of a run."""

    number: int
    prompt: tuple[int, ...]
    tokens: int
    priority: int
    adapter: int


def background(name: str) -> bool:
    """By the judge's own names."""
    return name.startswith("background")


def scripts(case: Case, rng: random.Random) -> dict[str, Script]:
    """All requests, in the order in which they come."""
    prefixes = [[rng.randrange(VOCABULARY) for _ in range(rng.randint(4, 40))] for _ in range(3)]
    kinds = ["user"] * case.shape.requests + ["background"] * rng.randint(3, 12)
    rng.shuffle(kinds)
    found = {}
    for number, kind in enumerate(kinds):
        tail = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 30))]
        prompt = (rng.choice(prefixes) + ([] if rng.random() < 0.3 else tail))[: LONGEST - 40]
        urgent = -rng.randint(0, 3) if case.shape.priorities else 0
        priority = rng.randint(1, 3) if kind == "background" else urgent
        adapter = rng.randint(0, 4) if case.adapters else 0
        found[f"{kind}-{number}"] = Script(number, tuple(prompt), rng.randint(1, 30), priority, adapter)
    return found


def run(case: Case, figures: Counter[str]) -> None:
    """One run, counted."""
    rng = random.Random(f"{case.seed} run")
    with_all, alone = Side(case, figures, True), Side(case, figures, False)
    all_of = scripts(case, rng)
    waiting = list(all_of)
    aborted: set[str] = set()
    paused, steps = 0, 0
    # Without a prefix cache users' steps are the same to the row: what is found in a cache depends on what was evicted.
    same = not case.shape.prefix_caching
    while waiting or paused or with_all.busy() or alone.busy():
        while waiting and rng.random() < 0.3:
            name = waiting.pop(0)
            for side in (with_all, alone) if not background(name) else (with_all,):
                side.request(name, all_of[name])
        if rng.random() < case.shape.abort and len(all_of) > len(waiting):
            name = rng.choice(list(all_of)[: len(all_of) - len(waiting)])
            aborted.add(name)
            for side in (with_all, alone):
                side.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        if rng.random() < case.shape.resets:
            for side in (with_all, alone):
                side.resetting = True
                side.scheduler.reset_prefix_cache(reset_running_requests=True)
                side.resetting = False
        if paused == 0 and rng.random() < case.pauses:
            paused = rng.randint(1, 20)
            kind = rng.choice((PauseState.PAUSED_NEW, PauseState.PAUSED_ALL))
            for side in (with_all, alone):
                side.scheduler.set_pause_state(kind)
        elif paused:
            paused -= 1
            if paused == 0:
                for side in (with_all, alone):
                    side.scheduler.set_pause_state(PauseState.UNPAUSED)
        took = rng.randint(5_000_000, 30_000_000)
        before = len(with_all.steps), len(alone.steps)
        for side in (with_all, alone):
            side.step(took)
        if same and with_all.state is not None and with_all.state.on:
            ours = [step for step in with_all.steps[before[0] :] if step]
            theirs = [step for step in alone.steps[before[1] :] if step]
            if ours != theirs:
                figures["late_users"] += 1
                return
        steps += 1
        if steps > STUCK:
            raise TimeoutError("no progress")
    settle(case, with_all, all_of, aborted, figures)


def settle(case: Case, side: Side, all_of: dict[str, Script], aborted: set[str], figures: Counter[str]) -> None:
    """Counts answers, and what is left over."""
    for name, script in all_of.items():
        right, got = truth(script.prompt, script.tokens), side.got[name]
        if got != right[: len(got)]:
            figures["wrong_answers"] += 1
        elif len(got) < len(right) and name not in aborted:
            figures["missing"] += 1
        else:
            figures["background_answers" if background(name) else "users_answers"] += 1
    pool = side.scheduler.kv_cache_manager.block_pool
    state = side.state
    assert state is not None
    figures["given_up" if case.faults else "gave_up"] += not state.on
    left = case.shape.blocks - 1 - pool.get_num_free_blocks()
    left += len(side.scheduler.requests) + len(state.held) + sum(not one.is_finished() for one in state.admitted.values())
    figures["leaked_blocks"] += left


def judge(seeds: range, clause: str = "") -> int:
    """Runs these, with a clause left out or none; prints what was found. 1 if something is wrong."""
    if clause:
        riders.CLAUSES[clause]()
    figures: Counter[str] = Counter()
    said: list[str] = []
    for seed in seeds:
        before = {name: figures[name] for name in ZERO}
        figures["cases"] += 1
        try:
            run(case(seed), figures)
        except Exception as error:  # noqa: BLE001 # whatever ends the engine
            figures["crashed"] += 1
            said.append(f"seed {seed}: {type(error).__name__}: {error}")
        worse = [f"{figures[name] - count} {name}" for name, count in before.items() if figures[name] > count]
        if worse:
            said.append(f"seed {seed}: {', '.join(worse)} ({case(seed)})")
            if clause:
                break
    line = {"what": "schedule", "version": os.environ.get("COSERVE_VERSION", vllm.__version__), "without": clause}
    line |= {name: figures[name] for name in ("cases", *ZERO)}
    line |= {name: figures[name] for name in sorted(figures)}
    print(json.dumps(line), flush=True)
    for text in said[:3]:
        print(f"coserve: schedule: {text[:200]}", file=sys.stderr, flush=True)
    empty = [name for name in ("background_answers", "users_answers", "beside_users") if not figures[name]]
    if empty and not said and not clause:
        said.append(f"the runs are empty: no {empty[0]}")
        print(f"coserve: schedule: {said[0]}", file=sys.stderr)
    return int(bool(said))


def ablations(seeds: range) -> int:
    """Each clause left out in turn, in a process of its own; 1 if the runs pass without one, or fail with all."""
    failed = 0
    for clause in ("", *riders.CLAUSES):
        if clause == "told" and os.environ.get("COSERVE_VERSION") != "0.24.0":
            continue  # later versions tell workers of each preemption themselves
        child = os.fork()
        if child == 0:
            os._exit(judge(seeds, clause))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if (code == 0) != (clause == ""):
            failed = 1
            print(f"coserve: schedule: {f'without {clause}' if clause else 'with all'}: exit {code}", file=sys.stderr)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without", choices=sorted(riders.CLAUSES), default="")
    parser.add_argument("--ablations", action="store_true")
    given = parser.parse_args()
    runs = given.runs or (200 if given.ablations or given.without else 2_000)
    seeds = range(given.seed, given.seed + runs)
    return ablations(seeds) if given.ablations else judge(seeds, given.without)


if __name__ == "__main__":
    import logging

    logging.disable(logging.CRITICAL)
    sys.exit(main())
