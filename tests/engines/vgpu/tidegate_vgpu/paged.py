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
import threading
from pathlib import Path
from types import SimpleNamespace

import torch
from vllm.v1.worker import gpu_model_runner
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, AsyncModelRunnerOutput, ModelRunnerOutput
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker

from . import forgotten
from .words import SEED, Words, mix, value, word, zeros
from .worker import SpinWorker

sys.path.append(str(Path(__file__).parents[2]))
import fake  # noqa: E402

#: Bytes of the cache: 768 blocks of the four layers that shared.py asks for, in 12 stripes of 8 handles.
CACHE = 192 << 20


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


class FlashLayout:
    """FlashAttention's: K and V outside the blocks."""

    @staticmethod
    def get_kv_cache_block_dim(block_size, heads, size, cache_dtype_str="auto"):
        return 1


class Place:
    """Where the words of a token are in a layer's tensor, in bytes: K holds those of even positions, V those of odd ones."""

    def __init__(self, tensor):
        size = tensor.element_size()
        if tensor.dim() == 5:  # FlashAttention's: K and V outside the blocks
            self.tokens, (odd, block, slot) = tensor.shape[2], tensor.stride()[:3]
        else:  # since 0.28 [block, head, token, content], K before V
            self.tokens, odd = tensor.shape[2], tensor.shape[3] // 2
            block, slot = tensor.stride(0), tensor.stride(2)
        self.base, self.block, self.slot, self.odd = tensor.data_ptr(), block * size, slot * size, odd * size


class Runner(GPUModelRunner):
    """The model runner's part that makes the cache; the rest is PagedWorker's."""

    def __init__(self, worker):
        self.worker, self.device = worker, "cpu"
        self.vllm_config, self.cache_config = worker.vllm_config, worker.cache_config
        self.runner_only_attn_layers = set()
        self.attn_groups = []
        #: Where the memory of the cache begins.
        self.owned = []

    def reset_mm_cache(self):
        pass

    def _allocated(self, kv):
        """Each layer's tensor, as this vLLM views it."""
        module = gpu_model_runner
        if hasattr(module, "allocate_kv_cache"):
            sizes = [group.kv_cache_spec.block_size for group in kv.kv_cache_groups]
            return module.allocate_kv_cache(kv, "cpu", self.cache_config.get_resolved_kv_cache_layout(), sizes)
        specs = {layer: group.kv_cache_spec for group in kv.kv_cache_groups for layer in group.layer_names}
        return {
            layer: raw.view(spec.dtype).view(2, kv.num_blocks, spec.block_size, spec.num_kv_heads, spec.head_size)
            for layer, raw in self._allocate_kv_cache_tensors(kv).items() for spec in [specs[layer]]
        }

    def initialize_kv_cache(self, kv, **how):
        with contextlib.ExitStack() as undo:
            before, made = torch.zeros, zeros(self.worker.gpu)
            undo.callback(setattr, torch, "zeros", before)

            def allocate(*args, **kwargs):
                tensor = made(*args, **kwargs)
                self.owned.append(tensor.data_ptr())
                return tensor

            torch.zeros = allocate
            layers = self._allocated(kv)
        context = self.vllm_config.compilation_config.static_forward_context
        for group in kv.kv_cache_groups:
            spec = group.kv_cache_spec
            split = layers[group.layer_names[0]].dim() == 5
            self.attn_groups.append([SimpleNamespace(
                layer_names=group.layer_names, backend=FlashLayout if split else object(), kv_cache_spec=spec)])
            for layer in group.layer_names:
                context[layer] = SimpleNamespace(kv_cache=layers[layer])
                self.worker.layers.append(Place(layers[layer]))

    def free(self):
        """As PyTorch does with the tensors of an engine that ends."""
        while self.owned:
            self.worker.gpu.call("cuMemFree_v2", ctypes.c_uint64(self.owned.pop()))


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
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.layers = []
        self.steps = Steps(self.scheduler_config.async_scheduling)
        self.under_way = None
        #: Where workers have processes of their own, another thread asks for outputs.
        self.finishing = threading.Lock()

    def init_device(self):
        super().init_device()
        forgotten.install()
        self.model_runner = Runner(self)
        self.kv = Words(self.gpu)

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
        place = self.layers[0]
        bases = [place.base + 8 * layer for layer, place in enumerate(self.layers)]
        found = []
        for position in range(begin, end):
            block, slot = state.table[position // place.tokens], position % place.tokens
            at = block * place.block + slot * place.slot + position % 2 * place.odd
            found += [base + at for base in bases]
        return found

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
                at = self.kv.at(first + layers * position)
                launches.append((self.kv.store, at, layers, value(position, tokens[position]), 0))
            if end >= len(tokens):
                out = self.kv.answer(len(sampling))
                launches.append((self.kv.token, self.kv.at(first), layers * end, SEED, out, 0))
                sampling.append(name)
        self.kv.send(table)
        if prompts:
            self.gpu.prefill(prompts)
        if decodes:
            self.gpu.decode(min(decodes, 32))
        self.kv.run(launches, len(sampling))
        self.under_way = SimpleNamespace(names=names, sampling=sampling, output=None)
        return None

    def sample_tokens(self, grammar_output):
        return _Output(self, self.under_way)

    def finish(self, step):
        """The step's output, once it has ended."""
        with self.finishing:
            return self._finish(step)

    def _finish(self, step):
        if step.output is not None:
            return step.output
        self.gpu.wait()
        sampled = {name: word(self.kv.folded[i]) for i, name in enumerate(step.sampling)}
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

    def shutdown(self):
        if self.under_way is not None:
            self.finish(self.under_way)
        self.model_runner.free()
