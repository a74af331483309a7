"""Faults of the training inside an engine that a judge asks for, by a file: its first word is a fault's name.

Loaded by the engine's processes as another plugin of vLLM's. Each fault is at one seam, and stays until the file is gone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "COSERVE_FAULTS"


def asked() -> str:
    """The fault that is asked for."""
    try:
        return Path(os.environ[VARIABLE]).read_text().split()[0]
    except (OSError, IndexError):
        return ""


def register() -> None:
    """Called by vLLM."""
    if VARIABLE not in os.environ or not os.environ.get("TIDEGATE_TUNE"):
        return
    import torch
    from tidegate_engines import coserve_abi
    from tidegate_engines.vllm.coserve import adapters, head, riding, seam, units

    def before(owner: type[Any], name: str, fault: str, error: Callable[[], Exception]) -> None:
        original = getattr(owner, name)

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if asked() == fault:
                raise error()
            return original(self, *args, **kwargs)

        setattr(owner, name, method)

    broken = RuntimeError
    before(units.Backward, "_unit", "unit", lambda: broken("a unit broke"))
    before(units.Backward, "_carry", "memory", lambda: torch.OutOfMemoryError("no memory for a unit"))
    before(head.Head, "part", "head", lambda: broken("the head broke"))
    before(seam.Seam, "_copy", "copy", lambda: broken("rows were not copied"))
    before(seam.Seam, "_hold", "hold", lambda: broken("no block can be held"))
    before(seam.Seam, "swap", "swap", lambda: broken("keys and values cannot be copied"))
    before(seam.Seam, "sample", "sample", lambda: broken("the cache cannot be read"))
    before(riding.Riding, "begin", "ride", lambda: broken("a sample does not ride"))
    before(adapters.Adapter, "step_layers", "optimizer", lambda: broken("the optimizer broke"))
    before(adapters.Adapter, "publish", "publish", lambda: broken("the slot cannot be written"))
    before(adapters.Directory, "save_pretrained", "disk", lambda: OSError(28, "No space left on device"))
    before(coserve_abi.Coserve, "grant", "library", lambda: coserve_abi.CoserveError("the library broke"))

    part = head.Head.part

    def nan(self: Any, x: Any, targets: Any, given: Any) -> Any:
        return part(self, x * float("nan") if asked() == "nan" else x, targets, given)

    head.Head.part = nan


#: The faults, by the call that meets them and the kind of its answer.
FAULTS = {
    "unit": ("forward", "fault"),
    "memory": ("forward", "fault"),
    "head": ("forward", "fault"),
    "copy": ("forward", "fault"),
    "hold": ("forward", "fault"),
    "sample": ("forward", "fault"),
    "ride": ("forward", "fault"),
    "nan": ("forward", "not_finite"),
    "optimizer": ("step", "fault"),
    "publish": ("publish", "fault"),
    "disk": ("save", "io"),
}
