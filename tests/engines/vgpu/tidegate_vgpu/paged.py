"""A worker whose tokens are a function of what the pages of its KV cache really hold.

The cache is allocated and laid out as FlashAttention's, in memory of the virtual GPU. A step stores a word of every
token in every layer's block, and folds all words of a request's context into its next token, by kernels: a block
that was lost, or computed from one that was, makes a wrong token (``truth`` says which is right). Everything of
vLLM that decides over blocks is its own, and so is the plugin that shares them.
"""

import contextlib
import ctypes
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, AsyncModelRunnerOutput, ModelRunnerOutput
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker

from . import forgotten
from .worker import SpinWorker

sys.path.append(str(Path(__file__).parents[2]))
import fake  # noqa: E402

MASK = (1 << 64) - 1
SEED = 12345
#: Bytes of the cache: 768 blocks of the four layers that shared.py asks for, in 12 stripes of 8 handles.
CACHE = 192 << 20
#: Most words that the steps under way may fold, and tokens that a step may sample.
WORDS, SAMPLED = 1 << 20, 1024
#: Launches between two waits. There is one a token here, where a model has hundreds a step however many tokens it
#: is of: a thread that finds the driver's queue of 1,024 full waits inside the driver, and a model's seldom does.
AHEAD = 256


def mix(a, b):
    x = (a ^ b) * 0x9E3779B97F4A7C15 & MASK
    return x ^ (x >> 29)


def value(position, token):
    return mix(mix(SEED, position), token)


def word(folded):
    return 1000 + folded % 100000


def truth(prompt, tokens, layers):
    """The output of an undisturbed run."""
    folded, out, known = SEED, [], list(prompt)
    for position in range(len(prompt) + tokens - 1):
        if position >= len(prompt):
            known.append(out[-1])
        for layer in range(layers):
            folded = mix(folded, mix(value(position, known[position]), layer))
        if position + 1 >= len(prompt):
            out.append(word(folded))
    return out


def zeros(gpu):
    """torch.zeros, of device memory: zero at birth, and not touched until a kernel does."""

    def allocate(size, dtype, device):
        at = ctypes.c_uint64()
        gpu.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        return torch.frombuffer((ctypes.c_int8 * size).from_address(at.value), dtype=dtype)

    return allocate


def pinned(gpu, words):
    """Host memory that is copied to and from without the calling thread waiting, as vLLM's runner has it."""
    at = ctypes.c_void_p()
    gpu.call("cuMemAllocHost_v2", ctypes.byref(at), ctypes.c_size_t(8 * words))
    return (ctypes.c_uint64 * words).from_address(at.value)


class FlashLayout:
    """FlashAttention's: K and V outside the blocks."""

    @staticmethod
    def get_kv_cache_block_dim(block_size, heads, size, cache_dtype_str="auto"):
        return 1


class Runner(GPUModelRunner):
    """The model runner's part that makes the cache; the rest is PagedWorker's."""

    def __init__(self, worker):
        self.worker, self.device = worker, "cpu"
        self.vllm_config, self.cache_config = worker.vllm_config, worker.cache_config
        self.runner_only_attn_layers = set()
        self.attn_groups = []

    def reset_mm_cache(self):
        pass

    def initialize_kv_cache(self, kv):
        with contextlib.ExitStack() as undo:
            before = torch.zeros
            undo.callback(setattr, torch, "zeros", before)
            torch.zeros = zeros(self.worker.gpu)
            raw = self._allocate_kv_cache_tensors(kv)
        context = self.vllm_config.compilation_config.static_forward_context
        for group in kv.kv_cache_groups:
            spec = group.kv_cache_spec
            self.attn_groups.append([SimpleNamespace(
                layer_names=group.layer_names, backend=FlashLayout, kv_cache_spec=spec)])
            for layer in group.layer_names:
                shape = (2, kv.num_blocks, spec.block_size, spec.num_kv_heads, spec.head_size)
                context[layer] = SimpleNamespace(kv_cache=raw[layer].view(spec.dtype).view(shape))
                self.worker.layers.append(context[layer].kv_cache)


class Steps(fake.Worker):
    """What the scheduler said of each request, as a model runner keeps it."""

    def __init__(self, asynchronous):
        super().__init__(None, asynchronous, lambda: None)


class _Output(AsyncModelRunnerOutput):
    def __init__(self, worker, step):
        self.worker, self.step = worker, step

    def get_output(self):
        return self.worker.finish(self.step)

    def get_kv_connector_output(self):
        """As vLLM 0.33 asks: there is no connector."""
        return None


class PagedWorker(SpinWorker, Worker):
    KERNELS = (Path(__file__).parents[3] / "apps/kv.h").read_text(encoding="utf-8")

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.layers = []
        self.steps = Steps(self.scheduler_config.async_scheduling)
        self.under_way = None

    def init_device(self):
        super().init_device()
        forgotten.install()
        self.model_runner = Runner(self)
        text = self.KERNELS.split("KV_PTX[] =", 1)[1].split(";\n\nstruct", 1)[0]
        module = ctypes.c_void_p()
        self.gpu.call("cuModuleLoadData", ctypes.byref(module), _c_strings(text))
        self.store, self.token = ctypes.c_void_p(), ctypes.c_void_p()
        self.gpu.call("cuModuleGetFunction", ctypes.byref(self.store), module, b"tg_kv_store")
        self.gpu.call("cuModuleGetFunction", ctypes.byref(self.token), module, b"tg_kv_token")
        self.table, self.out = ctypes.c_uint64(), ctypes.c_uint64()
        self.gpu.call("cuMemAlloc_v2", ctypes.byref(self.table), ctypes.c_size_t(8 * WORDS))
        self.gpu.call("cuMemAlloc_v2", ctypes.byref(self.out), ctypes.c_size_t(8 * SAMPLED))
        self.words, self.folded = pinned(self.gpu, WORDS), pinned(self.gpu, SAMPLED)

    def initialize_from_config(self, kv_cache_config):
        """vLLM's own, around which the plugin stands."""
        return Worker.initialize_from_config(self, kv_cache_config)

    def _maybe_get_memory_pool_context(self, tag):
        return contextlib.nullcontext()  # as on CUDA without sleep mode

    def determine_available_memory(self):
        if os.environ.get("TIDEGATE_VGPU_CACHE") != "shown":
            return CACHE
        # As vLLM's worker: after a step of its own, so much of what the driver says there is, less what is not free.
        self.compile_or_warm_up_model()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.gpu.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        share = self.cache_config.gpu_memory_utilization
        return int(total.value * share) - (total.value - free.value)

    def addresses(self, state, begin, end):
        """Of the words of positions, layer by layer within each."""
        spec = self.layers[0]
        size = spec.shape[2]
        offsets = []
        for position in range(begin, end):
            block, slot = state.table[position // size], position % size
            at = (block * spec.stride(1) + slot * spec.stride(2)) * 2
            # K for even positions, V for odd ones.
            at += (position % 2) * spec.stride(0) * 2
            offsets += [tensor.data_ptr() + at + 8 * layer for layer, tensor in enumerate(self.layers)]
        return offsets

    def launch(self, kernel, *arguments):
        values = [ctypes.c_uint64(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        self.gpu.call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, self.gpu.stream, pointers, None)

    def execute_model(self, step):
        if self.under_way is not None:
            self.finish(self.under_way)  # its tokens are this one's input
        self.steps.begin(step)
        names = list(step.num_scheduled_tokens)
        if not names:
            return EMPTY_MODEL_RUNNER_OUTPUT
        layers, table, launches, sampling = len(self.layers), [], [], []
        prompts = decodes = 0
        for name in names:
            state, count = self.steps.states[name], step.num_scheduled_tokens[name]
            tokens, end = state.prompt + state.output, state.computed + count
            if count == 1:
                decodes += 1
            else:
                prompts += count
            first = len(table)
            table += self.addresses(state, 0, end)
            for position in range(state.computed, end):
                at = self.table.value + 8 * (first + layers * position)
                launches.append((self.store, at, layers, value(position, tokens[position]), 0))
            if end >= len(tokens):
                out = self.out.value + 8 * len(sampling)
                launches.append((self.token, self.table.value + 8 * first, layers * end, SEED, out, 0))
                sampling.append(name)
        self.words[:len(table)] = table
        self.gpu.call("cuMemcpyHtoDAsync_v2", self.table, self.words, ctypes.c_size_t(8 * len(table)), self.gpu.stream)
        if prompts:
            self.gpu.prefill(prompts)
        if decodes:
            self.gpu.decode(min(decodes, 32))
        for nth, launch in enumerate(launches, 1):
            self.launch(*launch)
            if nth % AHEAD == 0:
                self.gpu.wait()
        if sampling:
            size = ctypes.c_size_t(8 * len(sampling))
            self.gpu.call("cuMemcpyDtoHAsync_v2", self.folded, self.out, size, self.gpu.stream)
        self.under_way = SimpleNamespace(names=names, sampling=sampling, output=None)
        return None

    def sample_tokens(self, grammar_output):
        return _Output(self, self.under_way)

    def finish(self, step):
        """The step's output, once it has ended."""
        if step.output is not None:
            return step.output
        self.gpu.wait()
        sampled = {name: word(self.folded[i]) for i, name in enumerate(step.sampling)}
        for name, token in sampled.items():
            self.steps.states[name].output.append(token)
        step.output = ModelRunnerOutput(
            req_ids=step.names, req_id_to_index={name: i for i, name in enumerate(step.names)},
            sampled_token_ids=[[sampled[name]] if name in sampled else [] for name in step.names])
        if self.under_way is step:
            self.under_way = None
        return step.output


    def forgotten(self):
        return forgotten.tokens


def _c_strings(text):
    """The bytes of adjacent string literals of C."""
    parts = text.split('"')[1::2]
    return "".join(parts).replace("\\n", "\n").encode() + b"\0"
