"""A LoRA that is trained: masters in f32, AdamW, and the places where vLLM reads it.

A publication rewrites the adapter's slot in place, between two steps: the tensors that the next pass reads, compiled or
captured, stay where they are. vLLM keeps ``alpha / r`` in B, so what is written is ``B * alpha / r``. The copy from
which the LoRA manager fills slots is rewritten too: an adapter that leaves its slot comes back from there. While it
trains it is pinned, so it does not leave.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ...finetune import adapter
from .decoder import MATRICES, Layer, Lora
from .units import Gradients

#: Of each matrix: the module of a layer's that vLLM has fused it into, and which of its parts it is.
FUSED = {
    "q_proj": ("self_attn.qkv_proj", 0),
    "k_proj": ("self_attn.qkv_proj", 1),
    "v_proj": ("self_attn.qkv_proj", 2),
    "o_proj": ("self_attn.o_proj", 0),
    "gate_proj": ("mlp.gate_up_proj", 0),
    "up_proj": ("mlp.gate_up_proj", 1),
    "down_proj": ("mlp.down_proj", 0),
}

#: A and B of a layer's matrices, by name.
Matrices = dict[str, tuple[torch.Tensor, torch.Tensor]]

#: PEFT's two files.
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
#: The optimizer's state beside them, and what of it says how many steps were made.
OPTIMIZER, VERSION = "optimizer.safetensors", "version"


@dataclass(frozen=True)
class Rate:
    """What AdamW is told; its defaults are PyTorch's."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01


def key(layer: int, matrix: str, part: str) -> str:
    """A tensor's name in PEFT's file."""
    module = "self_attn" if FUSED[matrix][0].startswith("self_attn") else "mlp"
    return f"base_model.model.model.layers.{layer}.{module}.{matrix}.lora_{part}.weight"


class Adapter:
    """The trained matrices of one adapter."""

    def __init__(self, matrices: Sequence[Matrices], rank: int, alpha: float) -> None:
        self.rank, self.alpha = rank, alpha
        #: Grows with each step of the optimizer.
        self.version = 0
        self.layers = [
            {
                name: Lora(*(t.detach().float().clone().requires_grad_() for t in pair), self.scale)
                for name, pair in of_layer.items()
            }
            for of_layer in matrices
        ]
        self._optimizer: torch.optim.AdamW | None = None

    @property
    def scale(self) -> float:
        """What B A is multiplied with."""
        return self.alpha / self.rank

    @classmethod
    def new(cls, layers: Sequence[Layer], rank: int, alpha: float, targets: Sequence[str], seed: int) -> Adapter:
        """One that changes nothing yet, drawn as PEFT draws: A uniform within ``1 / sqrt(in)``, B zero."""
        if unknown := sorted(set(targets) - set(MATRICES)):
            raise ValueError(f"an adapter may be in {', '.join(MATRICES)}, not in {', '.join(unknown)}")
        draw = torch.Generator().manual_seed(seed)
        matrices = []
        for layer in layers:
            of_layer = {}
            for name in targets:
                out, width = shape(layer, name)
                a = torch.empty(rank, width).uniform_(-(width**-0.5), width**-0.5, generator=draw)
                device = layer.weights.qkv.device
                of_layer[name] = (a.to(device), torch.zeros(out, rank, device=device))
            matrices.append(of_layer)
        return cls(matrices, rank, alpha)

    @classmethod
    def load(cls, folder: Path, layers: Sequence[Layer], optimizer: bool = False) -> Adapter:
        """That of a directory of PEFT's, with the optimizer's state beside it, or without.

        With it, what it does next is what the saved one would have done. Raises ``ValueError`` for one that does not fit
        these layers.
        """
        try:
            config = json.loads((folder / CONFIG).read_text())
            _plain(config, folder / CONFIG)
            rank, alpha = int(config["r"]), float(config["lora_alpha"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{folder / CONFIG} is no configuration of a LoRA") from error
        matrices = _by_layer(_read(folder / WEIGHTS), layers, folder / WEIGHTS)
        found = cls(matrices, rank, alpha)
        if optimizer:
            found._restore(folder / OPTIMIZER)
        return found

    def save(self, target: Path, model: str, optimizer: bool = False) -> None:
        """Writes the directory that PEFT would, whole or not at all. ``target`` may not exist.

        With ``optimizer`` it holds all that the next steps depend on.
        """
        self.snapshot(model, optimizer).write(target)

    def snapshot(self, model: str, optimizer: bool = False) -> Directory:
        """What is saved, as it is now: it can be written while the adapter trains on."""
        tensors = {name: tensor.cpu().clone() for name, tensor in self.tensors().items()}
        return Directory(self, model, tensors, self._state() if optimizer else None)

    def tensors(self) -> dict[str, torch.Tensor]:
        """A and B of each matrix by PEFT's names."""
        return {
            key(layer, name, part): tensor.detach().contiguous()
            for layer, of_layer in enumerate(self.layers)
            for name, lora in of_layer.items()
            for part, tensor in (("A", lora.a), ("B", lora.b))
        }

    def _state(self) -> dict[str, torch.Tensor]:
        """The optimizer's, by moment and tensor, and how many steps it has made."""
        state = {VERSION: torch.tensor(self.version)}
        for name, parameter in zip(self.tensors(), self.parameters(), strict=True):
            moments = {} if self._optimizer is None else self._optimizer.state[parameter]
            state |= {f"{moment} {name}": value.cpu().clone() for moment, value in moments.items()}
        return state

    def _restore(self, path: Path) -> None:
        held = _read(path)
        if VERSION not in held:
            raise ValueError(f"{path} is no state of an optimizer of this service's")
        self.version = int(held.pop(VERSION))
        self._optimizer = torch.optim.AdamW(list(self.parameters()))
        for name, parameter in zip(self.tensors(), self.parameters(), strict=True):
            state = {each.split(" ")[0]: held.pop(each) for each in list(held) if each.endswith(f" {name}")}
            if any(value.shape not in (parameter.shape, torch.Size()) for value in state.values()):
                raise ValueError(f"{path}: the state of {name} is of another shape")
            # AdamW keeps its count of steps on the host.
            state = {each: t if each == "step" else t.to(parameter.device) for each, t in state.items()}
            if state:
                self._optimizer.state[parameter] = state
        if held:
            raise ValueError(f"{path}: {min(held)} is of none of the adapter's matrices")

    # Training.

    def parameters(self) -> Iterator[torch.Tensor]:
        """A and B of each matrix."""
        for of_layer in self.layers:
            for lora in of_layer.values():
                yield from (lora.a, lora.b)

    def step(self, gradients: Gradients, rate: Rate) -> None:
        """One step of AdamW. The slot is as it was until :meth:`publish`."""
        self.step_layers(gradients, rate, 0, len(self.layers))

    def step_layers(self, gradients: Gradients, rate: Rate, lo: int, hi: int) -> None:
        """The part of a step that is of the layers from ``lo`` on and before ``hi``; the last layer ends the step."""
        pairs = (
            (lora, gradients[layer][name]) for layer in range(lo, hi) for name, lora in self.layers[layer].items()
        )
        for lora, grads in pairs:
            lora.a.grad, lora.b.grad = grads
        if self._optimizer is None:
            self._optimizer = torch.optim.AdamW(list(self.parameters()), lr=rate.lr)
        for group in self._optimizer.param_groups:
            group.update(lr=rate.lr, betas=rate.betas, eps=rate.eps, weight_decay=rate.weight_decay)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.version += hi == len(self.layers)

    # Where vLLM reads it.

    def pin(self, manager: Any, number: int) -> None:
        """Keeps it in its slot. ``manager`` is vLLM's LoRA model manager, which has it loaded under this number."""
        manager.pin_adapter(number)

    def publish(self, manager: Any, number: int) -> None:
        """Has all passes from the next on read these weights. Between two steps only.

        Nothing is written where a part does not fit.
        """
        # An adapter that a request brought was loaded in inference mode, and its tensors are written in no other.
        with torch.inference_mode():
            for into, tensor in list(self._places(manager, number)):
                into.copy_(tensor)

    def _places(self, manager: Any, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each tensor that vLLM reads, and what it is to be."""
        slot = manager.lora_index_to_id.index(number)
        registered = manager.get_adapter(number)
        for layer, of_layer in enumerate(self.layers):
            for name, lora in of_layer.items():
                within, part = FUSED[name]
                path = f"model.layers.{layer}.{within}"
                module, a, b = manager.modules[path], lora.a, self._scaled(lora.b)
                if self.rank > module.lora_a_stacked[part].shape[2]:
                    raise ValueError(f"rank {self.rank} is more than --max-lora-rank")
                yield module.lora_a_stacked[part][slot, 0, : self.rank, : a.shape[1]], a
                yield module.lora_b_stacked[part][slot, 0, : b.shape[0], : self.rank], b
                copy = registered.get_lora(path)
                if copy is None:
                    raise ValueError(f"{path} is not in the adapter that vLLM has loaded")
                yield copy.lora_a[part] if copy.is_packed else copy.lora_a, a
                yield copy.lora_b[part] if copy.is_packed else copy.lora_b, b

    def _scaled(self, b: torch.Tensor) -> torch.Tensor:
        """As vLLM keeps B."""
        return b * self.scale


def _read(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path}: {error}") from error


def _plain(config: dict[str, Any], path: Path) -> None:
    """Raises ``ValueError`` for what would be another computation than a LoRA's."""
    for name in ("use_rslora", "use_dora", "lora_bias", "rank_pattern", "alpha_pattern", "modules_to_save"):
        if config.get(name):
            raise ValueError(f"{path}: {name} is {config[name]!r}; a plain LoRA can be trained")
    if config.get("bias", "none") != "none":
        raise ValueError(f"{path}: bias is {config['bias']!r}; a LoRA without biases can be trained")


def _by_layer(tensors: dict[str, torch.Tensor], layers: Sequence[Layer], path: Path) -> list[Matrices]:
    """A file's tensors as an adapter has them. Raises ``ValueError`` where one does not fit its matrix, or has none."""
    rest = dict(tensors)
    matrices = []
    for number, layer in enumerate(layers):
        device, of_layer = layer.weights.qkv.device, {}
        for name in MATRICES:
            a, b = (rest.pop(key(number, name, part), None) for part in "AB")
            if a is None or b is None:
                continue
            out, width = shape(layer, name)
            if (b.shape[0], a.shape[1], a.shape[0]) != (out, width, b.shape[1]):
                raise ValueError(f"{path}: {name} of layer {number} is for another model")
            of_layer[name] = (a.to(device), b.to(device))
        matrices.append(of_layer)
    if rest:
        raise ValueError(f"{path}: {min(rest)} is in none of {', '.join(MATRICES)} of {len(layers)} layers")
    return matrices


@dataclass(frozen=True)
class Directory:
    """An adapter as what :func:`adapter.save` writes."""

    adapter: Adapter
    model: str
    tensors: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor] | None

    def write(self, target: Path) -> None:
        """Writes it, whole or not at all. ``target`` may not exist."""
        adapter.save(self, target)

    def renew(self, target: Path) -> None:
        """Writes it over the one that is there, file by file."""
        aside = target.with_name(f"{target.name}.new")
        shutil.rmtree(aside, ignore_errors=True)
        self.save_pretrained(str(aside))
        for file in aside.iterdir():
            os.replace(file, target / file.name)
        aside.rmdir()

    def save_pretrained(self, save_directory: str) -> None:
        folder, own = Path(save_directory), self.adapter
        folder.mkdir(parents=True)
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": self.model,
            "r": own.rank,
            "lora_alpha": own.alpha if own.alpha % 1 else int(own.alpha),
            "lora_dropout": 0.0,
            "bias": "none",
            "inference_mode": True,
            "target_modules": sorted({name for of_layer in own.layers for name in of_layer}),
        }
        save_file(self.tensors, folder / WEIGHTS, metadata={"format": "pt"})
        if self.optimizer is not None:
            save_file(self.optimizer, folder / OPTIMIZER)
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def shape(layer: Layer, matrix: str) -> tuple[int, int]:
    """Rows and columns of a matrix that vLLM may have fused with others."""
    w, heads = layer.weights, layer.heads * layer.head_size
    kv, inner = layer.kv_heads * layer.head_size, w.down.shape[1]
    rows = {"q_proj": heads, "k_proj": kv, "v_proj": kv, "gate_proj": inner, "up_proj": inner}
    if matrix == "o_proj":
        return w.o.shape[0], w.o.shape[1]
    if matrix == "down_proj":
        return w.down.shape[0], w.down.shape[1]
    return rows[matrix], w.qkv.shape[1]
