"""What Python runs when it starts, where this package is installed: ``tidegate_finetune.pth`` imports it.

In a process that asks for another role than offline, or that the library was not preloaded into, it returns at once.
Else it waits for accelerate, which prepares a model for every training script of transformers, TRL and its own; no line
of a script changes. Where the environment asks for no role, the agent's rules give one: that is asked for when a model is
prepared, when the process has its context (``trainer``).
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

#: Where models are prepared.
WAITED_FOR = "accelerate.accelerator"


class _Waits(importlib.abc.MetaPathFinder):
    """Finds one module as it would be found, and says when it has been run."""

    def __init__(self, then: Callable[[ModuleType], None]) -> None:
        self._then = then

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != WAITED_FOR:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run, then = spec.loader.exec_module, self._then

        def exec_module(module: ModuleType) -> None:
            run(module)
            then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def listen(take: Callable[[Any], None]) -> None:
    """Has ``take`` called with every model that is prepared for training."""

    def install(module: ModuleType) -> None:
        before = module.Accelerator.prepare_model

        def prepare_model(self: Any, model: Any, *args: Any, **words: Any) -> Any:
            prepared = before(self, model, *args, **words)
            if not (words.get("evaluation_mode") or (len(args) > 1 and args[1])):
                take(prepared)
            return prepared

        module.Accelerator.prepare_model = prepare_model

    if WAITED_FOR in sys.modules:
        install(sys.modules[WAITED_FOR])
    else:
        sys.meta_path.insert(0, _Waits(install))


def boot() -> None:
    """Called once, at Python's start. It never fails: it would take the program along."""
    if os.environ.get("TIDEGATE_ROLE", "") not in ("", "offline"):
        return
    from .. import abi

    if abi.library() is None:
        return

    def take(model: Any) -> None:
        from . import trainer

        trainer.take(model)

    listen(take)


boot()
