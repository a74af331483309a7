"""One random run of vLLM's real scheduler under a Tidegate that takes and gives blocks at random."""

from __future__ import annotations

import json
import random
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import vllm
import vllm.config as configuration
from fake import VOCABULARY, Engine, Gpu, SecondWorker, Worker, slots_by_group, truth
from offline_agent import Agent
from tidegate_engines.vllm import hooks, versions
from tidegate_engines.vllm.lost import LostBlocks
from tidegate_engines.vllm.together import TogetherQueue
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import (
    get_block_hash,
    get_group_id,
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

hooks.install(Scheduler, KVCacheManager, BlockPool)
init_none_hash(sha256)

LONGEST = 120


@dataclass(frozen=True)
class Case:
    """What one run is of; all else follows from the seed."""

    seed: int
    asynchronous: bool = False
    second_runner: bool = False
    block_size: int = 4
    #: Blocks, of which one is vLLM's placeholder: few, so that capacity preempts.
    blocks: int = 48
    requests: int = 10
    running: int = 4
    token_budget: int = 24
    #: Chance of a reclaim at each moment of a step, and of a return at each step.
    reclaim: float = 0.01
    give_back: float = 0.3
    abort: float = 0.01
    #: Blocks of a stripe, which a request's blocks are kept to; with 1 the engine places them.
    run: int = 4
    #: Blocks that never come back.
    forever: int = 0
    prefix_caching: bool = True
    #: Requests have priorities, and the most urgent one goes first.
    priorities: bool = False
    #: Chance at each step of an operator's `reset_prefix_cache`, running requests included.
    resets: float = 0.0
    #: A class of the user's that goes over vLLM's and returns copies of what it returns.
    copying: bool = False
    #: By group of layers: how many tokens they look back; none: all.
    windows: tuple[int | None, ...] = (None,)
    #: Built with the plugin, or as the engine comes.
    plugin: bool = True

    @property
    def longest(self) -> int:
        """Blocks that one request takes at most."""
        whole = LONGEST // self.block_size + 1
        chunk = self.token_budget // self.block_size + 2
        return sum(whole if window is None else window // self.block_size + chunk for window in self.windows)


@dataclass
class Outcome:
    """What came of it."""

    wrong: int = 0
    lost_requests: int = 0
    right: int = 0
    reclaims: int = 0
    #: Tokens that clients got, that the worker was handed, and of those the ones that it was handed before.
    produced: int = 0
    computed: int = 0
    again: int = 0
    crashed: str | None = None


@cache
def _model() -> str:
    folder = Path(tempfile.mkdtemp(prefix="tidegate-model-"))
    shape = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": VOCABULARY + 1,
        "max_position_embeddings": 4 * LONGEST,
        "torch_dtype": "float16",
    }
    (folder / "config.json").write_text(json.dumps(shape))
    return str(folder)


@cache
def _config(
    asynchronous: bool, running: int, budget: int, block_size: int, caching: bool, policy: str
):
    cache_config = configuration.CacheConfig(enable_prefix_caching=caching)
    config = configuration.VllmConfig(
        model_config=configuration.ModelConfig(
            model=_model(), skip_tokenizer_init=True, dtype="float16", max_model_len=2 * LONGEST
        ),
        scheduler_config=configuration.SchedulerConfig(
            max_num_seqs=running,
            max_num_batched_tokens=max(budget, running),
            max_model_len=2 * LONGEST,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            policy=policy,
        ),
        cache_config=cache_config,
        device_config=configuration.DeviceConfig("cpu"),
    )
    # Set afterwards: what a configuration for a CPU would forbid.
    config.cache_config.block_size = block_size
    config.scheduler_config.async_scheduling = asynchronous
    return config


def make_scheduler(case: Case, blocks: int, refused: bool = False):
    """The scheduler of an engine with so many blocks; one that the plugin has nothing against, unless it says so."""
    config = _config(
        case.asynchronous,
        case.running,
        case.token_budget,
        case.block_size,
        case.prefix_caching,
        "priority" if case.priorities else "fcfs",
    )
    config.cache_config.num_gpu_blocks = blocks
    shape = {"block_size": case.block_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    kv = KVCacheConfig(
        num_blocks=blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[
            KVCacheGroupSpec(
                [f"layer {group}"],
                FullAttentionSpec(**shape) if window is None else SlidingWindowSpec(**shape, sliding_window=window),
            )
            for group, window in enumerate(case.windows)
        ],
    )
    assert refused or versions.why_not(vllm.__version__, config, kv) is None
    kind = AsyncScheduler if case.asynchronous else Scheduler
    kind = copying(kind) if case.copying else kind
    scheduler = kind(
        vllm_config=config,
        kv_cache_config=kv,
        structured_output_manager=StructuredOutputManager(config),
        block_size=case.block_size,
    )
    scheduler.use_v2_model_runner = case.second_runner
    return scheduler


@cache
def copying(kind: type[Scheduler]) -> type[Scheduler]:
    """A scheduler class as users write them: over vLLM's, with something done before and after."""

    class Copying(kind):
        def schedule(self, *args, **kwargs):
            output = super().schedule(*args, **kwargs)
            return replace(output, num_scheduled_tokens=dict(output.num_scheduled_tokens))

        def finish_requests(self, request_ids, finished_status):
            return super().finish_requests(request_ids, finished_status)

    return Copying


def make_request(
    case: Case, name: str, prompt: list[int], tokens: int, arrival: float = 0.0, **more: Any
) -> Request:
    """A request for exactly so many tokens, unless ``more`` asks for something else."""
    asked: dict[str, Any] = {
        "sampling_params": SamplingParams(max_tokens=tokens, ignore_eos=True),
        "pooling_params": None,
        **more,
    }
    return Request(
        request_id=name,
        prompt_token_ids=prompt,
        block_hasher=get_request_block_hasher(case.block_size, sha256),
        arrival_time=arrival,
        **asked,
    )


class Thief:
    """What a worker's every moment is: now and then a few blocks are taken, as far as the agent would."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def robs(self, rig: Rig, rng: random.Random) -> None:
        """Takes from this one from now on."""
        self.rig, self.rng = rig, rng

    def __call__(self) -> None:
        case, rng = self.case, self.rng
        if rng.random() < case.reclaim:
            first = rng.randrange(1, case.blocks)
            blocks = range(first, min(first + rng.randint(1, 4), case.blocks))
            free = case.blocks - 1 - len(self.rig.gpu.lost)
            if free - len(blocks) < case.longest:
                return  # the agent leaves a job room for its longest request
            self.rig.agent.take(blocks)


class Rig:
    """One scheduler with its plugin, worker, GPU and agent."""

    def __init__(
        self, case: Case, lost_blocks: type[LostBlocks] = LostBlocks, moment=lambda: None
    ) -> None:
        self.case = case
        self.rng = random.Random(repr(replace(case, plugin=True)))
        self.gpu = Gpu(case.blocks, case.block_size, self.rng)
        #: Every request there was: what the cache should hold is told from their tokens.
        self.made: list[Request] = []
        self.agent = Agent(self.gpu)
        self.scheduler = make_scheduler(case, case.blocks)
        if case.plugin:
            engine = versions.engine(Scheduler)
            state = lost_blocks(self.scheduler, self.agent, engine, case.run)
            hooks.watch(self.scheduler, state)
        if case.second_runner:
            self.worker: Worker = SecondWorker(self.gpu, case.asynchronous, moment, case.running)
        else:
            self.worker = Worker(self.gpu, case.asynchronous, moment)
        self.worker.windows = case.windows
        self.engine = Engine(self.scheduler, self.worker, self.rng, 2 if case.asynchronous else 1)

    @property
    def state(self) -> LostBlocks:
        return getattr(self.scheduler, hooks.STATE)

    def request(self, name: str, prompt: list[int], tokens: int, priority: int = 0) -> Request:
        arrival = float(len(self.scheduler.requests))
        request = make_request(self.case, name, prompt, tokens, arrival, priority=priority)
        self.made.append(request)
        return request

    def check_published(self) -> None:
        """The agent knows the stripes that each running request lies in, and what its loss costs to a quarter."""
        run = self.case.run
        for request in self.scheduler.running:
            number = self.state._said[request.request_id].number
            tables = self.scheduler.kv_cache_manager.get_block_ids(request.request_id)
            held = {block // run for table in tables for block in table if block != 0}
            tokens, blocks = self.agent.published[number]
            assert {block // run for block in blocks} == held, (self.case, request.request_id)
            # Between two blocks a request grows untold.
            grown = request.num_computed_tokens - self.case.block_size * len(tables)
            assert grown <= tokens * 5 / 4, (self.case, request.request_id, grown, tokens)

    def check_counted(self) -> None:
        """What vLLM counts as under way is what its steps under way compute, in the versions that count it."""
        for name, request in self.scheduler.requests.items():
            under_way = sum(entry[0].num_scheduled_tokens.get(name, 0) for entry in self.engine.queue)
            assert getattr(request, "num_in_flight_tokens", under_way) == under_way, (self.case, name)

    def check_cache(self) -> None:
        """With nothing under way, a block in the prefix cache holds what its tokens make; ask right after a cut.

        With priorities vLLM may preempt a request that it has scheduled in the same step: the block that this step
        would have filled is in the cache by then, with a slot that was never written, whatever is lost or not.
        """
        if self.case.priorities:
            return
        held: dict[tuple[int, bytes], list[int]] = {}
        size = self.case.block_size
        for request in self.made:
            tokens = list(request.all_token_ids)[: len(request.block_hashes) * size]
            if not all((0, part) in held for part in request.block_hashes):
                for group, slots in enumerate(slots_by_group(tokens, self.case.windows)):
                    for i, part in enumerate(request.block_hashes):
                        held[group, part] = slots[i * size : (i + 1) * size]
        for block in self.scheduler.kv_cache_manager.block_pool.blocks:
            if block.block_hash is not None:
                assert block.block_id not in self.gpu.lost, self.case
                key = get_group_id(block.block_hash), get_block_hash(block.block_hash)
                assert self.gpu.slots[block.block_id] == held[key], (
                    self.case,
                    block.block_id,
                )

    def check_free(self) -> None:
        """The index of free blocks holds what their list holds, and every stripe's count is right."""
        queue = self.scheduler.kv_cache_manager.block_pool.free_block_queue
        if isinstance(queue, TogetherQueue):
            free = sorted(block.block_id for block in queue.get_all_free_blocks())
            assert free == sorted(block for stripe in queue.free for block in stripe), self.case
            assert len(free) == queue.num_free_blocks, self.case
            queue.settle()
            counts = [(len(stripe), at) for at, stripe in enumerate(queue.free)]
            indexed = [(n, at) for n, stripes in enumerate(queue.with_free) for at in stripes]
            assert sorted(counts) == sorted(indexed), self.case


def run(case: Case, lost_blocks: type[LostBlocks] = LostBlocks) -> Outcome:
    """Runs a case to its end; what a plugin's error breaks in the engine is an outcome too."""
    thief = Thief(case)
    rig = Rig(case, lost_blocks, thief)
    thief.robs(rig, rig.rng)
    rng, gpu, agent, scheduler, engine = rig.rng, rig.gpu, rig.agent, rig.scheduler, rig.engine
    strict = case.plugin and lost_blocks is LostBlocks
    forever: set[int] = set()
    if case.forever:
        forever = set(range(1, 1 + case.forever))
        agent.take(sorted(forever))

    prefixes = [[rng.randrange(VOCABULARY) for _ in range(rng.randint(4, 40))] for _ in range(3)]
    expected: dict[str, list[int]] = {}
    waiting: list[Request] = []
    for i in range(case.requests):
        prefix = rng.choice(prefixes)
        kind = rng.random()
        tail = [] if kind < 0.3 else [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 30))]
        prompt = (prefix + tail)[: LONGEST - 40]
        tokens = rng.randint(1, 30)
        expected[str(i)] = truth(prompt, tokens, case.windows)
        waiting.append(
            rig.request(str(i), prompt, tokens, rng.randint(0, 3) if case.priorities else 0)
        )

    got: dict[str, list[int]] = {name: [] for name in expected}
    aborted: set[str] = set()
    outcome = Outcome()
    steps = 0
    try:
        while waiting or scheduler.has_requests() or engine.queue:
            while waiting and rng.random() < 0.4:
                scheduler.add_request(waiting.pop(0))
            live = [n for n in scheduler.requests if n not in aborted]
            if live and rng.random() < case.abort:
                name = rng.choice(live)
                aborted.add(name)
                scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            if rng.random() < case.resets:
                scheduler.reset_prefix_cache(reset_running_requests=True)
            for name, tokens in engine.step().items():
                got[name] += tokens
            if strict:
                rig.check_published()
                rig.check_free()
                rig.check_counted()
                if not engine.queue and steps % 8 == 0:
                    rig.check_cache()
            if gpu.lost and rng.random() < case.give_back:
                back = sorted(gpu.lost - forever)
                agent.give(rng.sample(back, rng.randint(0, len(back))))
            steps += 1
            if steps > 20_000:
                raise TimeoutError("the engine makes no progress")
    except Exception as error:  # noqa: BLE001 # whatever an ablated plugin breaks
        if strict or not case.plugin:
            raise RuntimeError(f"{case}") from error
        outcome.crashed = f"{type(error).__name__}: {error}"

    outcome.reclaims = agent.reclaims
    for name, tokens in got.items():
        if name in aborted:
            outcome.wrong += tokens != expected[name][: len(tokens)]
        elif len(tokens) < len(expected[name]) and tokens == expected[name][: len(tokens)]:
            outcome.lost_requests += 1
        elif tokens != expected[name]:
            outcome.wrong += 1
        else:
            outcome.right += 1
    handed = rig.worker.handed
    outcome.produced = sum(map(len, got.values()))
    outcome.computed, outcome.again = handed.computed, handed.again
    if strict:
        _settled(rig, forever)
        ended = {str(i): len(request.prompt_token_ids) for i, request in enumerate(rig.made)}
        whole = {name: count + len(got[name]) for name, count in ended.items() if name not in aborted}
        assert handed.adds_up(whole), case
    return outcome


def _settled(rig: Rig, forever: set[int]) -> None:
    """At the end every block is free again, or withheld; nothing is published; the cache is right, and resets."""
    case, scheduler, agent = rig.case, rig.scheduler, rig.agent
    pool = scheduler.kv_cache_manager.block_pool
    state: LostBlocks = getattr(scheduler, hooks.STATE)
    agent.give(sorted(agent.memory.lost - forever))
    state.take_cut()
    agent.give(sorted(agent.memory.lost - forever))
    state.take_cut()
    assert state.withheld == forever == agent.memory.lost, case
    rig.check_cache()
    assert pool.get_num_free_blocks() == case.blocks - 1 - len(forever), case
    assert not agent.published, case
    assert 0.0 <= pool.get_usage() < 1e-9, case
    assert scheduler.reset_prefix_cache(), case
    assert pool.get_num_free_blocks() == case.blocks - 1 - len(forever), case
