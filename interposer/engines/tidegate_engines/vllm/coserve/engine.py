"""One engine core as training sees it: its model's parts, its adapters' slots, and the clock of its device."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from . import decoder, head
from .adapters import Adapter
from .riding import Riding
from .seam import Seam

#: Numbers of trained adapters begin here: vLLM's front end counts its own from 1.
FIRST = 1 << 20


class Engine:
    """Used by the engine core's thread."""

    def __init__(self, core: Any, folder: Path, activations: int) -> None:
        driver = core.model_executor.driver_worker
        self.core, self.folder, self.activations = core, folder, activations
        self.runner = getattr(driver, "worker", driver).model_runner
        self.scheduler = core.scheduler
        self.seam = Seam(self.runner, core.scheduler)
        self.riding = Riding(core, self.seam)
        self.layers, self.head = decoder.layers(self.runner.model), head.Head.of(self.runner.model)
        self.config = core.vllm_config
        self.model: str = self.config.model_config.model
        self.device = self.layers[0].weights.qkv.device
        #: Whether there is news for training.
        self.woken = False
        self._numbers = iter(range(FIRST, 1 << 31))

    @property
    def manager(self) -> Any:
        """vLLM's LoRA model manager."""
        return self.runner.lora_manager._adapter_manager

    @property
    def block_size(self) -> int:
        return self.seam.block_size

    @property
    def vocabulary(self) -> int:
        return len(self.head.weight)

    @property
    def slots(self) -> int:
        """Adapters that can be trained at a time: users have one slot at least."""
        return int(self.config.lora_config.max_loras) - 1

    def request(self, name: str) -> Any:
        """A new adapter as vLLM names it."""
        from vllm.lora.request import LoRARequest

        number = next(self._numbers)
        return LoRARequest(name, number, str(self.folder / str(number)))

    def load(self, lora: Any) -> None:
        """Has vLLM load an adapter, in a slot that :meth:`Riding.reserve` has set aside, and keeps it there."""
        try:
            self.core.model_executor.add_lora(lora)
            self.manager.pin_adapter(lora.lora_int_id)
        except BaseException:
            self.core.model_executor.remove_lora(lora.lora_int_id)
            self.riding.release()
            raise
        # Another adapter may have had this name.
        self.riding.published(lora.lora_int_id)

    def unload(self, lora: Any) -> None:
        """The adapter's slot is free. Its directory stays: a request under way may bring it back from there."""
        self.core.model_executor.remove_lora(lora.lora_int_id)
        self.riding.published(lora.lora_int_id)
        self.riding.release()

    def publish(self, adapter: Adapter, lora: Any) -> None:
        """Has all passes from the next on read these weights."""
        adapter.publish(self.manager, lora.lora_int_id)
        self.riding.published(lora.lora_int_id)

    def wait(self) -> None:
        """Until the device has done what was asked of it."""
        if self.device.type != "cpu":
            torch.accelerator.current_stream(self.device).synchronize()

    def arrived(self) -> bool:
        """Whether a request of a user's waits to be taken in."""
        arrivals = getattr(self.core, "input_queue", None)
        if arrivals is None or arrivals.empty():
            return False
        with arrivals.mutex:
            return any(kind.name == "ADD" for kind, _ in arrivals.queue)

    def wake(self) -> None:
        """Has a core that waits for requests go on. Any thread may call this."""
        from vllm.v1.engine import EngineCoreRequestType

        self.woken = True
        arrivals = getattr(self.core, "input_queue", None)
        if arrivals is not None:
            arrivals.put_nowait((EngineCoreRequestType.WAKEUP, None))

    def rest(self, seconds: float) -> None:
        """Waits for whatever comes first: a message to the core, or this time."""
        arrivals = getattr(self.core, "input_queue", None)
        if arrivals is None:
            return
        with arrivals.not_empty:
            if not arrivals.queue:
                arrivals.not_empty.wait(seconds)

    @property
    def running(self) -> bool:
        """Whether it takes in requests, and makes steps."""
        going = getattr(self.core, "is_running", None)
        return (going is None or going()) and self.scheduler._pause_state.name == "UNPAUSED"

    @staticmethod
    def now() -> int:
        return time.monotonic_ns()
