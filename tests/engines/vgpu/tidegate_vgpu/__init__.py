"""vLLM on the virtual GPU: its processes, front end, scheduler and KV-cache manager as published, and a worker
whose steps are kernels that spin for as long as such a step takes.

It shows what a model's arithmetic has no part in: that an engine starts, serves, waits and ends as it would
under the preloaded library, and that the gate follows its steps. What comes out are arbitrary tokens, but for workers
that keep words in the pages of the KV cache. ``sglang_steps`` does the like to SGLang.
"""


def platform():
    """What vLLM asks of a platform plugin (entry point ``vllm.platform_plugins``)."""
    return "tidegate_vgpu.platform.VirtualGpu"
