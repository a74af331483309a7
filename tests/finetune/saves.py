"""Saves a random adapter of a small model, and what it adds to each matrix, for another framework's loader to be judged.

    saves.py ADAPTER DELTAS [SEED]

DELTAS is a file of safetensors: for each module with an adapter what PEFT says that it adds to the weight.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "interposer/engines")]

import cases
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from tidegate_engines.finetune import adapter


def main() -> None:
    target, deltas, *seed = sys.argv[1:]
    case = replace(cases.draw("llama", int(*seed or ["1"]), "float32"), modules=cases.MODULES, rank=8)
    model = cases.model(case)
    adapter.save(model, Path(target))
    layers = {n.removeprefix("base_model.model."): m for n, m in model.named_modules() if isinstance(m, LoraLayer)}
    save_file({name: layer.get_delta_weight("default").detach().contiguous() for name, layer in layers.items()}, deltas)


if __name__ == "__main__":
    main()
