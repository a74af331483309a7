"""An engine in virtual time: vLLM's real scheduler, and a worker whose steps take what a GPU's tables say.

Nothing is computed and nothing waits: a step begins when the one before it has ended, and ends as much later as its rows
take. The core's loop is vLLM's ``step_with_batch_queue`` (two steps under way) or ``step``: requests reach the scheduler
between two steps. What the scheduler and Python take is not counted.
"""

from __future__ import annotations

import bisect
import csv
import gzip
import json
import random
import tempfile
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
import vllm.config as configuration
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

init_none_hash(sha256)

#: What ``vllm serve`` chooses on a GPU of 70 GiB or more.
BATCH_TOKENS, REQUESTS = 8_192, 1_024
#: Tokens of a block, and of the longest request.
BLOCK, LONGEST = 16, 32_768
#: Blocks of the cache: 0.9 of 139 GiB less 16 GiB of weights and 4 of activations, by 2 MiB (``kv_bytes.csv``).
BLOCKS = 53_000
VOCABULARY = 1_000
#: Steps of one shape differ by this much, a standard deviation. Ours: the tables have means only.
NOISE = 0.01
#: An idle core's loop looks for work so often, ns.
SPIN = 1_000_000


class TableError(Exception):
    """A file that is not what it is to be."""


class Curve:
    """Values between points, linear; beyond them as at the last, or on as between the last two."""

    def __init__(self, points: dict[float, float]) -> None:
        self.at = sorted(points)
        self.value = [points[at] for at in self.at]

    def __call__(self, x: float, on: bool = True) -> float:
        at, value = self.at, self.value
        if len(at) == 1 or x <= at[0] or (x >= at[-1] and not on):
            return value[0] if x <= at[0] else value[-1]
        above = min(bisect.bisect_left(at, x), len(at) - 1)
        below = above - 1
        return value[below] + (value[above] - value[below]) * (x - at[below]) / (at[above] - at[below])


class Grid:
    """Curves by a first coordinate. Beyond the last points it grows with its work."""

    def __init__(self, rows: dict[float, dict[float, float]], work: Any) -> None:
        self.first = sorted(rows)
        self.curves = [Curve(rows[at]) for at in self.first]
        self.work = work

    def _along(self, place: int, y: float) -> float:
        curve, last = self.curves[place], self.curves[place].at[-1]
        value = curve(y, on=False)
        held = self.work(self.first[place], last)
        return value * self.work(self.first[place], y) / held if y > last and held else value

    def __call__(self, x: float, y: float) -> float:
        first = self.first
        inside = min(max(x, first[0]), first[-1])
        above = min(bisect.bisect_left(first, inside), len(first) - 1)
        below = max(above - 1, 0) if first[above] > inside else above
        value = self._along(below, y)
        if above != below:
            share = (inside - first[below]) / (first[above] - first[below])
            value += (self._along(above, y) - value) * share
        return value * self.work(x, y) / self.work(inside, y) if x > inside else value


def _rows(path: Path, gpu: str, model: str) -> list[dict[str, float]]:
    try:
        with path.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if (row["gpu"], row["model"]) == (gpu, model)]
        found = [{key: float(value) for key, value in row.items() if key not in ("gpu", "model")} for row in rows]
    except (OSError, KeyError, ValueError) as error:
        raise TableError(f"{path}: {type(error).__name__}: {error}") from error
    if not found:
        raise TableError(f"{path}: no row of {model} on {gpu}")
    return found


class Gpu:
    """What a step takes: what each row passes, by all rows; attention by each prompt part, and by decodes together."""

    def __init__(self, folder: Path, gpu: str, model: str) -> None:
        prompts = _rows(folder / "iteration_prefill.csv", gpu, model)
        decodes = _rows(folder / "iteration_decode.csv", gpu, model)
        rest: dict[float, list[float]] = {}
        reading: dict[float, dict[float, float]] = {}
        decoding: dict[float, dict[float, float]] = {}
        for row in prompts:
            rest.setdefault(row["new_tokens"], []).append(row["total_ms"] - row["attention_ms"])
            reading.setdefault(row["new_tokens"], {})[row["prior_context"]] = row["attention_ms"]
        for row in decodes:
            rest.setdefault(row["batch"], []).append(row["total_ms"] - row["attention_ms"])
            decoding.setdefault(row["batch"], {})[row["context_per_seq"]] = row["attention_ms"]
        self.rest = Curve({rows: sum(values) / len(values) for rows, values in rest.items()})
        self.reading = Grid(reading, lambda new, cached: new * (new + 2 * cached))
        self.decoding = Grid(decoding, lambda batch, each: batch * each)

    def ms(self, decodes: int, cached: int, parts: Iterable[tuple[int, int]]) -> float:
        """Of a step with so many decodes and cached tokens between them, and prompt parts behind cached tokens."""
        rows, attention = decodes, 0.0
        for new, behind in parts:
            rows += new
            attention += self.reading(new, behind)
        if decodes:
            attention += self.decoding(decodes, cached / decodes)
        return self.rest(rows) + attention


@dataclass(frozen=True)
class Arrival:
    """A user's request of a trace, or a background request of lengths."""

    at_ns: int
    prompt: int
    tokens: int


def arrivals(path: Path, seconds: float) -> list[Arrival]:
    """The first seconds of a trace; lengths alone come at once. Longer requests than the engine takes are cut."""
    found = []
    try:
        with gzip.open(path, "rt", newline="") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                try:
                    at = float(row.get("arrival_s") or 0)
                    prompt, tokens = int(row["input_tokens"]), int(row["output_tokens"])
                    if at < 0 or prompt < 1 or tokens < 1:
                        raise ValueError("a number is too small")
                except (KeyError, ValueError) as error:
                    raise TableError(f"{path}: line {number}: {type(error).__name__}: {error}") from error
                if not found:
                    start = at
                if at - start > seconds:
                    break
                tokens = min(tokens, LONGEST // 2)
                found.append(Arrival(int((at - start) * 1e9), min(prompt, LONGEST - tokens - 1), tokens))
    except OSError as error:
        raise TableError(f"{path}: {error}") from error
    if not found:
        raise TableError(f"{path}: no request in the first {seconds:g} s")
    return found


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
        "vocab_size": VOCABULARY,
        "max_position_embeddings": LONGEST,
        "torch_dtype": "float16",
    }
    (folder / "config.json").write_text(json.dumps(shape))
    return str(folder)


def scheduler(policy: str) -> Any:
    """vLLM's asynchronous scheduler, its default, with what ``vllm serve`` sets."""
    config = configuration.VllmConfig(
        model_config=configuration.ModelConfig(
            model=_model(), skip_tokenizer_init=True, dtype="float16", max_model_len=LONGEST
        ),
        scheduler_config=configuration.SchedulerConfig(
            max_num_seqs=REQUESTS,
            max_num_batched_tokens=BATCH_TOKENS,
            max_model_len=LONGEST,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            policy=policy,
        ),
        cache_config=configuration.CacheConfig(enable_prefix_caching=True),
        device_config=configuration.DeviceConfig("cpu"),
    )
    # Set afterwards: what a configuration for a CPU would forbid.
    config.cache_config.block_size, config.cache_config.num_gpu_blocks = BLOCK, BLOCKS
    config.scheduler_config.async_scheduling = True
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    kv = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    made = AsyncScheduler(
        vllm_config=config,
        kv_cache_config=kv,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
    )
    made.use_v2_model_runner = True
    return made


@dataclass
class Answer:
    """When a request's tokens came, ns."""

    arrival: Arrival
    count: int = 0
    first: int = 0
    last: int = 0

    @property
    def ttft(self) -> int:
        return self.first - self.arrival.at_ns

    @property
    def tpot(self) -> float | None:
        return (self.last - self.first) / (self.count - 1) if self.count > 1 else None


@dataclass
class Row:
    """What the worker knows of a request."""

    prompt: int
    computed: int


@dataclass
class Engine:
    """The core's loop, the worker and their clock."""

    scheduler: Any
    gpu: Gpu
    noise: random.Random
    now: int = 0
    #: Steps under way: the output, whose tokens it makes, and when it ends.
    queue: deque[tuple[Any, list[tuple[str, bool]], int]] = field(default_factory=deque)
    rows: dict[str, Row] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    #: When the GPU has no more steps.
    free: int = 0
    steps: int = 0

    def add(self, name: str, arrival: Arrival, priority: int) -> None:
        """A request reaches the scheduler. Prompts have nothing in common."""
        number = len(self.answers)
        self.answers[name] = Answer(arrival)
        head = [number % VOCABULARY, number // VOCABULARY % VOCABULARY, number // VOCABULARY**2]
        prompt = (head + [1] * arrival.prompt)[: arrival.prompt]
        self.scheduler.add_request(
            Request(
                request_id=name,
                prompt_token_ids=prompt,
                sampling_params=SamplingParams(max_tokens=arrival.tokens, ignore_eos=True),
                pooling_params=None,
                block_hasher=get_request_block_hasher(BLOCK, sha256),
                arrival_time=arrival.at_ns / 1e9,
                priority=priority,
            )
        )

    def _take(self, output: Any) -> tuple[list[tuple[str, bool]], float]:
        """The rows of a step: who gets a token of it, and what it takes."""
        for name in output.finished_req_ids:
            self.rows.pop(name, None)
        for new in output.scheduled_new_reqs:
            known = getattr(new, "prefill_token_ids", None) or new.prompt_token_ids
            self.rows[new.req_id] = Row(len(known), new.num_computed_tokens)
        cached = output.scheduled_cached_reqs
        for name, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            self.rows[name].computed = computed
        decodes = context = 0
        parts, made = [], []
        for name, count in output.num_scheduled_tokens.items():
            row = self.rows[name]
            if count == 1 and row.computed >= row.prompt:
                decodes += 1
                context += row.computed + 1
            else:
                parts.append((count, row.computed))
            made.append((name, row.computed + count >= row.prompt))
        return made, self.gpu.ms(decodes, context, parts) * max(self.noise.gauss(1, NOISE), 0.9)

    def step(self) -> list[tuple[str, int]]:
        """Schedules if there is room, or hands in a step's output: who got a token, and when."""
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            made, took = self._take(output)
            total = output.total_num_scheduled_tokens
            if total:
                self.steps += 1
                self.free = max(self.now, self.free) + int(took * 1e6)
            self.queue.appendleft((output, made, self.free if total else self.now))
            if len(self.queue) < 2 and total:
                return []
        if not self.queue:
            return []
        output, made, end = self.queue.pop()
        self.now = max(self.now, end)
        names = [name for name, _ in made]
        done = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=[[1] if whole else [] for _, whole in made],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        return self._given(self.scheduler.update_from_output(output, done))

    def _given(self, outputs: Any) -> list[tuple[str, int]]:
        given = []
        for client in outputs.values():
            for one in client.outputs:
                count = len(one.new_token_ids)
                if count:
                    answer = self.answers[one.request_id]
                    answer.first = answer.first or self.now
                    answer.count, answer.last = answer.count + count, self.now
                    given.append((one.request_id, count))
        return given
