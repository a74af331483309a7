"""An adapter is whole under its name or not there; a server that does not take it changes nothing."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import cases
import pytest
import torch
from peft import PeftModel
from tidegate_engines.finetune import adapter


class Server:
    """A server in the shape of vLLM's: what it answers to a load is given."""

    def __init__(self, load: Callable[[Server, dict], tuple[int, dict]]) -> None:
        self.load = load
        self.loaded: dict[str, str] = {}
        self.asked: list[str] = []
        self.unloads = True
        self.lists = True

    def answer(self, method: str, path: str, body: dict) -> tuple[int, dict]:
        self.asked.append(f"{method} {path}")
        if path == "/v1/load_lora_adapter":
            return self.load(self, body)
        if path == "/v1/unload_lora_adapter" and self.unloads:
            self.loaded.pop(body["lora_name"], None)
            return 200, {}
        if path == "/v1/models":
            names = ["base", *(self.loaded if self.lists else ())]
            return 200, {"data": [{"id": name} for name in names]}
        if path == "/v1/completions" and body["model"] in self.loaded:
            return 200, {"choices": [{"text": "b"}]}
        return 404, {"detail": "Not Found"}


def takes(server: Server, body: dict) -> tuple[int, dict]:
    if body["lora_name"] in server.loaded:
        text = f"The lora adapter '{body['lora_name']}' has already been loaded."
        return 400, {"error": {"message": text}}
    if not (Path(body["lora_path"]) / "adapter_config.json").exists():
        return 404, {"error": {"message": f"Loading lora x failed: No adapter found for {body['lora_path']}"}}
    server.loaded[body["lora_name"]] = body["lora_path"]
    return 200, {}


@contextmanager
def serving(server: Server) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            status, answer = server.answer(self.command, self.path, body)
            if status == 0:
                self.connection.close()
                return
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = respond

        def log_message(self, *_: object) -> None:
            return None

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        http.server_close()


class Folder:
    """A model that writes what an adapter has."""

    def save_pretrained(self, save_directory: str) -> None:
        os.makedirs(save_directory)
        Path(save_directory, "adapter_config.json").write_text("{}")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    adapter.save(Folder(), tmp_path / "out" / "support")
    return tmp_path / "out" / "support"


def test_a_server_that_takes_it_answers_with_it(saved):
    server = Server(takes)
    with serving(server) as url:
        # With the suffix that an OpenAI client is given, too.
        for address in (url, f"{url}/v1/"):
            found = adapter.hand_over(address, "support", saved)
            assert found == adapter.HandOver(True, f"{url} answers as 'support'")
    assert server.loaded == {"support": str(saved.resolve())}


def test_one_that_has_it_loaded_gets_the_new_one(saved):
    server = Server(takes)
    server.loaded["support"] = "/an/older/one"
    with serving(server) as url:
        assert adapter.hand_over(url, "support", saved).served
    assert server.loaded == {"support": str(saved.resolve())}
    assert server.asked[:3] == [
        "POST /v1/load_lora_adapter",
        "POST /v1/unload_lora_adapter",
        "POST /v1/load_lora_adapter",
    ]


@pytest.mark.parametrize(
    ("load", "say"),
    [
        (lambda *_: (404, {"detail": "Not Found"}), "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"),
        (lambda *_: (500, {"error": {"message": "out of\nmemory"}}), "500: out of memory; see its log"),
        (lambda *_: (401, {"error": "Unauthorized"}), "set OPENAI_API_KEY"),
        (lambda *_: (0, {}), "is vLLM running"),
        (lambda *_: (404, {"error": {"message": "No adapter found for /x"}}), "folder mounted"),
        (lambda *_: (400, {"message": "LoRA rank 64 is greater than max_lora_rank 16"}), "--max-lora-rank"),
        (lambda *_: (200, {}), "does not list it"),
    ],
)
def test_whatever_else_it_says_is_one_line_with_a_way_out(saved, load, say):
    before = sorted(path.name for path in saved.iterdir())
    with serving(Server(load)) as url:
        found = adapter.hand_over(url, "support", saved)
    assert not found.served
    assert say in found.line
    assert "\n" not in found.line
    assert found.line.endswith(f"The adapter is at {saved}")
    assert sorted(path.name for path in saved.iterdir()) == before


def test_one_that_keeps_an_older_one_of_that_name_is_told(saved):
    server = Server(takes)
    server.loaded["support"] = "/an/older/one"
    server.unloads = False
    with serving(server) as url:
        assert "choose another --name" in adapter.hand_over(url, "support", saved).line
    assert server.loaded == {"support": "/an/older/one"}


def test_where_nothing_listens_it_says_so(saved):
    with serving(Server(takes)) as url:
        pass
    found = adapter.hand_over(url, "support", saved)
    assert not found.served and "nothing answers there" in found.line
    assert not adapter.hand_over("no address", "support", saved).served


# P-TRAINER-4: a finished adapter is whole or not there.
def test_a_save_that_fails_leaves_nothing(tmp_path):
    class Fails(Folder):
        def save_pretrained(self, save_directory: str) -> None:
            super().save_pretrained(save_directory)
            raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        adapter.save(Fails(), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_its_name_appears_when_all_of_it_is_there(tmp_path):
    seen = []

    class Looks(Folder):
        def save_pretrained(self, save_directory: str) -> None:
            super().save_pretrained(save_directory)
            seen.append((tmp_path / "a").exists())

    adapter.save(Looks(), tmp_path / "a")
    assert seen == [False]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    with pytest.raises(FileExistsError):
        adapter.save(Looks(), tmp_path / "a")


def test_it_loads_in_peft_with_the_same_logits(tmp_path):
    case = replace(cases.draw("llama", 1, "float32"), length=8, padding="none", batch=1, checkpointing=False)
    model = cases.model(case).eval()
    ids = cases.batch(case)["input_ids"]
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    adapter.save(model, tmp_path / "a")
    base = model.unload()
    with torch.no_grad():
        assert (base(input_ids=ids).logits - logits).abs().max() > 1e-5
        loaded = PeftModel.from_pretrained(base, str(tmp_path / "a")).eval()
        assert (loaded(input_ids=ids).logits - logits).abs().max() <= 1e-5
