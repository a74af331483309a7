"""A device for vLLM's tests: the host's processor, in plain torch.

vLLM's published scheduler, engine core, both of its model runners, its model classes and its LoRA manager run on it
unchanged. What a GPU's kernels do is here: attention (``attention``), adapters (``punica``), and what of CUDA's streams
the runners call (``host``).
"""


def platform() -> str:
    """The entry point ``vllm.platform_plugins``."""
    return "tidegate_cpu.platform.Host"
