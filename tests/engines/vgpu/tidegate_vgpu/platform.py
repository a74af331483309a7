"""What vLLM believes of the virtual GPU."""

import os

import torch
from vllm.platforms.interface import Platform, PlatformEnum

#: By TIDEGATE_VGPU_WORKER.
WORKERS = {"spin": "tidegate_vgpu.worker.SpinWorker", "paged": "tidegate_vgpu.paged.PagedWorker"}


class VirtualGpu(Platform):
    """Tensors of the host, if any; steps on the virtual GPU."""

    _enum = PlatformEnum.OOT
    device_name = "virtual"
    device_type = "cpu"
    dispatch_key = "CPU"
    supported_quantization: list[str] = []

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return cls.device_name

    @classmethod
    def set_device(cls, device) -> None:
        """Called by threads of a worker's; what they call says which stream it is about."""

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return 80 << 30

    @classmethod
    def check_and_update_config(cls, vllm_config) -> None:
        vllm_config.parallel_config.worker_cls = WORKERS[os.environ.get("TIDEGATE_VGPU_WORKER", "spin")]
        if vllm_config.cache_config.block_size is None:
            vllm_config.cache_config.block_size = 16

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]
