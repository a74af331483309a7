"""A worker whose steps spin on the virtual GPU for as long as Llama-3-8B takes."""

import ctypes
import os
import random
import sys
from dataclasses import dataclass

import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, AsyncModelRunnerOutput, ModelRunnerOutput
from vllm.v1.worker.worker_base import CompilationTimes, WorkerBase

sys.path.append(os.environ["TIDEGATE_ENGINES"])
import model  # noqa: E402  # the programs of the hardware probes


@dataclass
class _Request:
    tokens: int
    computed: int


class _Sampled(AsyncModelRunnerOutput):
    """The output of a step under way; the next one may be launched before it is asked for."""

    def __init__(self, gpu, output):
        self.gpu, self.output = gpu, output
        self.event = ctypes.c_void_p()
        gpu.call("cuEventCreate", ctypes.byref(self.event), 2)
        gpu.call("cuEventRecord", self.event, gpu.stream)

    def get_output(self):
        self.gpu.call("cuEventSynchronize", self.event)
        self.gpu.call("cuEventDestroy_v2", self.event)
        return self.output

    def get_kv_connector_output(self):
        """As vLLM 0.33 asks: there is no connector."""
        return None


class SpinWorker(WorkerBase):
    def __init__(self, vllm_config, local_rank, rank, distributed_init_method, is_driver_worker=False, **_):
        super().__init__(vllm_config, local_rank, rank, distributed_init_method, is_driver_worker)
        self.requests: dict[str, _Request] = {}
        self.draw = random.Random(0)

    def init_device(self):
        self.device = torch.device("cpu")
        self.gpu = model.make("spin", "8b", self.local_rank)

    def load_model(self, **_):
        pass

    def get_kv_cache_spec(self):
        shape = self.model_config.hf_config
        layer = FullAttentionSpec(
            block_size=self.cache_config.block_size, num_kv_heads=shape.num_key_value_heads,
            head_size=shape.head_dim, dtype=torch.bfloat16)
        return {f"layer.{i}": layer for i in range(shape.num_hidden_layers)}

    def get_supported_kv_cache_layouts(self):
        """By the names of vLLM 0.33: there is no attention backend to ask. FlashAttention's."""
        return ["LBNHC"]

    def determine_available_memory(self):
        """Of the GPU that is played: nothing of it is allocated."""
        return 16 << 30

    def initialize_from_config(self, kv_cache_config):
        pass

    def compile_or_warm_up_model(self):
        self.gpu.prefill(16)
        self.gpu.decode(1)
        self.gpu.wait()
        return CompilationTimes(language_model=0.0, encoder=0.0)

    def get_supported_tasks(self):
        return ("generate",)

    def execute_model(self, step):
        """Launches a step: kernels of its prompts' tokens, then one for all that decode."""
        for name in step.finished_req_ids:
            self.requests.pop(name, None)
        for new in step.scheduled_new_reqs:
            self.requests[new.req_id] = _Request(len(new.prompt_token_ids), new.num_computed_tokens)
        cached = step.scheduled_cached_reqs
        for name, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            self.requests[name].computed = computed
        names = list(step.num_scheduled_tokens)
        if not names:
            return EMPTY_MODEL_RUNNER_OUTPUT
        prompts = decodes = 0
        sampled = []
        for name, tokens in step.num_scheduled_tokens.items():
            request = self.requests[name]
            if tokens == 1:
                decodes += 1
            else:
                prompts += tokens
            last = request.computed + tokens >= request.tokens
            request.tokens += last
            sampled.append([self.draw.randrange(1000, 100000)] if last else [])
        if prompts:
            self.gpu.prefill(prompts)
        if decodes:
            self.gpu.decode(min(decodes, model.BATCHES[-1]))
        self.launched = ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, sampled_token_ids=sampled)
        return None

    def sample_tokens(self, grammar_output):
        """What the step just launched will have sampled once it has ended."""
        return _Sampled(self.gpu, self.launched)

    def shutdown(self):
        pass
