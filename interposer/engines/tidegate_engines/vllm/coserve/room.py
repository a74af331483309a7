"""Memory that training needs beside the cache: set aside before vLLM takes the rest for its cache."""

from __future__ import annotations

from typing import Any

from . import decoder
from .adapters import shape

#: Rows of a layer's backward pass, and of the loss, in a unit at most; as ``policy::lease::train`` has them.
LAYER, HEAD = 2048, 256
#: Of what is left for the cache, training may take at most this part.
PART = 0.5
#: Bytes of a trained weight: itself, two moments and its gradient in f32.
TRAINED = 16


def needed(model: Any, activations: int, rank: int, chunk: int) -> int:
    """Bytes for the inputs of layers that are held, for one unit, and for one adapter of this rank in all matrices."""
    layers = decoder.layers(model)
    weights = layers[0].weights
    hidden, inner, each = weights.qkv.shape[1], weights.down.shape[1], weights.qkv.element_size()
    vocabulary = model.config.vocab_size
    held = activations * (len(layers) + 3) * hidden * each
    # What autograd keeps of a row of a layer, in f32 at most; and of the loss: logits, their softmax, its gradient.
    layer = min(chunk or LAYER, activations) * (12 * hidden + 8 * inner) * 4
    loss = min(chunk or HEAD, activations) * vocabulary * 3 * 4
    adapter = sum(sum(shape(layers[0], name)) for name in decoder.MATRICES) * rank * len(layers) * TRAINED
    return held + max(layer, loss) + adapter


def left(available: int, model: Any, activations: int, rank: int, chunk: int) -> int:
    """What remains for the cache. Raises ``ValueError`` in words where that is too little."""
    need = needed(model, activations, rank, chunk)
    if need > available * PART:
        gib = 1 << 30
        raise ValueError(
            f"activations={activations} needs {need / gib:.2f} GiB, and the cache and training together have "
            f"{available / gib:.2f} GiB: lower activations, or raise --gpu-memory-utilization"
        )
    return available - need
