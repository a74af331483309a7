"""Which tensors one training step of an 8B model takes and gives back, in order: the arena's waste is measured by it.

    scripts/finetune tensors FILE

The model has the shape of Llama-3.1-8B, with bf16 weights and a LoRA of rank 16 on all projections, as `tidegate
finetune` makes it; its tensors are on torch's "meta" device, which has sizes and no bytes. One forward and one
backward of 2,048 tokens. A line of FILE is ``BYTES`` for a tensor that is taken, and ``-AGE`` where the one that was
taken as the AGE-th before is given back, 1 being the last. Views are of what they show, and frozen weights are there
all the time.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

sys.path[:0] = [str(Path(__file__).parent)]

import cases

TOKENS = 2048


class Recorder(TorchDispatchMode):
    """Writes down each storage that comes and goes."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[int] = []
        self._alive: dict[int, StorageWeakRef] = {}
        self._known: set[int] = set()
        self._count = 0

    def take(self, tensors: Any) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata in self._known or storage.nbytes() == 0:
                continue
            self._known.add(storage._cdata)
            self._count += 1
            self._alive[self._count] = StorageWeakRef(storage)
            self.lines.append(storage.nbytes())

    def give(self) -> None:
        for number in [number for number, held in self._alive.items() if held.expired()]:
            # An expired storage keeps its place as long as its weak reference is held.
            self._known.discard(self._alive.pop(number).cdata)
            self.lines.append(number - self._count - 1)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.give()
        if func is torch.ops.aten._local_scalar_dense.default:
            # Whether positions are those of one sample: they are.
            return True
        result = func(*args, **(kwargs or {}))
        self.take(leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
        return result


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    config = AutoConfig.for_model(
        "llama",
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        use_cache=False,
    )
    with torch.device("meta"):
        base = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
        lora = LoraConfig(r=16, lora_alpha=32, target_modules=list(cases.MODULES), task_type="CAUSAL_LM")
        model = get_peft_model(base, lora).train()
        ids = torch.zeros(1, TOKENS, dtype=torch.long)
    recorder = Recorder()
    # The trained weights are tensors of the trainer's too, and stay.
    recorder.take([ids, *(p for p in model.parameters() if p.requires_grad)])
    frozen = [p for p in model.parameters() if not p.requires_grad] + list(model.buffers())
    recorder._known.update(p.untyped_storage()._cdata for p in frozen)
    with recorder:
        model(input_ids=ids, labels=ids).loss.backward()
    recorder.give()
    Path(sys.argv[1]).write_text("".join(f"{line}\n" for line in recorder.lines))
    takes = [line for line in recorder.lines if line > 0]
    held = most = 0
    sizes: list[int] = []
    for line in recorder.lines:
        if line > 0:
            sizes.append(line)
            held += line
        else:
            held -= sizes[line]
        most = max(most, held)
    small = sum(size < 2 << 20 for size in takes)
    print(f"{len(takes)} tensors, {small} of them below 2 MiB; {most >> 20} MiB at most at one time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
