"""vLLM's worker on the host: its own, but for what asks the GPU."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from vllm.config import CompilationMode, set_current_vllm_config
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.gpu_worker import Worker, init_worker_distributed_environment
from vllm.v1.worker.worker_base import CompilationTimes
from vllm.v1.worker.workspace import init_workspace_manager

from . import host

#: Bytes of KV cache where the engine's arguments say nothing.
CACHE = 64 << 20


class HostWorker(Worker):
    """Both model runners, as vLLM chooses."""

    def init_device(self) -> None:
        self.device = torch.device("cpu")
        init_worker_distributed_environment(
            self.vllm_config, self.rank, self.distributed_init_method, self.local_rank, current_platform.dist_backend
        )
        set_random_seed(self.model_config.seed)
        init_workspace_manager(self.device, 1)
        host.stand_in()
        if self.use_v2_model_runner:
            from vllm.v1.worker.gpu.model_runner import GPUModelRunner

            self.model_runner: Any = GPUModelRunner(self.vllm_config, self.device)
        else:
            from vllm.v1.worker.cpu_model_runner import CPUModelRunner

            self.model_runner = CPUModelRunner(self.vllm_config, self.device)
            host.first_kernel()

    def _maybe_get_memory_pool_context(self, tag: str) -> Any:
        return nullcontext()

    def determine_available_memory(self) -> int:
        if self.vllm_config.compilation_config.mode != CompilationMode.NONE:
            # A model is compiled for any number of rows if the first pass has many.
            with torch.inference_mode(), set_current_vllm_config(self.vllm_config):
                self.model_runner.profile_run()
        return self.cache_config.kv_cache_memory_bytes or CACHE

    def compile_or_warm_up_model(self) -> Any:
        return CompilationTimes(language_model=0.0, encoder=0.0)
