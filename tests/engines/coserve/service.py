"""An engine that trains, as a user starts it: vLLM's own server with ``TIDEGATE_TUNE``, in processes of its own.

A LoRA is trained through the socket among users' requests, and compared with PEFT's own loop over the same samples. Users'
answers are compared with those of the same engine before anything was trained. Then what a user may meet: an engine that is
killed, faults at every seam, clients that leave, calls that make no sense, several adapters, a cache that is nearly full.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ablations
import faults
import rig
import tiny
import torch
from client import Client, Failed
from inside import Inside
from peft import PeftModel
from safetensors.torch import load_file
from started import Server
from transformers import AutoModelForCausalLM

RATE = 2e-3
#: Two answers are told apart where the first two tokens differ by more than noise.
NEAR = 1e-4
#: How far the adapter may end from PEFT's, of its largest value, and a loss of it.
ADAPTER, LOSS = 1e-4, 1e-4
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
#: A promise that is kept on a machine that others use: nothing is trained beside users who are late. Time is not judged.
PROMISE = "tpot=5s,ttft=60s,margin=5%,activations=600"


class Figures:
    """What was found."""

    def __init__(self) -> None:
        self.worst: dict[str, float] = {}
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def see(self, name: str, value: float, bound: float) -> None:
        value = value if value == value else float("inf")
        self.worst[name] = max(self.worst.get(name, 0.0), value)
        if value > bound:
            self.wrong.append(f"{name} {value:.1e} > {bound:.0e}")

    def hold(self, holds: bool, words: str) -> None:
        """Says what does not hold."""
        self.counts["checks"] += 1
        if not holds:
            self.wrong.append(words)


def datum(tokens: list[int]) -> dict[str, Any]:
    """A sample of which every token is learnt."""
    return {"tokens": tokens[:-1], "targets": tokens[1:]}


def batch(client: Client, name: str, data: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A step of AdamW over some samples; the answer to its forward call."""
    forward = client.send("forward", adapter=name, data=data, loss="cross_entropy", backward=True)
    step = client.send("step", adapter=name, lr=RATE, **more)
    found = client.wait(forward)
    client.wait(step)
    return found


class Users(threading.Thread):
    """Users who ask as long as this runs; what they are answered is compared with what they were answered before."""

    def __init__(self, server: Server, asked: dict[str, tuple[list[int], list[int]]], pause: float = 0.0) -> None:
        super().__init__(daemon=True)
        self._server, self._asked, self._pause = server, asked, pause
        self._over = threading.Event()
        self.answers = 0
        self.differ: list[tuple[str, list[int]]] = []
        self.error = ""

    def run(self) -> None:
        try:
            while not self._over.is_set():
                for name, (prompt, before) in self._asked.items():
                    answer = self._server.ask(prompt, len(before))
                    self.answers += 1
                    if answer != before:
                        self.differ.append((name, answer))
                    if self._over.wait(self._pause):
                        break
        except Exception as error:  # noqa: BLE001 # said by who stops this
            self.error = f"{type(error).__name__}: {error}"

    def stop(self, figures: Figures, model: Any) -> None:
        """Ends them, and says who was answered wrong."""
        self._over.set()
        self.join(300)
        figures.counts["answers"] += self.answers
        figures.hold(self.answers > 0, "no user was answered")
        figures.hold(not self.error, f"a user met {self.error}")
        for name, answer in self.differ:
            wrong = not right(model, self._asked[name][0], answer)
            figures.counts["wrong_answers"] += wrong
            figures.hold(not wrong, f"{name} was answered with another token")


def right(model: Any, prompt: list[int], answer: list[int]) -> bool:
    """Whether each token of an answer is the most likely one."""
    with torch.no_grad():
        rows = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    given = rows.gather(1, torch.tensor(answer)[:, None])[:, 0]
    return bool((rows.max(1).values - given <= NEAR).all())


def asked(server: Server, rng: random.Random, count: int) -> dict[str, tuple[list[int], list[int]]]:
    """What users ask, and what an engine that trains nothing answers."""
    prompts = {f"user {number}": rig.tokens(rng, rng.randint(5, 90)) for number in range(count)}
    return {name: (prompt, server.ask(prompt, 12)) for name, prompt in prompts.items()}


def used(server: Server) -> float:
    """The part of the cache that somebody holds, as vLLM says it at the end of a step."""
    server.ask([5, 6, 7], 1)
    return server.metric("vllm:kv_cache_usage_perc")


def wait(holds: Callable[[], bool], seconds: float) -> bool:
    """Whether something comes to hold by then."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


class Judge:
    """One version of vLLM on one model runner."""

    def __init__(self, folder: Path, given: argparse.Namespace) -> None:
        self.folder, self.given, self.figures = folder, given, Figures()
        self.rng = random.Random(f"service {given.seed}")
        self.model = tiny.save(folder / "model", "llama", given.seed)
        self.base = AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32)
        self.data = [[datum(rig.tokens(self.rng, self.rng.randint(20, 90))) for _ in range(2)] for _ in range(5)]

    # Exactness.

    def exact(self, server: Server, asks: dict[str, tuple[list[int], list[int]]], steps: int) -> None:
        """Steps of AdamW among users, against PEFT's own loop."""
        figures, client = self.figures, server.client()
        client.call("open", adapter="mine", rank=8, alpha=32, targets=TARGETS, seed=3)
        client.call("save", adapter="mine", path=str(self.folder / "begin"))
        # What is asked again when it is trained: the prefix cache has these prompts by older weights.
        prompts = [rig.tokens(self.rng, self.rng.randint(40, 90)) for _ in range(3)]
        for prompt in prompts:
            server.ask(prompt, 12, "mine")
        users = Users(server, asks)
        users.start()
        found = []
        for step in range(steps):
            found.append(batch(client, "mine", self.data[step % len(self.data)]))
            if step % 2:
                client.call("publish", adapter="mine")
        users.stop(figures, self.base)
        client.call("publish", adapter="mine")
        client.call("save", adapter="mine", path=str(self.folder / "end"))
        figures.counts["steps"] += steps
        theirs = self._peft(found, steps)
        ours = load_file(self.folder / "end" / "adapter_model.safetensors")
        flat = [torch.cat([values[name].flatten() for name in sorted(ours)]) for values in (ours, theirs)]
        figures.hold(set(ours) == set(theirs), "the saved adapter has other tensors than PEFT's")
        figures.see("adapter_worst", ((flat[0] - flat[1]).abs().max() / flat[1].abs().max()).item(), ADAPTER)
        self._answers(server, "mine", self.folder / "end", prompts)
        client.call("close", adapter="mine")
        client.close()

    def _peft(self, found: list[dict[str, Any]], steps: int) -> dict[str, torch.Tensor]:
        """PEFT's own loop from the same beginning; its adapter by the names of a saved one."""
        base = AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32)
        peft = PeftModel.from_pretrained(base, str(self.folder / "begin"), is_trainable=True)
        trained = {name: p for name, p in peft.named_parameters() if p.requires_grad}
        optimizer = torch.optim.AdamW(trained.values(), lr=RATE)
        for step, answer in zip(range(steps), found, strict=True):
            loss = 0.0
            for each, logprobs in zip(self.data[step % len(self.data)], answer["logprobs"], strict=True):
                rows = peft(torch.tensor([each["tokens"]])).logits[0].log_softmax(-1)
                picked = rows.gather(1, torch.tensor(each["targets"])[:, None])[:, 0]
                (-picked.sum()).backward()
                loss -= picked.sum().item()
                self.figures.see("logprob_worst", (picked.detach() - torch.tensor(logprobs)).abs().max().item(), 1e-2)
            self.figures.see("loss_worst", abs(answer["loss"] - loss) / abs(loss), LOSS)
            self.figures.hold(answer["version"] == step, f"step {step} was of version {answer['version']}")
            optimizer.step()
            optimizer.zero_grad()
        return {name.replace(".default", ""): p.detach() for name, p in trained.items()}

    def _answers(self, server: Server, name: str, saved: Path, prompts: list[list[int]]) -> None:
        """The model's name answers as PEFT does with the saved adapter."""
        base = AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32)
        peft = PeftModel.from_pretrained(base, str(saved))
        for prompt in prompts:
            answer = server.ask(prompt, 12, name)
            self.figures.counts["adapter_answers"] += 1
            self.figures.hold(right(peft, prompt, answer), f"{name} answers with another token than PEFT")

    # What may happen.

    def killed(self, server: Server) -> Callable[[Server], None]:
        """Kills an engine in the midst of a batch; what to do with the next one."""
        client, name = server.client(), {"adapter": "again"}
        opened = {"rank": 4, "alpha": 8, "targets": ["q_proj", "v_proj", "down_proj"], "seed": 5}
        for way in ("whole", "half"):
            client.call("open", **name, **opened)
            for step in range(6 if way == "whole" else 3):
                batch(client, "again", self.data[step % len(self.data)], clip=1.0)
            client.call("save", **name, path=str(self.folder / way), optimizer=True)
            if way == "whole":
                client.call("close", **name)
        client.send("forward", **name, data=self.data[3] * 20, loss="cross_entropy", backward=True)
        self.figures.hold(wait(lambda: self._units(server, "again") > 0, 60), "no unit ran before the engine was killed")
        server.kill()

        def resume(other: Server) -> None:
            client = other.client()
            client.call("open", **name, **{**opened, "seed": 99})
            found = client.call("load", **name, path=str(self.folder / "half"), optimizer=True)
            self.figures.hold(found["step"] == 3, f"the checkpoint is of step {found['step']}")
            for step in range(3, 6):
                batch(client, "again", self.data[step % len(self.data)], clip=1.0)
            client.call("save", **name, path=str(self.folder / "resumed"), optimizer=True)
            for file in ("adapter_model.safetensors", "optimizer.safetensors"):
                ours, theirs = (load_file(self.folder / way / file) for way in ("resumed", "whole"))
                same = set(ours) == set(theirs) and all(torch.equal(ours[key], theirs[key]) for key in ours)
                self.figures.hold(same, f"{file} of the resumed training has other values")
            client.call("close", **name)
            self.figures.counts["resumed"] += 1

        return resume

    def _units(self, server: Server, name: str) -> int:
        other = server.client()
        found = other.call("status")["adapters"]
        other.close()
        return next((each["units"] for each in found if each["name"] == name), 0)

    def faulty(self, server: Server, asks: dict[str, tuple[list[int], list[int]]], among: list[str]) -> None:
        """A fault at each seam: the call fails in a line, serving goes on, nothing is lost, and the next call is right."""
        figures, client = self.figures, server.client()
        switch = Path(os.environ[faults.VARIABLE])
        # Of several windows.
        long = [datum(rig.tokens(self.rng, 80)) for _ in range(2)]
        client.call("open", adapter="faulty", rank=4, alpha=4, targets=["q_proj", "up_proj"], seed=1)
        users = Users(server, asks, 0.02)
        users.start()
        for fault in among:
            call, kind = faults.FAULTS[fault]
            if call in ("publish", "step"):
                client.call("forward", adapter="faulty", data=self.data[0], loss="cross_entropy", backward=True)
            if call == "publish":
                client.call("step", adapter="faulty", lr=RATE)
            more: dict[str, Any] = {
                "forward": {"data": long, "loss": "cross_entropy", "backward": True},
                "step": {"lr": RATE},
                "save": {"path": str(self.folder / f"fault-{fault}")},
            }.get(call, {})
            switch.write_text(fault)
            try:
                client.call(call, adapter="faulty", **more)
                figures.hold(False, f"{fault}: {call} was answered as if nothing had happened")
            except Failed as error:
                figures.hold(error.kind == kind, f"{fault}: {call} failed with {error}")
                figures.hold("\n" not in str(error), f"{fault}: {call} failed with several lines")
            switch.unlink()
            figures.counts["faults"] += 1
            if call == "step":
                # Its weights may be of two versions: a checkpoint is loaded.
                client.call("load", adapter="faulty", path=str(self._checkpoint(client)))
            client.call("zero", adapter="faulty")
            found = client.call("forward", adapter="faulty", data=self.data[1], loss="cross_entropy")
            figures.hold(found["loss"] > 0, f"after {fault} a loss is {found['loss']}")
        users.stop(figures, self.base)
        client.call("close", adapter="faulty")
        client.close()
        self.nothing_left(server, "the faults")

    def _checkpoint(self, client: Client) -> Path:
        """A directory of the adapter's shape."""
        path = self.folder / "fault-checkpoint"
        if not path.exists():
            client.call("open", adapter="other", rank=4, alpha=4, targets=["q_proj", "up_proj"], seed=1)
            client.call("save", adapter="other", path=str(path))
            client.call("close", adapter="other")
        return path

    def nothing_left(self, server: Server, after: str) -> None:
        """No block, no activation and no slot is held."""
        client = server.client()
        self.figures.hold(wait(lambda: not used(server), 30), f"after {after} {used(server):.3f} of the cache is held")
        found = client.call("hello")
        self.figures.hold(found["slots_free"] == found["slots"], f"after {after} slots are held: {found['adapters']}")
        client.close()

    def leaving(self, server: Server) -> None:
        """A client that leaves in the midst of a batch, and one that speaks nonsense."""
        figures, client = self.figures, server.client()
        client.call("open", adapter="left", rank=4, alpha=4, targets=["q_proj"], seed=1)
        client.send("forward", adapter="left", data=self.data[0] * 20, loss="cross_entropy", backward=True)
        client.send("step", adapter="left", lr=RATE)
        figures.hold(wait(lambda: self._units(server, "left") > 0, 60), "no unit of the batch ran")
        client.close()
        other = server.client()

        def idle() -> bool:
            (found,) = other.call("status")["adapters"]
            return found["activation_bytes"] == 0 and found["waiting"] == 0

        figures.hold(wait(idle, 30), "what a client left goes on, or is held")
        figures.hold(other.call("status")["adapters"][0]["step"] == 0, "half a batch became a step")
        for method, more in (("step", {"lr": RATE}), ("forward", {"data": self.data[0], "loss": "cross_entropy"})):
            figures.hold(refused(other, method, "bad_request", adapter="left", **more), f"{method} goes on with half a batch")
        other.call("zero", adapter="left")
        batch(other, "left", self.data[0])
        other.call("close", adapter="left")
        self._nonsense(server, other)
        other.close()
        self.nothing_left(server, "a client that left")

    def _nonsense(self, server: Server, other: Client) -> None:
        good = self.data[0][0]
        opened = {"rank": 4, "alpha": 4, "targets": ["q_proj"]}
        calls: list[tuple[str, str, dict[str, Any]]] = [
            ("unknown_method", "nothing", {}),
            ("unknown_adapter", "step", {"adapter": "nobody", "lr": 1e-3}),
            ("bad_request", "open", {"adapter": "../x", **opened}),
            ("exists", "open", {"adapter": "base", **opened}),
            ("rank", "open", {"adapter": "bad", **opened, "rank": 17}),
            ("unsupported", "open", {"adapter": "bad", **opened, "targets": ["lm_head"]}),
            ("bad_request", "step", {"adapter": "good", "lr": "fast"}),
            ("bad_request", "step", {"adapter": "good", "lr": 1e-3}),
            ("bad_request", "forward", {"adapter": "good", "data": []}),
            ("bad_request", "forward", {"adapter": "good", "data": [good], "loss": "hinge"}),
            ("bad_request", "forward", {"adapter": "good", "data": [good], "backward": True}),
            ("bad_request", "forward", {"adapter": "good", "data": [good], "loss": "ppo"}),
            ("bad_request", "forward", {"adapter": "good", "data": [{"tokens": [1, 2], "targets": [1]}]}),
            ("bad_request", "forward", {"adapter": "good", "data": [{"tokens": [1, 300], "targets": [1, 2]}]}),
            ("bad_request", "forward", {"adapter": "good", "data": [{"tokens": [5] * 512, "targets": [5] * 512}]}),
            ("bad_request", "backward", {"adapter": "good", "data": [good]}),
            ("bad_request", "save", {"adapter": "good", "path": "here"}),
            ("exists", "save", {"adapter": "good", "path": str(self.folder)}),
            ("io", "load", {"adapter": "good", "path": str(self.folder / "nowhere")}),
            ("bad_request", "encode", {"text": "a", "messages": []}),
        ]
        other.call("open", adapter="good", **opened)
        scaled = self.folder / "scaled"
        other.call("save", adapter="good", path=str(scaled))
        config = json.loads((scaled / "adapter_config.json").read_text())
        (scaled / "adapter_config.json").write_text(json.dumps({**config, "use_rslora": True}))
        calls.append(("bad_request", "load", {"adapter": "good", "path": str(scaled)}))
        calls.append(("rank", "load", {"adapter": "good", "path": str(self.folder / "begin")}))
        calls.append(("io", "load", {"adapter": "good", "path": str(self.folder / "begin"), "optimizer": True}))
        for kind, method, more in calls:
            self.figures.hold(refused(other, method, kind, **more), f"{method} with {json.dumps(more)[:80]} is not {kind}")
        other.call("close", adapter="good")
        for body, length in ((b"nonsense", None), (b'{"method": "hello"}', None), (b"", 1 << 31)):
            client = server.client()
            client.raw(body, length)
            self.figures.hold(refused_none(client), f"{body!r} of length {length} is answered")
            client.close()

    def crowded(self, server: Server) -> None:
        """In a cache that is nearly full samples give their blocks to users, and lose nothing."""
        figures, client = self.figures, server.client()
        prompts = [rig.tokens(self.rng, 84) for _ in range(5)]
        before = [server.ask(prompt, 12) for prompt in prompts]
        data = [datum(rig.tokens(self.rng, 190)) for _ in range(6)]
        found: list[tuple[float, float]] = []
        more = {"adapter": "crowded", "data": data, "loss": "cross_entropy", "backward": True}
        client.call("open", adapter="crowded", rank=4, alpha=4, targets=["q_proj", "v_proj"], seed=1)
        for _ in self._until(server, crowd := []):
            call = client.send("forward", **more)
            if found:
                self._crowd(server, crowd, prompts, before)
            loss = client.wait(call)["loss"]
            # A step of no length: what it measures is the gradient.
            found.append((loss, client.call("step", adapter="crowded", lr=0.0, weight_decay=0.0)["gradient_norm"]))
        for name, values in zip(("crowded_loss_worst", "crowded_gradient_worst"), zip(*found, strict=True), strict=True):
            figures.see(name, max(abs(value - values[0]) / values[0] for value in values), 1e-4)
        figures.hold(server.metric("vllm:num_preemptions_total") == 0, "a request was preempted in a crowd")
        # The same where what is given away cannot be copied.
        switch, failed = Path(os.environ[faults.VARIABLE]), ""
        switch.write_text("swap")
        until = time.monotonic() + 60
        while not failed and time.monotonic() < until:
            call = client.send("forward", **more)
            self._crowd(server, [], prompts, before)
            try:
                client.wait(call)
            except Failed as error:
                failed = error.kind
            client.call("zero", adapter="crowded")
        switch.unlink()
        figures.counts["faults"] += 1
        figures.hold(failed == "fault", f"a sample that cannot be copied is {failed or 'nothing'}")
        client.call("close", adapter="crowded")
        client.close()
        self.nothing_left(server, "the crowd")

    def _until(self, server: Server, crowd: list[int]) -> Iterator[None]:
        """Again and again, until a sample gave its blocks to a crowd, or two minutes have passed."""
        client, until = server.client(), time.monotonic() + 120
        swapped = 0
        while not swapped and time.monotonic() < until:
            yield
            swapped = next(each["swapped"] for each in client.call("status")["adapters"] if each["name"] == "crowded")
        client.close()
        self.figures.counts["swapped"] += swapped
        self.figures.hold(swapped > 0 and bool(crowd), "no sample gave its blocks to users")

    def _crowd(self, server: Server, crowd: list[int], prompts: list[list[int]], before: list[list[int]]) -> None:
        asks = zip(prompts, before, strict=True)
        others = [threading.Thread(target=self._answered, args=(server, *each)) for each in asks]
        for other in others:
            other.start()
        for other in others:
            other.join(300)
        crowd.append(len(others))

    def _answered(self, server: Server, prompt: list[int], before: list[int]) -> None:
        answer = server.ask(prompt, len(before))
        self.figures.counts["answers"] += 1
        same = answer == before or right(self.base, prompt, answer)
        self.figures.hold(same, "a user in a crowd was answered with another token")

    def ended(self, server: Server) -> None:
        """The library itself breaks: training ends in a line, and serving goes on."""
        figures, client = self.figures, server.client()
        asks = asked(server, self.rng, 2)
        client.call("open", adapter="ended", rank=4, alpha=4, targets=["q_proj"], seed=1)
        switch = Path(os.environ[faults.VARIABLE])
        switch.write_text("library")
        more = {"adapter": "ended", "data": self.data[0], "loss": "cross_entropy", "backward": True}
        figures.hold(refused(client, "forward", "engine_gone", **more), "a library that broke is no engine_gone")
        switch.unlink()
        figures.hold(refused(client, "hello", "engine_gone"), "training goes on after its end")
        for name, (prompt, before) in asks.items():
            answer = server.ask(prompt, len(before))
            figures.hold(answer == before or right(self.base, prompt, answer), f"{name} is answered wrong after the end")
        figures.hold(wait(lambda: not used(server), 30), "blocks are held after the end of training")
        figures.hold(len(server.said("Tidegate trains no more in this engine")) == 1, "the end of training is not one line")
        client.close()

    def several(self, server: Server) -> None:
        """Two adapters at a time, by weight: each is as if it were alone."""
        figures, client = self.figures, server.client()
        alone = {}
        for together in (False, True):
            names = ("one", "two")
            for name, seed, weight in zip(names, (1, 2), (1.0, 3.0), strict=True):
                client.call("open", adapter=name, rank=4, alpha=4, targets=["q_proj", "v_proj"], seed=seed, weight=weight)
            calls = []
            for step in range(3):
                for name in names:
                    data = self.data[step]
                    calls.append((name, client.send("forward", adapter=name, data=data, loss="cross_entropy", backward=True)))
                    client.send("step", adapter=name, lr=RATE)
                    if not together:
                        client.wait(calls[-1][1] + 1)
            losses = [(name, client.wait(call)["loss"]) for name, call in calls]
            if together:
                for (name, loss), (_, before) in zip(losses, alone, strict=True):
                    figures.see("together_worst", abs(loss - before) / abs(before), 1e-4)
            alone = losses
            figures.hold(refused(client, "open", "exists", adapter="one", rank=4, alpha=4, targets=["q_proj"]), "twice")
            for name in names:
                client.call("close", adapter=name)
        for number in range(3):
            client.call("open", adapter=f"slot-{number}", rank=2, alpha=2, targets=["q_proj"])
        full = refused(client, "open", "no_slot", adapter="slot-3", rank=2, alpha=2, targets=["q_proj"])
        figures.hold(full, "more adapters are open than there are slots")
        for number in range(3):
            client.call("close", adapter=f"slot-{number}")
        client.close()
        self.nothing_left(server, "several adapters")


def refused(client: Client, method: str, kind: str, **more: Any) -> bool:
    """Whether a call is refused with this kind."""
    try:
        client.call(method, **more)
    except Failed as error:
        return error.kind == kind and "\n" not in str(error)
    return False


def refused_none(client: Client) -> bool:
    """Whether what was sent is answered with an error of no call."""
    try:
        client.wait(None)
    except Failed as error:
        return error.kind == "bad_request"
    return False


def all_of(judge: Judge, given: argparse.Namespace) -> None:
    """Everything, with two servers one after the other."""
    os.environ[faults.VARIABLE] = str(judge.folder / "fault")
    promise = f"{PROMISE},chunk=32"
    server = Server(judge.model, judge.folder / "first", promise)
    try:
        asks = asked(server, judge.rng, 4)
        judge.exact(server, asks, given.steps)
        judge.several(server)
        judge.leaving(server)
        judge.faulty(server, asks, list(faults.FAULTS))
        resume = judge.killed(server)
    finally:
        server.kill()
    # The socket of the one that was killed is still there. So few blocks that samples have to give theirs to users.
    server = Server(judge.model, judge.folder / "first", promise, blocks=43)
    try:
        resume(server)
        judge.nothing_left(server, "going on")
        judge.crowded(server)
        judge.ended(server)
        server.stop()
        judge.figures.hold(not server.path.exists(), "a server that was stopped left its socket")
    finally:
        server.kill()
    untouched(judge)


def untouched(judge: Judge) -> None:
    """A variable that nobody understands is one line, and the engine serves."""
    server = Server(judge.model, judge.folder / "untouched", "tpot=fast")
    try:
        prompt = rig.tokens(judge.rng, 20)
        judge.figures.hold(right(judge.base, prompt, server.ask(prompt, 12)), "a server without training answers wrong")
        lines = [line for line in server.said("Tidegate trains") if "TIDEGATE_TUNE: tpot=fast" in line]
        judge.figures.hold(len(lines) == 1 == len(server.said("Tidegate")), f"a bad value is said by {lines}")
        judge.figures.hold(not server.path.exists(), "there is a socket without training")
    finally:
        server.kill()


def smoke(judge: Judge, given: argparse.Namespace) -> None:
    """A few steps in this process; with ``--inside`` all that needs no other one."""
    os.environ[faults.VARIABLE] = str(judge.folder / "fault")
    engine = Inside(judge.model, judge.folder / "inside", f"{PROMISE},chunk=32", 43)

    def run() -> None:
        asks = asked(engine, judge.rng, 2)
        judge.exact(engine, asks, given.steps if given.inside else min(given.steps, 4))
        judge.nothing_left(engine, "some steps")
        if given.inside:
            judge.several(engine)
            judge.leaving(engine)
            judge.faulty(engine, asks, list(faults.FAULTS))
            judge.crowded(engine)
            judge.ended(engine)

    engine.run(run)
    engine.end()
    judge.figures.hold(not engine.path.exists(), "an engine that ended left its socket")


def kept() -> None:
    """A step leaves its gradient behind."""
    from tidegate_engines.vllm.coserve.job import Job

    Job._stepped = lambda self: setattr(self, "_stale", True)


def stale() -> None:
    """Samples ride with the weights that the last step replaced."""
    from tidegate_engines.vllm.coserve.job import Job

    Job._rewrite = lambda self: None


def unfiltered() -> None:
    """A sample's request is ended nowhere: its blocks stay held."""
    from tidegate_engines.vllm.coserve.riding import Riding

    Riding.end = lambda self, name: None


def in_any_order() -> None:
    """Each sample's gradient takes the place of the one before."""
    from tidegate_engines.vllm.coserve import units
    from tidegate_engines.vllm.coserve.job import Job

    def added(self: Job) -> units.Gradients:
        self.gradients = units.gradients(self.adapter.layers)
        return self.gradients

    Job._added = added


#: What may be left out, beside what ``coserve exact`` leaves out: each must make the smoke fail.
CLAUSES: dict[str, Callable[[], None]] = {
    "kept": kept,
    "stale": stale,
    "ended": unfiltered,
    "added": in_any_order,
    **{name: ablations.CLAUSES[name] for name in ("copy", "key", "layer", "scale")},
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="coserve service", description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a few steps in this process")
    parser.add_argument("--inside", action="store_true", help="all that needs no other process, in this one")
    parser.add_argument("--without", choices=sorted(CLAUSES), help="a clause of the plugin is left out of the smoke")
    parser.add_argument("--steps", type=int, default=20, help="of AdamW")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.without:
        given.smoke = True
        CLAUSES[given.without]()
    # Its servers have sessions of their own, and end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    warnings.filterwarnings("ignore")
    torch.manual_seed(given.seed)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="coserve-") as folder:
        judge = Judge(Path(folder), given)
        try:
            (smoke if given.smoke or given.inside else all_of)(judge, given)
        except BaseException as error:  # noqa: BLE001 # it is said beside what was found, also where a signal ends this
            traceback.print_exc()
            judge.figures.wrong.append(f"{type(error).__name__}: {error}")
            for log in Path(folder).glob("*/log"):
                lines = log.read_text(errors="replace").splitlines()
                print("\n".join([line for line in lines if "Tidegate" in line or "Error" in line][-40:]), file=sys.stderr)
    figures = judge.figures
    line = {"what": "service", "version": os.environ["COSERVE_VERSION"], "runner": os.environ["COSERVE_RUNNER"]}
    line |= {"seed": given.seed, "wrong": len(figures.wrong), **figures.worst, **figures.counts}
    print(json.dumps({**line, "seconds": round(time.monotonic() - begun)}), flush=True)
    for words in figures.wrong[:20]:
        print(f"coserve: service: {words}", file=sys.stderr)
    return int(bool(figures.wrong))


if __name__ == "__main__":
    sys.exit(main())
