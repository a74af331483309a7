"""A worker and a GPU for vLLM's real scheduler, on a machine without either.

Every KV slot holds a value computed from the token and from all slots before it, and the next token
is computed from all slots of the request: a slot that was lost, poisoned or written from one that
was makes a wrong token. What is true is computed from tokens alone, so nothing that the engine does
can hide an error.

With several groups of layers a token has a slot in each, computed from what came before it in all of
them: in the first from everything, in the others from a window.

The workers follow the two model runners of vLLM in what they keep between steps: which of the
scheduler's words they use, and which they never look at.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

from tax import Handed
from vllm.v1.outputs import ModelRunnerOutput

VOCABULARY = 97
#: What a page that is not ours reads as: the quarantine page is zero at birth.
GARBAGE = 0


def slot_value(token: int, before: Sequence[int]) -> int:
    return hash((token, len(before), tuple(before)))


def next_token(slots: Sequence[int]) -> int:
    return hash(tuple(slots)) % VOCABULARY


def seen(windows: Sequence[int | None], at: int) -> list[range]:
    """By group: the places that a token at ``at`` is computed from; a window is of so many tokens, itself included."""
    return [range(0 if window is None else max(0, at - window + 1), at) for window in windows]


def slots_by_group(tokens: Sequence[int], windows: Sequence[int | None]) -> list[list[int]]:
    """What the slots of a sequence hold in each group."""
    slots: list[list[int]] = [[] for _ in windows]
    for at, token in enumerate(tokens):
        before = [slots[group][i] for group, places in enumerate(seen(windows, at)) for i in places]
        for group, own in enumerate(slots):
            own.append(group_value(group, slot_value(token, before)))
    return slots


def slots_of(tokens: Sequence[int]) -> list[int]:
    """The same with one group."""
    return slots_by_group(tokens, (None,))[0]


def group_value(group: int, value: int) -> int:
    """What a token's slot holds in a group."""
    return hash((group, value)) if group else value


def truth(prompt: Sequence[int], tokens: int, windows: Sequence[int | None] = (None,)) -> list[int]:
    """The output of an undisturbed run."""
    slots: list[list[int]] = [[] for _ in windows]
    out: list[int] = []
    known = list(prompt)
    while True:
        for at in range(len(slots[0]), len(known)):
            before = [slots[group][i] for group, places in enumerate(seen(windows, at)) for i in places]
            for group, own in enumerate(slots):
                own.append(group_value(group, slot_value(known[at], before)))
        last = [own[i] for own, places in zip(slots, seen(windows, len(known)), strict=True) for i in places]
        out.append(next_token(last))
        if len(out) == tokens:
            return out
        known.append(out[-1])


class Gpu:
    """KV blocks, some of which have no memory of their own."""

    def __init__(self, blocks: int, block_size: int, rng: random.Random) -> None:
        self.size = block_size
        self.rng = rng
        self.slots = [[rng.getrandbits(48) for _ in range(block_size)] for _ in range(blocks)]
        self.lost: set[int] = set()
        #: Reads and writes of blocks without memory.
        self.strays = 0

    def read(self, table: Sequence[int], at: int) -> int:
        block = table[at // self.size]
        if block in self.lost:
            self.strays += 1
            return GARBAGE
        return self.slots[block][at % self.size]

    def write(self, table: Sequence[int], at: int, value: int) -> None:
        block = table[at // self.size]
        if block in self.lost:
            self.strays += 1
        else:
            self.slots[block][at % self.size] = value

    def take(self, blocks: Sequence[int]) -> None:
        self.lost.update(blocks)

    def give(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.lost.discard(block)
            self.slots[block] = [self.rng.getrandbits(48) for _ in range(self.size)]


class Lender:
    """The other end of an online job: maps blocks ahead, grants them, and takes them back."""

    def __init__(self, gpu: Gpu, limit: int, headroom: int) -> None:
        self.gpu = gpu
        self.limit = limit
        self.headroom = headroom
        self.ready: set[int] = set()
        self.granted: set[int] = set()
        gpu.lost.update(range(1, len(gpu.slots)))
        self.asked = 0
        self.expected: list[int] = []
        self.waits = 0
        self.flying = 0
        self.used: list[tuple[int, int]] = []

    def map_ahead(self, blocks: int) -> None:
        """The library's thread: maps, within the limit."""
        room = min(blocks, self.limit - len(self.ready) - len(self.granted))
        fresh = sorted(self.gpu.lost)[: max(room, 0)]
        self.gpu.give(fresh)
        self.ready.update(fresh)

    def unmap(self, blocks: int) -> None:
        """The agent's rule: headroom that nobody needs goes, highest first."""
        gone = sorted(self.ready, reverse=True)[:blocks]
        self.ready.difference_update(gone)
        self.gpu.lost.update(gone)

    # What the plugin asks.

    def reserve(self, blocks: int) -> list[int]:
        ids = sorted(self.ready)[:blocks]
        self.ready.difference_update(ids)
        self.granted.update(ids)
        self.asked += blocks - len(ids)
        return ids

    def expect(self, blocks: int) -> None:
        self.expected.append(blocks)

    def release(self, blocks: Sequence[int]) -> None:
        assert self.granted.issuperset(blocks), "gives back what it has not"
        self.granted.difference_update(blocks)
        self.ready.update(blocks)

    def usage(self, used: int, reserved: int) -> None:
        self.used.append((used, reserved))

    def in_flight(self, requests: int) -> None:
        self.flying = requests

    def scheduled(self, output) -> None:
        return None

    def wait(self, timeout_s: float) -> None:
        self.waits += 1


class _State:
    def __init__(self, prompt: list[int], output: list[int], tables: Sequence[list[int]], done: int) -> None:
        self.prompt = prompt
        self.output = output
        #: By group.
        self.tables = [list(table) for table in tables]
        self.computed = done

    @property
    def table(self) -> list[int]:
        """Of the first group."""
        return self.tables[0]

    def extend(self, blocks: Sequence[list[int]]) -> None:
        for table, new in zip(self.tables, blocks, strict=True):
            table.extend(new)


class Worker:
    """Computes steps in the order they were scheduled, as the first model runner would."""

    #: By group: how far its layers look back.
    windows: Sequence[int | None] = (None,)

    def __init__(self, gpu: Gpu, asynchronous: bool, moment: Callable[[], None]) -> None:
        self.gpu = gpu
        self.asynchronous = asynchronous
        #: Called between any two pieces of work: here a reclaim may strike.
        self.moment = moment
        self.states: dict[str, _State] = {}
        self.batch: set[str] = set()
        self.handed = Handed()

    def begin(self, output) -> None:
        """The step reaches the worker: its states follow the scheduler's words."""
        self.handed.step(output)
        for name in output.finished_req_ids:
            self.states.pop(name, None)
            self.batch.discard(name)
        cached = output.scheduled_cached_reqs
        scheduled = output.num_scheduled_tokens.keys()
        self.batch &= scheduled - cached.resumed_req_ids
        for new in output.scheduled_new_reqs:
            self._new(new)
        for i, name in enumerate(cached.req_ids):
            state = self.states[name]
            state.computed = cached.num_computed_tokens[i]
            kept = cached.num_output_tokens[i]
            if kept < len(state.output):
                del state.output[kept:]
            blocks = cached.new_block_ids[i]
            if name in cached.resumed_req_ids:
                assert name not in self.batch and blocks is not None
                state.tables = [list(table) for table in blocks]
            elif blocks is not None:
                state.extend(blocks)
            if name not in self.batch and self.asynchronous and kept > 0:
                state.output = list(cached.all_token_ids[name][-kept:])
        self.batch = set(scheduled)

    def _new(self, new) -> None:
        self.states[new.req_id] = _State(
            list(new.prompt_token_ids), [], new.block_ids, new.num_computed_tokens
        )

    def _before(self, state: _State, at: int) -> list[int]:
        """What the token at a place is computed from."""
        places = zip(state.tables, seen(self.windows, at), strict=True)
        return [self.gpu.read(table, i) for table, span in places for i in span]

    def run(self, output) -> ModelRunnerOutput:
        """Computes the step, token by token, one request after the other."""
        names = list(output.num_scheduled_tokens)
        sampled = []
        for name in names:
            state = self.states[name]
            tokens = state.prompt + state.output
            end = state.computed + output.num_scheduled_tokens[name]
            for at in range(state.computed, end):
                self.moment()
                value = slot_value(tokens[at], self._before(state, at))
                for group, table in enumerate(state.tables):
                    self.gpu.write(table, at, group_value(group, value))
            if end < len(tokens):
                sampled.append([])
                continue
            self.moment()
            token = next_token(self._before(state, end))
            state.output.append(token)
            sampled.append([token])
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )


class SecondWorker(Worker):
    """The second model runner: a resumed request comes as a new one, and slots are few."""

    def __init__(self, gpu: Gpu, asynchronous: bool, moment: Callable[[], None], slots: int) -> None:
        super().__init__(gpu, asynchronous, moment)
        self.slots = slots

    def begin(self, output) -> None:
        self.handed.step(output)
        for name in output.finished_req_ids | (output.preempted_req_ids or set()):
            self.states.pop(name, None)
        for new in output.scheduled_new_reqs:
            self.states.pop(new.req_id, None)
            assert len(self.states) < self.slots, "no free slot for a request"
            self._new(new)
        cached = output.scheduled_cached_reqs
        for i, name in enumerate(cached.req_ids):
            state = self.states[name]
            state.computed = cached.num_computed_tokens[i]
            if cached.new_block_ids[i] is not None:
                state.extend(cached.new_block_ids[i])

    def _new(self, new) -> None:
        prompt = len(new.prompt_token_ids)
        tokens = list(new.prefill_token_ids)
        self.states[new.req_id] = _State(
            tokens[:prompt], tokens[prompt:], new.block_ids, new.num_computed_tokens
        )


class Engine:
    """The engine core's loop: one step at a time, or one ahead."""

    def __init__(self, scheduler, worker: Worker, rng: random.Random, ahead: int) -> None:
        self.scheduler = scheduler
        self.worker = worker
        self.rng = rng
        self.ahead = ahead
        self.queue: deque = deque()

    def _compute(self, entry) -> None:
        if entry[1] is None:
            entry[1] = self.worker.run(entry[0])

    def step(self) -> dict[str, list[int]]:
        """Schedules if there is room, and hands in one step's output."""
        if self.scheduler.has_requests() and len(self.queue) < self.ahead:
            output = self.scheduler.schedule()
            if self.queue:
                self._compute(self.queue[-1])  # a step begins when the one before it has ended
            self.worker.begin(output)
            self.queue.appendleft([output, None])
            if self.rng.random() < 0.5:
                self._compute(self.queue[0])
            if len(self.queue) < self.ahead and output.total_num_scheduled_tokens:
                return {}
        if not self.queue:
            return {}
        entry = self.queue.pop()
        self._compute(entry)
        outputs = self.scheduler.update_from_output(entry[0], entry[1])
        tokens: dict[str, list[int]] = {}
        for client in outputs.values():
            for out in client.outputs:
                tokens.setdefault(out.request_id, []).extend(out.new_token_ids)
        return tokens
