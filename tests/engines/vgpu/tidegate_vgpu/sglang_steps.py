"""SGLang on the virtual GPU: its processes, scheduler, allocator and prefix cache as published, on the CPU platform.

A model worker's steps are played. With ``spin`` they take the time that Llama-3-8B takes, and their tokens are
arbitrary. With ``paged`` the KV pool is memory of the virtual GPU, and a token is a function of what its pages hold:
of each token a step stores a word in its slot of the first layer, and what the first layer's words up to there fold to
in its slot of the second; what the second layer's words fold to is the next token. So what was computed from garbage
is garbage, as in a model, and ``truth`` says what is right.

As on a GPU, a step is launched before the results of the one before it are used.
"""

import ctypes
import os
import random
import sys
from pathlib import Path

from .words import SEED, Words, mix, value, word, zeros

sys.path.append(os.environ["TIDEGATE_ENGINES"])
import model  # noqa: E402  # the programs of the hardware probes

WORKER = "sglang.srt.managers.tp_worker.TpModelWorker"
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
ROPE = "sglang.srt.layers.rotary_embedding.factory"
POOL = "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool"


def truth(prompt, tokens):
    """The answer of an undisturbed run."""
    first = second = SEED
    known, out = list(prompt), []
    for position in range(len(prompt) + tokens - 1):
        if position >= len(prompt):
            known.append(out[-1])
        first = mix(first, mix(value(position, known[position]), 0))
        second = mix(second, first)
        if position + 1 >= len(prompt):
            out.append(word(second))
    return out


class Step:
    """A step that was launched. It stands where SGLang has an event of the copy of its results."""

    def __init__(self, gpu, tokens, read):
        self.gpu, self.tokens, self.read = gpu, tokens, read
        #: Where SGLang keeps the tokens for the next step, and in which rows.
        self.relay = None
        self.event = ctypes.c_void_p()
        gpu.call("cuEventCreate", ctypes.byref(self.event), 2)
        gpu.call("cuEventRecord", self.event, gpu.stream)

    def synchronize(self):
        """Its tokens are where they belong once it has ended: those of all that hold them before."""
        if self.event is None:
            return
        self.gpu.call("cuEventSynchronize", self.event)
        self.gpu.call("cuEventDestroy_v2", self.event)
        self.event = None
        if self.read is None:
            return
        for at, token in enumerate(self.read()):
            self.tokens[at] = token
        if self.relay is not None:
            buffer, rows = self.relay
            buffer[rows] = self.tokens.to(buffer.dtype)


class Spin:
    """Steps that take time."""

    def __init__(self, worker):
        self.gpu = model.make("spin", "8b")
        self.draw = random.Random(0)

    def spin(self, batch):
        if batch.forward_mode.is_extend():
            self.gpu.prefill(batch.extend_num_tokens)
        else:
            self.gpu.decode(min(len(batch.reqs), model.BATCHES[-1]))

    def launch(self, batch):
        import torch

        self.spin(batch)
        return Step(self.gpu, torch.tensor([self.draw.randrange(1000, 100000) for _ in batch.reqs]), None)

    def before(self):
        """The next step is about to be put together."""


class Paged(Spin):
    """Steps that keep words in the pages of the KV pool."""

    def __init__(self, worker):
        super().__init__(worker)
        self.worker = worker
        self.kv = Words(self.gpu)
        self.under_way = None

    def before(self):
        """What the step under way samples is the next one's input, and there is one table."""
        if self.under_way is not None:
            self.under_way.synchronize()
            self.under_way = None

    def address(self, layer, position, slot):
        """Of a token's word: in K at even positions, in V at odd ones."""
        tensors = (self.pool.k_buffer, self.pool.v_buffer)[position % 2]
        tensor = tensors[layer]
        return tensor.data_ptr() + slot * tensor.stride(0) * tensor.element_size()

    def launch(self, batch):
        import torch

        runner = self.worker.model_runner
        self.pool = runner.token_to_kv_pool
        rows = runner.req_to_token_pool.req_to_token
        ends = batch.seq_lens.tolist()
        counts = batch.extend_lens if batch.forward_mode.is_extend() else [1] * len(ends)
        known = zip(batch.input_ids.tolist(), batch.out_cache_loc.tolist(), strict=True)
        table, launches = [], []
        for nth, (row, end, count) in enumerate(zip(batch.req_pool_indices.tolist(), ends, counts, strict=True)):
            slots = rows[row, :end].tolist()
            first = [len(table) + layer * end for layer in range(2)]
            for layer in range(2):
                table += [self.address(layer, position, slot) for position, slot in enumerate(slots)]
            for position in range(end - count, end):
                token, slot = next(known)
                # Written where the step says, read where the request's row says.
                table.append(self.address(0, position, slot))
                launches.append((self.kv.store, self.kv.at(len(table) - 1), 1, value(position, token), 0))
                to = self.address(1, position, slot)
                launches.append((self.kv.token, self.kv.at(first[0]), position + 1, SEED, to, 0))
            launches.append((self.kv.token, self.kv.at(first[1]), end, SEED, self.kv.answer(nth), 0))
        self.kv.send(table)
        self.spin(batch)
        self.kv.run(launches, len(ends))
        tokens = torch.zeros(len(ends), dtype=torch.int64)
        self.under_way = Step(self.gpu, tokens, lambda: [word(self.kv.folded[i]) for i in range(len(ends))])
        return self.under_way


#: By TIDEGATE_VGPU_WORKER.
STEPS = {"spin": Spin, "paged": Paged}
#: Of this process, which has one worker.
steps = None


#: What of the plugin is left out if it hears of losses, and says so, and that is all.
LOSSES = "losses"


def leave_out(clause):
    """Has the plugin be without one of its clauses (`sglang_ablations.py`), or do nothing about what is lost."""
    if not clause:
        return
    sys.path.append(str(Path(__file__).parents[2]))
    from sglang_ablations import ABLATIONS
    from tidegate_engines.sglang import hooks

    original = hooks.install

    def install(scheduler, state):
        original(scheduler, state)
        if clause == LOSSES:
            state._lose = state._give_back = lambda blocks: None
        else:
            ABLATIONS[clause](state)

    hooks.install = install


def register():
    """Called by SGLang in each of its processes (entry point ``sglang.srt.plugins``)."""
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.managers.utils import GenerationBatchResult
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    class Played(GenerationBatchResult):
        def copy_to_cpu(self, *args, **kwargs):
            self.copy_done = self.step

    def made(worker, *args, **kwargs):
        global steps
        steps = STEPS[os.environ.get("TIDEGATE_VGPU_WORKER", "spin")](worker)

    def forward(worker, batch, *args, **kwargs):
        step = steps.launch(batch)
        result = Played(logits_output=LogitsProcessorOutput(next_token_logits=None), next_token_ids=step.tokens)
        result.step = step
        if not worker.enable_overlap:
            step.synchronize()  # as SGLang does there before it goes on
        return result

    def relayed(original, scheduler, batch, rows, result, *args, **kwargs):
        original(scheduler, batch, rows, result, *args, **kwargs)
        result.step.relay = (scheduler.future_map.output_tokens_buf, rows)

    def running(scheduler, *args, **kwargs):
        steps.before()

    def allocated(original, pool):
        import torch

        before = torch.zeros
        gpu_zeros = zeros(steps.gpu)
        torch.zeros = lambda size, dtype, device: gpu_zeros(size, dtype, device)
        try:
            return original(pool)
        finally:
            torch.zeros = before

    leave_out(os.environ.get("TIDEGATE_VGPU_WITHOUT"))
    HookRegistry.register(f"{WORKER}.__init__", made, HookType.BEFORE)
    HookRegistry.register(f"{WORKER}.forward_batch_generation", forward, HookType.REPLACE)
    HookRegistry.register(f"{SCHEDULER}._relay_forward_payload", relayed, HookType.AROUND)
    HookRegistry.register(f"{SCHEDULER}.run_batch", running, HookType.BEFORE)
    # Where there are no kernels for it SGLang looks for vLLM's, to run a model that never runs here.
    HookRegistry.register(f"{ROPE}.get_rope", lambda *args, **kwargs: None, HookType.REPLACE)
    HookRegistry.register(f"{POOL}._create_buffers_normal", allocated, HookType.AROUND)
