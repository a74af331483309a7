"""SGLang's real scheduler, worker and a tiny model on the CPU, in the event loop that SGLang chooses.

What is judged is what the plugin says, through the calls that the library would get. What judges it keeps a book of its
own: which requests were sent in, and which SGLang has sent an end of. One process has one scheduler, as in SGLang.

    python sglang_rig.py MODE SEEDS CLAUSE...   one JSON line for the plugin whole, and one without each of these clauses
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import inspect
import json
import logging
import os
import random
import sys
import tempfile
from array import array
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[2] / "interposer/engines"))
logging.disable(logging.INFO)

#: A model without kernels of its own: SGLang computes it with torch where there is no GPU.
MODEL = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 16,
    "n_head": 2,
    "n_layer": 1,
    "n_positions": 512,
    "n_ctx": 512,
    "vocab_size": 128,
    "torch_dtype": "float32",
    "activation_function": "gelu_new",
    "bos_token_id": 1,
    "eos_token_id": 2,
}

#: Iterations of the loop after which a run without an end is one.
PATIENCE = 3_000


class End(Exception):
    """Of a run."""


class Library:
    """What the plugin would call."""

    def __init__(self) -> None:
        self.said: int | None = None
        self.calls = 0

    def call(self, name: str, *arguments: int) -> int:
        assert name == "tg_requests_in_flight"
        self.said, self.calls = arguments[0], self.calls + 1
        return 0

    def role(self, wait_s: float) -> str:
        return "online"


class Absent(ModuleType):
    """A module of kernels that are published for GPUs only. Whoever calls one of them on the CPU fails."""

    __path__: list[str] = []

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)

        def kernel(*args, **kwargs):
            raise NotImplementedError(f"{self.__name__}.{name} is for a GPU")

        return kernel


def stand_in() -> None:
    """0.5.11 imports kernels that it does not call here, and hands out pages of several slots by two of Triton's.

    These are interpreted; later versions hand pages out on the CPU, too.
    """
    if (Path(importlib.util.find_spec("sglang").origin).parent / "srt/mem_cache/allocator.py").exists():
        os.environ["TRITON_INTERPRET"] = "1"
    if importlib.util.find_spec("sgl_kernel") is None:
        for name in ("sgl_kernel", "sgl_kernel.kvcacheio"):
            sys.modules[name] = Absent(name)
            sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)


def load(library: Library):
    """SGLang with the plugin, as ``load_plugins`` puts it into a scheduler's process."""
    stand_in()
    import torch

    torch.set_num_threads(1)
    from sglang.srt.managers import scheduler
    from sglang.srt.plugins.hook_registry import HookRegistry
    from tidegate_engines import abi, sglang

    abi.library = lambda: library
    sglang.register()
    HookRegistry.apply_hooks()
    return scheduler


def make(module, overlap: bool, model: dict | None = None, **changes):
    """A scheduler with little memory, so that requests are retracted; of another model, or with other arguments."""
    from sglang.srt.server_args import PortArgs, ServerArgs

    folder = Path(tempfile.mkdtemp(prefix="tidegate-sglang-"))
    (folder / "config.json").write_text(json.dumps({**MODEL, **(model or {})}))
    arguments = {
        "model_path": str(folder),
        "load_format": "dummy",
        "device": "cpu",
        "dtype": "float32",
        "skip_tokenizer_init": True,
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "disable_cuda_graph": True,
        "mem_fraction_static": 0.1,
        "max_total_tokens": 160,
        "max_running_requests": 6,
        "chunked_prefill_size": 16,
        "schedule_conservativeness": 0.1,
        "disable_overlap_schedule": not overlap,
        "random_seed": 1,
        **changes,
    }
    args = ServerArgs(**arguments)
    ports = PortArgs.init_new(args)
    if hasattr(module, "publish"):
        ranks = module.SpawnRanks(
            world_rank=module.spawn_world_rank(args, tp_rank=0, pp_rank=0), dp_rank=None, gpu_id=0
        )
        module.publish(args, role="scheduler", ranks=ranks)
        return module.Scheduler(args, ports)
    names = list(inspect.signature(module.Scheduler.__init__).parameters)[3:]
    return module.Scheduler(args, ports, **{name: None if name == "dp_rank" else 0 for name in names})


def request(module, rid: str, prompt: list[int], tokens: int, logprobs: bool = False):
    """As a tokenizer sends it; with logprobs of prompt and answer, if they are asked for."""
    from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams

    sampling = SamplingParams(max_new_tokens=tokens, ignore_eos=True, temperature=0.0)
    sampling.normalize(None)
    fields = {
        "rid": rid,
        "input_text": None,
        "input_ids": array("q", prompt) if hasattr(module, "publish") else prompt,
        "input_embeds": None,
        "mm_inputs": None,
        "token_type_ids": None,
        "sampling_params": sampling,
        "return_logprob": logprobs,
        "logprob_start_len": 0 if logprobs else -1,
        "top_logprobs_num": 0,
        "token_ids_logprob": None,
        "stream": True,
    }
    takes = inspect.signature(TokenizedGenerateReqInput).parameters
    return TokenizedGenerateReqInput(**{name: value for name, value in fields.items() if name in takes})


class Rig:
    """One scheduler, its traffic, and the book."""

    def __init__(self, overlap: bool) -> None:
        self.library = Library()
        self.module = load(self.library)
        self.scheduler = make(self.module, overlap)
        assert self.scheduler.enable_overlap == overlap
        self.open: set[str] = set()
        self.report = SimpleNamespace()
        self._listen()

    def _listen(self) -> None:
        scheduler = self.scheduler
        channels = getattr(scheduler, "ipc_channels", scheduler)
        kind = type(channels.send_to_tokenizer)
        kind.send_output = lambda _, output, *rest: self._sent(output)
        if hasattr(scheduler, "request_receiver"):
            scheduler.request_receiver = SimpleNamespace(recv_requests=self._asked)
        else:
            scheduler.recv_requests = self._asked
        scheduler._add_request_to_queue = self._queued(scheduler._add_request_to_queue)
        self._before("_request_dispatcher", self._at_least)
        self._before("run_batch", self._computes)
        self._before("get_next_batch_to_run", self._exactly)

    def _before(self, name: str, check) -> None:
        original = getattr(self.scheduler, name)

        def checked(*args, **kwargs):
            check()
            return original(*args, **kwargs)

        setattr(self.scheduler, name, checked)

    def _queued(self, original):
        def queued(*args, **kwargs):
            self.report.retracted += bool(kwargs.get("is_retracted"))
            return original(*args, **kwargs)

        return queued

    def _sent(self, output) -> None:
        """What SGLang sends to its tokenizer: the ends are written down."""
        if hasattr(output, "finished_reasons"):
            ended = [rid for rid, why in zip(output.rids, output.finished_reasons, strict=True) if why]
        else:
            ended = [output.rid] if type(output).__name__ == "AbortReq" else []
        self.report.aborted += type(output).__name__ == "AbortReq"
        self.report.ended += len(ended)
        self.open.difference_update(ended)

    def _at_least(self) -> None:
        """Nobody's request is forgotten."""
        self.report.forgotten += (self.library.said or 0) < len(self.open)

    def _computes(self) -> None:
        self._at_least()
        self.report.steps += 1
        self.report.most = max(self.report.most, len(self.open))

    def _exactly(self) -> None:
        self.report.inexact += self.library.said != len(self.open)

    def _asked(self, *args, **kwargs) -> list:
        """What comes in an iteration of the loop."""
        self._at_least()
        from sglang.srt.managers.io_struct import AbortReq

        rng, report = self.rng, self.report
        self.turns += 1
        if self.turns > PATIENCE or (not self.left and not self.open and self.turns > self.quiet + 3):
            report.stuck += bool(self.open)
            raise End
        if self.left or self.open:
            self.quiet = self.turns
        come: list = []
        while self.left and rng.random() < 0.3:
            self.left -= 1
            rid = f"{self.seed}-{self.left}-"
            self.open.add(rid)
            report.requests += 1
            prompt = [rng.randrange(3, 128) for _ in range(rng.randint(1, 60))]
            come.append(request(self.module, rid, prompt, rng.randint(1, 40)))
        if self.open and rng.random() < 0.05:
            come.append(AbortReq(rid=rng.choice(sorted(self.open))))
        return come

    def run(self, seed: int) -> None:
        """One run, of random traffic, until nothing is left."""
        self.seed, self.rng, self.left, self.turns, self.quiet = seed, random.Random(seed), 10, 0, 0
        try:
            self.scheduler.run_event_loop()
        except End:
            pass
        self.report.left_over += self.library.said != 0

    def runs(self, seeds: int) -> dict:
        names = "requests steps most ended aborted retracted forgotten inexact left_over stuck"
        self.report = SimpleNamespace(**dict.fromkeys(names.split(), 0))
        calls = self.library.calls
        for seed in range(seeds):
            self.run(seed)
            if self.report.stuck:
                break
        return {**vars(self.report), "said": self.library.calls - calls}


@contextmanager
def without(clause: str):
    """The plugin less one clause."""
    from tidegate_engines.sglang import flight

    kept = dict(flight.PLACES), flight.count, flight.arriving
    if clause in flight.PLACES:
        del flight.PLACES[clause]
    elif clause == "those that arrive":
        flight.arriving = lambda messages: 0
    elif clause == "only what is unfinished":
        def everyone(scheduler):
            return len({id(r) for place in flight.PLACES.values() for r in place(scheduler)})

        flight.count = everyone
    else:
        raise ValueError(clause)
    try:
        yield
    finally:
        flight.PLACES.update(kept[0])
        flight.count, flight.arriving = kept[1:]


#: Runs at most of the plugin less one clause.
RUNS = 30

if __name__ == "__main__":
    rig = Rig(sys.argv[1] == "overlap")
    print(json.dumps({"clause": "", **rig.runs(int(sys.argv[2]))}), flush=True)
    for name in sys.argv[3:]:
        with without(name):
            print(json.dumps({"clause": name, **rig.runs(min(int(sys.argv[2]), RUNS))}), flush=True)
