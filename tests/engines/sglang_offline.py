"""An offline SGLang whose KV memory is taken and given back at random, in the middle of steps.

SGLang's real scheduler, worker, allocator and prefix cache compute a GPT-2 of two layers on the CPU. What judges them
has none of their facts: answers and KV are computed from tokens alone (``sglang_truth``), the memory and its owner are
``sglang_memory`` and ``offline_agent``, and an answer is what SGLang sends to its tokenizer.

    python sglang_offline.py SEEDS MODE/KIND/CLAUSE,CLAUSE...

prints one JSON line for each clause that is left out; without a name, for the plugin whole.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import traceback
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from sglang_rig import load, make, request, stand_in  # first: it says where the plugin is

from offline_agent import Agent
from sglang_ablations import ABLATIONS, ALIKE, PAUSES, RUNS, SHORT_PROMPTS, USUAL, Traffic
from sglang_memory import Late, Memory
from sglang_truth import Model
from tax import Handed

#: Two layers: what the second one writes depends upon what is read of the first.
MODEL = {"n_layer": 2}

#: Iterations of the loop after which a run without an end is one.
PATIENCE = 6_000

#: How far apart f32 and f64 may be, and by how much each token of an answer has to be the most likely one.
CLOSE, CLEAR = 2e-3, 2e-3

#: Whether this SGLang has a record of a request's slots: later ones have.
RECORDS = "checkpoint_kv_cache" in (Path(find_spec("sglang").origin).parent / "srt/mem_cache/common.py").read_text()


@dataclass(frozen=True)
class Kind:
    """An engine: its memory, in slots, and what else is set. Its traffic is so long that it shares whole pages."""

    page: int = 1
    total: int = 288
    #: Of a block at the least: few, so that a request's lie in many.
    run: int = 4
    #: Tokens that prompts have in common, at the most.
    prefix: int = 48
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def longest(self) -> int:
        """Prompt and answer of the longest request, in tokens."""
        return self.prefix + 52


KINDS = {
    "pages of 1": Kind(),
    "no prefix cache": Kind(arguments={"disable_radix_cache": True}),
    # The block is two pages, as it is where nothing is set; else it is a page.
    "pages of 8": Kind(8, total=400, run=16),
    "pages of 64": Kind(64, total=64 * 18, prefix=144, arguments={"chunked_prefill_size": 64}),
    **({"prefix cache in Python": Kind()} if RECORDS else {}),
}

#: More of them, to be run by hand (``sglang_offline.py SEEDS "overlap/pages of 16/"``).
BY_HAND = {
    "pages of 8, each a block": Kind(8),
    "pages of 16": Kind(16),
    "pages of 32": Kind(32, total=32 * 18, prefix=80, arguments={"chunked_prefill_size": 32}),
    "pages of 128": Kind(128, total=128 * 14, prefix=272, arguments={"chunked_prefill_size": 128}),
}


class End(Exception):
    """Of a run."""


class Library:
    """What the plugin would call."""

    def __init__(self) -> None:
        self.regions: list = []
        self.gone = False
        self.scopes = 0

    def role(self, wait_s: float) -> str:
        return "offline"

    def attach(self, rank: int, world: int) -> None:
        assert (rank, world) == (0, 1)

    def begin_scope(self, handle_bytes: int, flags: int) -> None:
        self.scopes += 1

    def end_scope(self) -> None:
        pass

    def register(self, regions: list, protected: int, flags: int) -> int:
        assert (protected, flags) == (1, 0)
        self.regions = regions
        return 7

    def call(self, name: str, *arguments: int, allowed: tuple[int, ...] = ()) -> int:
        assert (name, arguments) == ("tg_kv_unregister", (7,))
        self.gone = True
        return 0


class Rig:
    """One scheduler, its memory, its traffic, and the book."""

    def __init__(self, overlap: bool, kind: str) -> None:
        self.kind = (KINDS | BY_HAND)[kind]
        if kind == "prefix cache in Python":
            os.environ["SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"] = "python"
        os.environ["TIDEGATE_ROLE"] = "offline"
        # 0.5.11's own check forgets a prompt between two chunks.
        os.environ["SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY"] = str(int(RECORDS))
        self.library, self.agent = Library(), Agent()
        self.module = load(self.library)
        from tidegate_engines import abi
        from tidegate_engines.sglang import STATE, lost, slots

        lost.PUBLISH_S, slots.RUN = 0.0, self.kind.run
        abi.Offline = lambda library: self.agent
        self.page = self.kind.page
        arguments = {"page_size": self.page, "max_total_tokens": self.kind.total, "max_running_requests": 5}
        self.scheduler = make(self.module, overlap, MODEL, **arguments, **self.kind.arguments)
        assert self.scheduler.enable_overlap == overlap
        self.state = getattr(self.scheduler, STATE)
        self.run_slots = self.state.slots.run
        pool = self.scheduler.token_to_kv_pool_allocator.get_kvcache()
        self.agent.memory = Memory(pool, self.run_slots, self.state.slots.blocks, self._moment)
        self.truth = self._weigh()
        self.report = SimpleNamespace()
        self.handed = Handed()
        self.late: list[Late] = []
        self._listen()

    def _weigh(self) -> Model:
        """Gives the model weights whose answers depend upon what it reads."""
        model = self.scheduler.tp_worker.model_runner.model
        draw = torch.Generator().manual_seed(2)
        named = {name: p for name, p in model.named_parameters() if not name.startswith("lm_head")}
        for name, p in named.items():
            normal = torch.randn(p.shape, generator=draw)
            spread = 1.0 if "wte" in name else 0.3
            p.data.copy_(1 + 0.1 * normal if "ln_" in name and name.endswith("weight") else spread * normal)
        return Model(named, MODEL["n_layer"], 2)

    def _listen(self) -> None:
        scheduler = self.scheduler
        channels = getattr(scheduler, "ipc_channels", scheduler)
        type(channels.send_to_tokenizer).send_output = lambda _, output, *rest: self._sent(output)
        if hasattr(scheduler, "request_receiver"):
            scheduler.request_receiver = SimpleNamespace(recv_requests=self._asked)
        else:
            scheduler.recv_requests = self._asked
        original, steps = scheduler.process_input_requests, scheduler.run_batch
        schedule, use = scheduler.get_next_batch_to_run, scheduler.process_batch_result

        def turned(*args, **kwargs):
            result = original(*args, **kwargs)
            self._check()
            return result

        def scheduled(*args, **kwargs):
            self._moment()
            plan = schedule(*args, **kwargs)
            self._moment()
            return plan

        def ran(batch, *args, **kwargs):
            self.report.steps += 1
            self._hand(batch)
            late = Late(self._rows(batch), list(batch.reqs))
            self.late.append(late)
            late.result = steps(batch, *args, **kwargs)
            self._follow()  # what was taken meanwhile may have been gone before it began
            return late.result

        def used(batch, result, *args, **kwargs):
            self._moment()
            self.late = [late for late in self.late if late.result is not result]
            return use(batch, result, *args, **kwargs)

        scheduler.process_input_requests, scheduler.run_batch = turned, ran
        scheduler.get_next_batch_to_run, scheduler.process_batch_result = scheduled, used

    def _hand(self, batch) -> None:
        """What a step is to compute, by SGLang's own account of it."""
        if batch.forward_mode.is_extend():
            for asked, begin, count in zip(batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True):
                self.handed.part(asked.rid, begin, count)
        elif batch.forward_mode.is_decode():
            for asked, length in zip(batch.reqs, batch.seq_lens_cpu.tolist(), strict=True):
                self.handed.part(asked.rid, length - 1, 1)

    # The owner of the memory.

    def _moment(self) -> None:
        """Between any two pieces of work: now and then a few blocks are taken, as far as the agent would."""
        rng = self.rng
        if self.quiet < 3 and not self.famine and not self.library.gone and rng.random() < self.traffic.reclaim:
            first = self._aim() or rng.randrange(1, self.state.slots.blocks)
            blocks = range(first, min(first + rng.randint(1, self.traffic.blocks), self.state.slots.blocks))
            left = (self.state.slots.blocks - len(self.agent.memory.lost) - len(blocks) - 1) * self.run_slots
            if left > self.kind.longest + 3 * self.page:
                self._take(blocks)

    def _aim(self) -> int:
        """A block of a request of a step under way, rather one that it has given up since; 0: none."""
        if not self.traffic.aimed or self.rng.random() >= self.traffic.aimed:
            return 0
        rows = [(asked, row) for late in self.late for asked, (row, _) in zip(late.asked, late.rows, strict=True) if row]
        left = [slot for asked, row in rows for slot in sorted(set(row) - set(self._row(asked)))]
        slots = left or [slot for _, row in rows for slot in row]
        return self.rng.choice(slots) // self.run_slots if slots else 0

    def _row(self, asked) -> list[int]:
        table, ways = self.scheduler.req_to_token_pool.req_to_token, self.state.ways
        row = ways.row(asked)
        return [] if row is None else table[row, : ways.held(asked)].tolist()

    def _take(self, blocks) -> None:
        """A step whose results have not been used may still be running on a GPU: it reads what is taken now."""
        self.agent.take(blocks)
        self._follow()

    def _follow(self) -> None:
        self.agent.memory.follow(self.late, self.rng)

    def _rows(self, batch) -> list[tuple[list[int], int]]:
        """By request of a step: the slots that it reads, and where in them those begin that it writes."""
        written = set(batch.out_cache_loc.tolist())
        rows = [self._row(asked) for asked in batch.reqs]
        return [(row, next((i for i, slot in enumerate(row) if slot in written), len(row))) for row in rows]

    def _free(self) -> list[int]:
        """Blocks that nobody holds: whoever runs has no room to grow."""
        free = {page * self.page + i for page in self._free_pages() for i in range(self.page)}
        blocks = range(1, self.state.slots.blocks)
        return [b for b in blocks if free.issuperset(range(b * self.run_slots, (b + 1) * self.run_slots))]

    def _free_pages(self) -> list[int]:
        return self.scheduler.token_to_kv_pool_allocator.free_pages.tolist()

    # The traffic.

    def _asked(self, *args, **kwargs) -> list:
        """What comes in an iteration of the loop."""
        from sglang.srt.managers.io_struct import AbortReq

        rng, report, memory = self.rng, self.report, self.agent.memory
        lost = memory.lost
        self.turns += 1
        if self.turns > PATIENCE:
            report.stuck += bool(self.open)
            raise End
        if not self.left and not self.open:
            self.quiet += 1
            if self.quiet > 6:
                raise End
        room = self.kind.total - len(memory.gone())
        needed = min((sum(map(len, self.asked[rid][:2])) for rid in self.open), default=room)
        self.still = self.still + 1 if room >= needed + 3 * self.page and report.steps == self.stepped else 0
        self.stepped = report.steps
        report.stalled += self.still == 30
        if self.famine:
            self.famine -= 1
        elif self.open and not self.library.gone and rng.random() < 0.01:
            # More than an agent would take: nothing fits for a while.
            self.famine = 40
            blocks = self.state.slots.blocks
            most = rng.sample(range(1, blocks), blocks - 1 - 2 * self.kind.longest // self.run_slots // 5)
            self._take(most if rng.random() < 0.3 else self._free())
            report.famines += 1
        if self.quiet == 3:
            self.scheduler.flush_cache()  # idle, with memory away
        if self.quiet > 3:
            self.agent.give(sorted(lost))  # at the end all comes back
        elif self.famine:
            pass
        elif lost and rng.random() < 0.1:
            self.agent.give(rng.sample(sorted(lost), rng.randint(0, len(lost))))
        come: list = []
        while self.left and (self._in_wave() or rng.random() < self.traffic.come):
            self.left -= 1
            come.append(self._new(f"{self.seed}-{self.left}-"))
            if self.traffic.waves:
                break
        if self.open and not self.famine and rng.random() < self.traffic.abort:
            rid = rng.choice(sorted(self.open))
            self.aborted.add(rid)
            come.append(AbortReq(rid=rid))
        if self.traffic.pause:
            come += self._pausing()
        self._moment()
        return come

    def _pausing(self) -> list:
        """An operator's pause, and its end a few turns later."""
        from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput

        if self.paused:
            self.paused -= 1
            return [] if self.paused else [ContinueGenerationReqInput()]
        if not self.open or self.rng.random() >= self.traffic.pause:
            return []
        self.paused = self.rng.randint(1, 4)
        return [PauseGenerationReqInput(mode="retract")]

    def _in_wave(self) -> bool:
        """Whether a wave has begun, and is not over."""
        return bool(self.traffic.waves) and self.left % len(self.traffic.waves) > 0

    def _new(self, rid: str):
        rng, traffic = self.rng, self.traffic
        while True:
            prefix = len(self.prefixes[0])
            if traffic.waves:
                wave, left = divmod(self.left, len(traffic.waves))
                common, own = traffic.waves[-1 - left]
                prompt = self.prefixes[wave][:common] + [rng.randrange(3, 128) for _ in range(own)]
            else:
                prompt = rng.choice(self.prefixes)[: prefix if rng.random() < traffic.whole else rng.randint(1, prefix)]
            if not traffic.waves and rng.random() < traffic.tail:
                prompt = prompt + [rng.randrange(3, 128) for _ in range(rng.randint(1, 15))]
            tokens = rng.randint(1, traffic.tokens)
            answer, closest = self.truth.answer(prompt, tokens)
            if closest > CLEAR:
                break
        self.open.add(rid)
        self.asked[rid] = (prompt, answer, rng.random() < traffic.logprobs)
        self.got[rid] = SimpleNamespace(tokens=[], logprobs=[], prompt=None)
        self.report.requests += 1
        return request(self.module, rid, prompt, tokens, self.asked[rid][2])

    def _sent(self, output) -> None:
        """What SGLang sends to its tokenizer."""
        if not hasattr(output, "finished_reasons"):
            if type(output).__name__ == "AbortReq":
                self._ended(output.rid, aborted=True)
            return
        for i, rid in enumerate(output.rids):
            got = self.got[rid]
            got.tokens += list(output.output_ids[i])
            if output.output_token_logprobs_val and output.output_token_logprobs_val[i]:
                got.logprobs += [float(value) for value in output.output_token_logprobs_val[i]]
            if output.input_token_logprobs_val and output.input_token_logprobs_val[i]:
                got.prompt = [None if v is None else float(v) for v in output.input_token_logprobs_val[i]]
            reason = output.finished_reasons[i]
            if reason:
                self._ended(rid, aborted=(reason["type"] == "abort"))

    def _ended(self, rid: str, aborted: bool) -> None:
        if rid not in self.open:
            self.report.twice += 1
            return
        self.open.discard(rid)
        prompt, answer, logprobs = self.asked[rid]
        got, report = self.got[rid], self.report
        report.ended += 1
        if aborted:
            report.aborted += 1
            report.lost_requests += rid not in self.aborted
            report.wrong += got.tokens != answer[: len(got.tokens)]
            return
        report.short += len(got.tokens) < len(answer) and got.tokens == answer[: len(got.tokens)]
        report.wrong += got.tokens != answer
        # With overlap SGLang has launched one step more before it sees that a request is over.
        beyond = self.handed.reached[rid] - len(prompt) - len(answer)
        report.miscounted += beyond not in ((-1, 0) if self.scheduler.enable_overlap else (-1,))
        if logprobs and got.tokens == answer:
            report.logprobs += 1
            want = self.truth.logprobs([*prompt, *answer])
            said = [*(got.prompt or [])[1:], *got.logprobs]
            near = len(said) == len(want) and all(abs(a - b) < CLOSE for a, b in zip(said, want, strict=True))
            report.wrong_logprobs += not near

    # What has to hold whenever a turn begins, right after a cut.

    def _check(self) -> None:
        free = self._free_pages()
        gone = {slot // self.page for slot in self.agent.memory.gone()}
        self.report.bad_free += len(free) != len(set(free)) or bool(gone & set(free))
        if self.turns % 4 == 0:
            self._check_tree(self.agent.memory.gone())

    def _check_tree(self, gone: set[int]) -> None:
        """What the prefix cache holds is what its tokens make."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        cache = self.scheduler.tree_cache
        if not cache.evictable_size() + cache.protected_size():
            return
        held = set(cache.all_values_flatten().tolist())
        known: set[int] = set()
        for prompt, answer, _ in self.asked.values():
            tokens = (*prompt, *answer)
            match = cache.match_prefix(MatchPrefixParams(key=RadixKey(self._typed(tokens), None)))
            indices = getattr(match, "device_indices", None)
            if indices is None:
                indices = cache.path_device_indices(match.last_device_node)
            new = {slot: at for at, slot in enumerate(indices.tolist()) if slot not in known}
            known.update(new)
            self.report.lost_in_tree += len(gone & new.keys())
            self._check_slots(tokens, {slot: at for slot, at in new.items() if slot not in gone})
        self.report.unknown += len(held - known)

    def _check_slots(self, tokens: tuple[int, ...], slots: dict[int, int]) -> None:
        """These slots hold the keys and values of these tokens, each of the one at its place."""
        if not slots:
            return
        at = list(slots.values())
        layers = zip(self.agent.memory.held(list(slots)), self.truth.compute(tokens)[1], strict=True)
        near = [torch.isclose(have.double(), want[at], atol=CLOSE).flatten(1).all(1) for have, want in layers]
        self.report.poisoned += int((~torch.stack(near).all(0)).sum())
        self.report.slots += len(slots)

    def _typed(self, tokens):
        from array import array

        return array("q", tokens) if hasattr(self.module, "publish") else list(tokens)

    def run(self, seed: int) -> None:
        """One run, of random traffic, until nothing is left."""
        self.seed, self.rng, self.left, self.turns, self.quiet = seed, random.Random(seed), 10, 0, 0
        self.famine, self.still, self.stepped, self.paused = 0, 0, 0, 0
        if self.traffic.waves:
            self.left = len(self.traffic.waves) * self.traffic.prefixes
        length = self.traffic.prefix or self.kind.prefix
        self.prefixes = [[self.rng.randrange(3, 128) for _ in range(length)] for _ in range(self.traffic.prefixes)]
        self.open: set[str] = set()
        self.aborted: set[str] = set()
        self.asked: dict[str, tuple] = {}
        self.got: dict[str, SimpleNamespace] = {}
        try:
            self.scheduler.run_event_loop()
        except End:
            pass
        self._settled()

    def _settled(self) -> None:
        """At the end every slot is free again or in the prefix cache, nothing is published, nothing withheld."""
        scheduler, report, slots = self.scheduler, self.report, self.state.slots
        report.never_came += len(self.open)
        report.produced += sum(len(got.tokens) for got in self.got.values())
        report.unacknowledged += self.agent.acked != len(self.agent.log)
        report.left_over += slots.any() or slots.out != 0 or len(self.state.flights)
        free = scheduler.token_to_kv_pool_allocator.available_size
        report.leaked += self.kind.total - free() - scheduler.tree_cache.evictable_size()
        report.published += len(self.agent.published)
        if self.rng.random() < 0.5:
            scheduler.flush_cache()
            report.leaked += self.kind.total - free()
        else:
            from sglang.srt.mem_cache.base_prefix_cache import EvictParams

            scheduler.tree_cache.evict(EvictParams(num_tokens=self.kind.total))

    def runs(self, seeds: int) -> dict:
        names = (
            "requests steps ended aborted logprobs slots famines wrong wrong_logprobs short lost_requests twice never_came stuck "
            "stalled bad_free lost_in_tree poisoned unknown unacknowledged left_over leaked published "
            "miscounted produced"
        )
        self.handed = Handed()
        self.report = SimpleNamespace(**dict.fromkeys(names.split(), 0))
        before = self.agent.reclaims
        done = 0
        for seed in range(seeds):
            self.run(seed)
            done += 1
            if self.report.stuck or (self.stop_early and (self.broken() or self.library.gone)):
                break
        agent = {"reclaims": self.agent.reclaims - before, "back": self.agent.back, "waits": self.agent.waits}
        tax = {"computed": self.handed.computed, "again": self.handed.again}
        return {**vars(self.report), **agent, **tax, "runs": done, "gone": self.library.gone}

    stop_early = False
    traffic: Traffic = USUAL
    #: What of that which must not happen counts.
    shows: str = ""

    def broken(self) -> int:
        """How much of what must not happen did."""
        return sum(getattr(self.report, name) for name in ([self.shows] if self.shows else BROKEN))


#: What must not happen.
BROKEN = (
    "wrong wrong_logprobs short lost_requests twice never_came stuck stalled bad_free lost_in_tree poisoned unknown "
    "unacknowledged left_over leaked published"
).split()


#: Not a clause, but an error in the plugin: nothing may be wrong then, and nothing more is taken.
FAULT = "an error"

#: Nor are these: the plugin whole, under the traffic that shows a clause.
UNDER = {"short prompts": SHORT_PROMPTS, "alike prompts": ALIKE, "pauses": PAUSES}


def fail_once(state) -> None:
    """Has a state meet something unexpected when memory is taken the third time."""
    original, times = state._reach, []

    def reach(lost):
        times.append(1)
        if len(times) == 3:
            raise AttributeError("something that another version has not")
        return original(lost)

    state._reach = reach


def one(rig: Rig, clause: str, seeds: int) -> dict:
    """Of the plugin whole, or less one clause."""
    if clause == FAULT:
        fail_once(rig.state)
    elif clause in UNDER:
        rig.traffic = UNDER[clause]
    elif clause:
        rig.stop_early, rig.traffic, rig.shows = True, ABLATIONS[clause].traffic, ABLATIONS[clause].shows
        ABLATIONS[clause](rig.state)
    try:
        return {"clause": clause, "crashed": "", **rig.runs(seeds)}
    except Exception as error:  # noqa: BLE001 # whatever an ablated plugin breaks
        traceback.print_exc()
        return {"clause": clause, "crashed": f"{type(error).__name__}: {error}"[:300], **vars(rig.report)}


def _forked(work) -> None:
    """Does it in a process of its own, and waits."""
    child = os.fork()
    if not child:
        signal.alarm(14_400)
        try:
            work()
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(child, 0)


def job(mode: str, kind: str, seeds: int, clauses: list[str]) -> None:
    """One engine; each clause in a process that has it as it was made."""
    rig = Rig(mode == "overlap", kind)
    core = type(getattr(rig.scheduler.tree_cache, "tree_core", rig.scheduler.tree_cache)).__name__
    for clause in clauses:
        def work(clause=clause):
            row = {"mode": mode, "kind": kind, "tree": core, "scopes": rig.library.scopes}
            print(json.dumps({**row, **one(rig, clause, RUNS if clause in ABLATIONS else seeds)}), flush=True)

        _forked(work)


def main(seeds: str, *jobs: str) -> None:
    stand_in()
    import sglang.srt.managers.scheduler  # noqa: F401 # what takes longest, once

    for named in jobs:
        mode, kind, clauses = named.split("/")
        _forked(lambda mode=mode, kind=kind, clauses=clauses: job(mode, kind, int(seeds), clauses.split(",")))


if __name__ == "__main__":
    main(*sys.argv[1:])
