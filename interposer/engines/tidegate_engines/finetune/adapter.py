"""A finished adapter: saved whole or not at all, and handed to a vLLM server that is running.

An adapter is a directory as PEFT writes it. It is written under another name, brought to the disk and
renamed: nobody ever sees a part of it under its own name.

The server is asked with what its users have: HTTP, and the user's own key. Whatever it answers, the
training and the saved adapter are as they were, and one line says what to do.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

#: Seconds for one answer. vLLM reads the adapter from the disk before it answers, and warms nothing up.
TIMEOUT_S = 60.0


class Saves(Protocol):
    """A model that writes itself, as PEFT's do."""

    def save_pretrained(self, save_directory: str) -> None: ...


def save(model: Saves, target: Path) -> None:
    """Saves an adapter at ``target``, which may not exist.

    Raises FileExistsError where it does, and OSError where it cannot be written; nothing is left then.
    """
    if target.exists() or target.is_symlink():
        raise FileExistsError(f"{target} exists")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        model.save_pretrained(str(part))
        for folder, _, files in os.walk(part):
            for path in (*(Path(folder) / name for name in files), Path(folder)):
                sync(path)
        # Onto an empty directory that somebody made meanwhile this succeeds, onto a full one it fails.
        os.rename(part, target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    sync(target.parent)


def sync(path: Path) -> None:
    """Brings a file or a directory's entries to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class HandOver:
    """What became of an adapter at a server."""

    served: bool
    #: One line for the user.
    line: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said: a status, and its body as text. Status 0: nothing, and why."""

    status: int
    text: str


#: Asks: method, address, body. Replaced by tests of what no server answers.
Ask = Callable[[str, str, Mapping[str, Any] | None], Answer]


def ask(method: str, url: str, body: Mapping[str, Any] | None = None) -> Answer:
    """One request, with the key of ``OPENAI_API_KEY`` or ``VLLM_API_KEY`` if there is one."""
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY") or os.environ.get("VLLM_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(url, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return Answer(response.status, response.read().decode(errors="replace"))
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.read().decode(errors="replace"))
    except (OSError, ValueError, http.client.HTTPException) as error:
        return Answer(0, str(getattr(error, "reason", error)))


def hand_over(url: str, name: str, path: Path, ask: Ask = ask) -> HandOver:
    """Loads an adapter into a running vLLM as model ``name``, and has it answer once."""
    url = url.rstrip("/").removesuffix("/v1")
    load = {"lora_name": name, "lora_path": str(path.resolve())}
    answer = ask("POST", f"{url}/v1/load_lora_adapter", load)
    if answer.status == 400 and "already" in answer.text:
        gone = ask("POST", f"{url}/v1/unload_lora_adapter", {"lora_name": name})
        if gone.status != 200:
            return _not(url, name, path, f"it has another '{name}' and keeps it ({_said(gone)}); "
                        "choose another --name")  # fmt: skip
        answer = ask("POST", f"{url}/v1/load_lora_adapter", load)
    if answer.status != 200:
        return _not(url, name, path, _why(url, path, answer))
    listed = ask("GET", f"{url}/v1/models", None)
    if listed.status != 200 or name not in _models(listed.text):
        return _not(url, name, path, f"it took it but does not list it ({_said(listed)}); see its log")
    prompt = {"model": name, "prompt": "A", "max_tokens": 1, "temperature": 0}
    spoken = ask("POST", f"{url}/v1/completions", prompt)
    if spoken.status != 200:
        return _not(url, name, path, f"it lists it but does not answer with it ({_said(spoken)}); see its log")
    return HandOver(True, f"{url} answers as '{name}'")


def _why(url: str, path: Path, answer: Answer) -> str:
    if answer.status == 0:
        return f"nothing answers there ({answer.text}); is vLLM running, and is this its address?"
    if answer.status == 404 and "adapter" not in answer.text.lower():
        return (
            "it takes no adapters while it runs; start it with --enable-lora and "
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
        )
    if answer.status in (401, 403):
        return f"it wants a key ({answer.status}); set OPENAI_API_KEY"
    if "No adapter found" in answer.text or "no such file" in answer.text.lower():
        return f"it cannot read {path}; a server in a container needs that folder mounted"
    if "max_lora_rank" in answer.text or "LoRA rank" in answer.text:
        return f"{_said(answer)}; start it with a larger --max-lora-rank"
    return f"{_said(answer)}; see its log"


def _models(text: str) -> list[str]:
    try:
        return [row["id"] for row in json.loads(text)["data"]]
    except (ValueError, KeyError, TypeError):
        return []


def _said(answer: Answer) -> str:
    """A server's own words, on one line."""
    text = answer.text
    try:
        found = json.loads(text)
        inner = found.get("error", found)
        text = inner.get("message", text) if isinstance(inner, dict) else str(inner)
    except (ValueError, AttributeError):
        pass
    return f"{answer.status or 'no answer'}: {' '.join(text.split())[:200]}"


def _not(url: str, name: str, path: Path, why: str) -> HandOver:
    return HandOver(False, f"{url} does not serve '{name}': {why}. The adapter is at {path}")
