"""Figures of the trainer's units beside what people use without them: memory, time, and PEFT's own adapter.

    scripts/finetune golden [--seed N] [--json FILE] [--only memory|time|unit|peft]

memory  bytes that one micro-batch of 1,024 tokens keeps of its layers for the backward pass, of a tiny model and of one
        of 135 million weights: what autograd saves (by ``saved_tensors_hooks``, weights apart), what is held when each
        layer is computed again as a whole, and what windows hold. Held and kept state is counted with what autograd
        saves within a unit. The last may be 15 % of the first. The tiny model misses that: what is there once,
        however many layers there are (two dY, dK, dV, the first input), weighs more where there are four
time    processor time of a step in windows, over one with the framework's own gradient checkpointing, which computes as
        much again: 1.10 at most with windows of 256 tokens and more
unit    what a unit costs beside the model's work: the cursor, what it reads and writes, whether something was lost. The
        median of passes whose units compute nothing, over memory that nobody takes: below 1 us. What is made once a
        layer and pass, the names of what it reads and writes, is counted too and takes 6 us: 16 windows a layer hold
        the bound (0.85 us), 4 windows (2.1 us) and one (7 us) miss it
peft    an adapter of each family, trained in units, loads in PEFT, and gives the logits that it gave: to 1e-5
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "interposer/engines")]

import cases
from peft import LoraConfig, PeftModel, get_peft_model
from tidegate_engines.finetune import adapter
from tidegate_engines.finetune.machine import Batch, Machine, Unit
from tidegate_engines.finetune.seam import attach, detach
from tidegate_engines.finetune.why_not import decoder
from tidegate_engines.finetune.windows import Given, Layers, every
from transformers import AutoConfig, AutoModelForCausalLM

LENGTH = 1024
#: Tokens of a window in the memory's figures: a fourth of the samples that people train on at least.
WINDOW = 128
SHARE = 0.15
SLOWER = 1.10
#: Nanoseconds of a unit's bookkeeping.
BOOKKEEPING_NS = 1000
APART = 1e-5

#: Shapes: hidden, intermediate, layers, heads, heads of keys, vocabulary.
SHAPES = {"tiny": (64, 160, 4, 4, 2, 384), "135M": (576, 1536, 30, 9, 3, 49152)}


def shaped(name: str, seed: int) -> Any:
    """A Llama with a LoRA on all of its projections."""
    hidden, intermediate, layers, heads, kv_heads, vocabulary = SHAPES[name]
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=2 * LENGTH,
        tie_word_embeddings=True,
        use_cache=False,
    )
    base = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    lora = LoraConfig(r=16, lora_alpha=32, target_modules=list(cases.MODULES), task_type="CAUSAL_LM")
    return get_peft_model(base, lora).train()


def ids(model: Any, seed: int, length: int = LENGTH) -> torch.Tensor:
    """A sample."""
    return torch.randint(model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(seed))


# Memory.


def _storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


class Saved:
    """What autograd saves, each storage once; those in ``apart`` are counted elsewhere."""

    def __init__(self, apart: Iterable[torch.Tensor]) -> None:
        self._apart = set(_storages(apart))
        self._seen: dict[int, int] = {}
        # A storage that is freed gives its address to another.
        self._kept: list[torch.Tensor] = []

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        at = tensor.untyped_storage().data_ptr()
        if at not in self._apart and at not in self._seen:
            self._seen[at] = tensor.untyped_storage().nbytes()
            self._kept.append(tensor)
        return tensor

    def bytes(self) -> int:
        return sum(self._seen.values())


def by_autograd(model: Any, sample: torch.Tensor) -> int:
    """Bytes that autograd saves in the layers' forward."""
    saved = Saved(model.parameters())
    layers = decoder(model).layers
    hooks = torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda tensor: tensor)
    begin = layers[0].register_forward_pre_hook(lambda *_: hooks.__enter__() and None)
    end = layers[-1].register_forward_hook(lambda *_: hooks.__exit__(None, None, None))
    model(input_ids=sample, labels=sample).loss.backward()
    begin.remove()
    end.remove()
    model.zero_grad(set_to_none=True)
    return saved.bytes()


class Counting(Machine):
    """The most bytes that a backward pass holds, keeps and saves at one time."""

    most = 0

    def _backward(self, batch: Batch, unit: Unit) -> None:
        state = [*batch.held.values(), *batch.turns, *batch.past, batch.first]
        saved = Saved([*state, *(p for layer in self.layers.all for p in layer.parameters())])
        with torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda tensor: tensor):
            super()._backward(batch, unit)
        state = [*batch.held.values(), *batch.turns, *batch.past, batch.first]
        self.most = max(self.most, sum(_storages(state).values()) + saved.bytes())


def by_units(model: Any, sample: torch.Tensor, window: int) -> int:
    """The same of units."""
    machine = attach(model, lambda layers: Counting(layers, forward=every(window)))
    model(input_ids=sample, labels=sample).loss.backward()
    detach(model)
    model.zero_grad(set_to_none=True)
    if machine.counts.units == 0:
        raise AssertionError("no unit was run")
    return machine.most


def memory(seed: int) -> dict[str, dict]:
    """All shapes."""
    rows = {}
    for name in SHAPES:
        model = shaped(name, seed)
        sample = ids(model, seed)
        saved = by_autograd(model, sample)
        again, windows = by_units(model, sample, LENGTH), by_units(model, sample, WINDOW)
        share = windows / saved
        rows[name] = {"autograd": saved, "recompute": again, "windows": windows, "share": share}
        print(
            f"memory  {name:<5} autograd saves {saved >> 20:,} MiB; each layer again: {again >> 20:,} MiB"
            f" ({again / saved:.3f}); windows of {WINDOW}: {windows >> 20:,} MiB ({share:.3f}"
            f", at most {SHARE}{'' if share <= SHARE else ': MISSED'})",
            flush=True,
        )
        rows[name]["good"] = share <= SHARE
    return rows


# Time.


@contextmanager
def _checkpointed(model: Any) -> Iterator[None]:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    try:
        yield
    finally:
        model.gradient_checkpointing_disable()


def _step(model: Any, sample: torch.Tensor) -> float:
    begun = time.process_time()
    model(input_ids=sample, labels=sample).loss.backward()
    model.zero_grad(set_to_none=True)
    return time.process_time() - begun


def duration(seed: int, rounds: int = 7) -> dict[str, dict]:
    """Windows over checkpointing, both in turn: the median of rounds."""
    SHAPES["timed"] = (384, 1024, 6, 6, 2, 512)
    rows = {}
    for window in (256, 512, LENGTH):
        model = shaped("timed", seed)
        sample = ids(model, seed)
        ratios = []
        for _ in range(rounds + 1):
            with _checkpointed(model):
                whole = _step(model, sample)
            attach(model, lambda layers, size=window: Machine(layers, forward=every(size)))
            ratios.append(_step(model, sample) / whole)
            detach(model)
        ratio = statistics.median(ratios[1:])
        rows[str(window)] = {"ratio": ratio, "good": ratio <= SLOWER}
        print(f"time    windows of {window:>4}: {ratio:.3f} of gradient checkpointing's, at most {SLOWER}", flush=True)
    return rows


# What a unit costs beside.


class Idle(Machine):
    """Units that compute nothing."""

    def _forward(self, batch: Batch, unit: Unit) -> None:
        batch.output = batch.first

    def _backward(self, batch: Batch, unit: Unit) -> None:
        return None


def bookkeeping(seed: int, rounds: int = 51) -> dict[str, dict]:
    """By windows of a layer: passes of 32 layers, without what a pass begins and ends with."""
    rows = {}
    hidden = torch.zeros(1, 64, 8)
    for windows in (1, 4, 16):
        parts = [torch.nn.Linear(2, 2, bias=False) for _ in range(32)]
        for part in parts[::2]:
            part.requires_grad_(False)
        machine = Idle(Layers(parts), forward=every(64 // windows))
        given = Given({}, nullcontext)
        passes = []
        for _ in range(rounds):
            before, begun = machine.counts.units, time.process_time_ns()
            batch, output = machine.forward(hidden, given, remembered=True)
            machine.backward(batch, output, wants_input=True)
            passes.append((time.process_time_ns() - begun) / (machine.counts.units - before))
        ns = statistics.median(passes)
        rows[str(windows)] = {"ns": ns, "good": ns < BOOKKEEPING_NS}
        print(
            f"unit    {windows:>2} windows a layer: {ns:,.0f} ns of bookkeeping a unit, below {BOOKKEEPING_NS}"
            f"{'' if ns < BOOKKEEPING_NS else ': MISSED'}",
            flush=True,
        )
    return rows


# PEFT.


def peft(seed: int) -> dict[str, dict]:
    """An adapter of each family: saved, and loaded into the model without it."""
    rows = {}
    for family in cases.FAMILIES:
        case = cases.draw(family, seed, "float32")
        model = cases.model(case)
        machine = attach(model, lambda layers: Machine(layers, forward=every(5)))
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        for _ in range(5):
            model(**cases.batch(case)).loss.nan_to_num().backward()
            optimizer.step()
            optimizer.zero_grad()
        detach(model)
        model.eval()
        sample = torch.randint(96, (2, 16), generator=torch.Generator().manual_seed(seed))
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            trained = model(input_ids=sample).logits
            adapter.save(model, Path(folder) / "a")
            base = model.unload()
            without = (base(input_ids=sample).logits - trained).abs().max().item()
            loaded = PeftModel.from_pretrained(base, folder + "/a").eval()
            apart = (loaded(input_ids=sample).logits - trained).abs().max().item()
        good = apart <= APART < without and machine.counts.units > 0
        rows[family] = {"apart": apart, "without": without, "good": good}
        print(f"peft    {family:<8} logits {apart:.1e} apart, {without:.1e} without the adapter", flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=["memory", "time", "unit", "peft"])
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    parts = {"memory": memory, "time": duration, "unit": bookkeeping, "peft": peft}
    found = {name: part(args.seed) for name, part in parts.items() if args.only in (None, name)}
    if args.json:
        Path(args.json).write_text(json.dumps({"seed": args.seed, **found}, indent=1) + "\n")
    bad = [f"{name} {row}" for name, rows in found.items() for row in rows if not rows[row]["good"]]
    for row in bad:
        print(f"FAILED: {row}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
