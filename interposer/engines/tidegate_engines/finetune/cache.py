"""A cache for one layer and one token window: the past goes in as leaves, the window's own comes out.

A decoder layer of transformers gives its new keys and values to ``past_key_values.update`` and attends
over what that returns. So the gradient of a window reaches the keys and values of earlier windows as that
of plain inputs, and its own can be saved.
"""

from __future__ import annotations

import torch


class WindowCache:
    """What a layer sees as its cache while it computes one window."""

    def __init__(self, past: tuple[torch.Tensor, torch.Tensor] | None) -> None:
        """``past``: keys and values of all earlier tokens, ``[batch, kv heads, tokens, head dim]``."""
        self._past = past
        #: Keys and values of the window itself, in the graph.
        self.own: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by the layer's attention."""
        self.own = (keys, values)
        if self._past is None:
            return keys, values
        past_keys, past_values = self._past
        return torch.cat((past_keys, keys), dim=-2), torch.cat((past_values, values), dim=-2)
