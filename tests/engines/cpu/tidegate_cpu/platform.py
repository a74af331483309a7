"""The device as vLLM sees it."""

from __future__ import annotations

from typing import Any

import torch
from vllm.platforms.interface import Platform, PlatformEnum


class Host(Platform):
    """The host's processor, as a device that vLLM does not know."""

    _enum = PlatformEnum.OOT
    # vLLM makes a torch.device of the name.
    device_name = "cpu"
    device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"
    # What vLLM compiles beside the model is small: a compiler takes longer than all that it would save here.
    simple_compile_backend = "eager"
    supported_quantization: list[str] = []

    @classmethod
    def import_kernels(cls) -> None:
        """There are none: only the Python files of the package are here."""

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return cls.device_name

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return 8 << 30

    @classmethod
    def get_current_memory_usage(cls, device: Any = None) -> float:
        return 0.0

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """There is one."""

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """torch's own seed is the host's."""

    @classmethod
    def inference_mode(cls) -> Any:
        return torch.no_grad()

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def opaque_attention_op(cls) -> bool:
        # Else Dynamo traces attention into the graph without its metadata: wrong answers and no error.
        return True

    @classmethod
    def get_attn_backend_cls(cls, *args: Any, **kwargs: Any) -> str:
        return "tidegate_cpu.attention.Backend"

    @classmethod
    def get_punica_wrapper(cls) -> str:
        return "tidegate_cpu.punica.Punica"

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        return False

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        vllm_config.parallel_config.worker_cls = "tidegate_cpu.worker.HostWorker"
        vllm_config.compilation_config.compile_sizes = []
        if not vllm_config.use_v2_model_runner:
            # As on vLLM's own platform of processors, whose first runner shares buffers between steps.
            vllm_config.scheduler_config.async_scheduling = False
        if vllm_config.model_config is not None:
            vllm_config.model_config.disable_cascade_attn = True
        if vllm_config.cache_config.block_size is None:
            vllm_config.cache_config.block_size = 16

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.float32, torch.float64]
