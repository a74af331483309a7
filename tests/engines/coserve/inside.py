"""The same engine inside the judge's own process: no HTTP and no loop of vLLM's, and a start of seconds."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path

import client
import rig

#: An answer has come by then, in seconds.
ANSWER_S = 300.0


class Inside:
    """An engine that the main thread steps while another one judges it."""

    def __init__(self, model: Path, folder: Path, tune: str, blocks: int = 512) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / "tune.sock"
        os.environ["TIDEGATE_TUNE"] = f"{tune},socket={self.path}"
        self._lines: list[str] = []
        self._listen()
        from vllm.plugins import load_general_plugins

        load_general_plugins()
        self._engine = rig.engine(model, blocks, max_loras=4, max_cpu_loras=4, served_model_name="base")
        from tidegate_engines.vllm.coserve import live
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        self._sampling, self._lora = SamplingParams, LoRARequest
        self.trainer = getattr(rig.core(self._engine), live.STATE, None)
        if self.trainer is None:
            raise RuntimeError("vLLM's own start did not load the plugin, or nothing can be trained")
        self._preempted: set[str] = set()
        self._asked: queue.SimpleQueue[tuple[list[int], int, str, queue.SimpleQueue[list[int]]]] = queue.SimpleQueue()

    def _listen(self) -> None:
        """Keeps what the plugin says."""
        lines = self._lines

        class Kept(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                lines.append(record.getMessage())

        logger = logging.getLogger("vllm.tidegate")
        logger.addHandler(Kept())
        logger.setLevel(logging.INFO)
        logger.propagate = False

    def said(self, words: str) -> list[str]:
        """What it said with these words."""
        return [line for line in self._lines if words in line]

    def run(self, judge: Callable[[], None]) -> None:
        """Steps until the judge is done."""
        errors: list[BaseException] = []

        def call() -> None:
            try:
                judge()
            except BaseException as error:  # noqa: BLE001 # raised below
                errors.append(error)

        other = threading.Thread(target=call, daemon=True)
        other.start()
        waiting: dict[str, queue.SimpleQueue[list[int]]] = {}
        serial = 0
        while other.is_alive():
            while not self._asked.empty():
                prompt, tokens, name, answer = self._asked.get()
                serial += 1
                words = self._sampling(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
                job = self.trainer.jobs.get(name)
                lora = None if job is None else job.lora
                self._engine.add_request(f"user-{serial}", {"prompt_token_ids": prompt}, words, lora_request=lora)
                waiting[f"user-{serial}"] = answer
            requests = list(rig.core(self._engine).scheduler.requests.values())
            for output in self._engine.step():
                if output.finished:
                    waiting.pop(output.request_id).put(list(output.outputs[0].token_ids))
            users = [request for request in requests if request.request_id.startswith("user-")]
            self._preempted |= {request.request_id for request in users if request.num_preemptions}
            if not waiting and not self.trainer.wants():
                other.join(0.002)
        if errors:
            raise errors[0]

    def ask(self, prompt: list[int], tokens: int, model: str = "base") -> list[int]:
        answer: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        self._asked.put((prompt, tokens, model, answer))
        return answer.get(timeout=ANSWER_S)

    def metric(self, name: str) -> float:
        """Of vLLM's own, those that judges ask for."""
        pool = rig.core(self._engine).scheduler.kv_cache_manager.block_pool
        return {"vllm:kv_cache_usage_perc": pool.get_usage(), "vllm:num_preemptions_total": len(self._preempted)}[name]

    def client(self) -> client.Client:
        return client.Client(self.path, ANSWER_S)

    def end(self) -> None:
        rig.end(self._engine)
