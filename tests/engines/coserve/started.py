"""vLLM's server with the training service, in processes of its own, as a user starts it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import client

#: A server is up by then, in seconds: importing vLLM twice takes a minute on a busy machine.
START_S = 400.0
#: And an answer has come.
ANSWER_S = 300.0


class Server:
    """One server, its socket and its log, in a folder."""

    def __init__(self, model: Path, folder: Path, tune: str, blocks: int = 512, **more: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.path, self.log = folder, folder / "tune.sock", folder / "log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        given = {
            "model": str(model),
            "served-model-name": "base",
            "host": "127.0.0.1",
            "port": str(self.port),
            "dtype": "float32",
            "max-model-len": "512",
            "block-size": "16",
            "num-gpu-blocks-override": str(blocks),
            "max-num-batched-tokens": "256",
            "max-num-seqs": "16",
            "max-loras": "4",
            "max-lora-rank": "16",
            **more,
        }
        words = [part for name, value in given.items() for part in (f"--{name}", value)]
        environment = {**os.environ, "VLLM_LOGGING_LEVEL": "INFO", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        environment.pop("TIDEGATE_TUNE", None)
        if tune:
            environment["TIDEGATE_TUNE"] = f"{tune},socket={self.path}"
        module = ["-m", "vllm.entrypoints.openai.api_server", "--enforce-eager", "--enable-lora"]
        with self.log.open("ab") as log:
            self._server = subprocess.Popen(
                [sys.executable, *module, *words], stdout=log, stderr=log, env=environment, start_new_session=True
            )
        try:
            self._up()
        except BaseException:
            self.kill()
            raise

    def _up(self) -> None:
        until = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return
            if self._server.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"vLLM's server did not start: {self.log.read_text()[-3000:]}")
            time.sleep(0.2)

    def ask(self, prompt: list[int], tokens: int, model: str = "base") -> list[int]:
        """A greedy answer."""
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        found = self.post("/v1/completions", {**body, "return_token_ids": True})
        return list(found["choices"][0]["token_ids"])

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, kind)
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return json.load(answer)

    def metric(self, name: str) -> float:
        """One of vLLM's own."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=ANSWER_S) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))

    def client(self) -> client.Client:
        return client.Client(self.path, ANSWER_S)

    def alive(self) -> bool:
        return self._server.poll() is None

    def said(self, words: str) -> list[str]:
        """Lines of the log with these words."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if words in line]

    def kill(self) -> None:
        """All of its processes at once, as when the machine is reset."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait()

    def stop(self) -> None:
        """As an operator does."""
        self._server.send_signal(signal.SIGTERM)
        try:
            self._server.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._server.pid, signal.SIGKILL)
