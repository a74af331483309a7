"""What vLLM's runner leaves of a sample that rides in its passes.

Each pass returns, beside its hidden states, the input of every layer for all of its rows: vLLM's models do so for
speculative decoders, and :func:`switch_on` asks for all layers. Before ``sample_tokens`` returns, the rows of samples
are copied: the next pass may write where they lie. Which rows are whose is the runner's own word, and they are kept by
their position in the sample, because a request that was preempted begins again. Keys and values stay in the paged
cache. With the last rows the sample's blocks are held, so that they outlive its request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ... import around
from . import units
from .why_not import why_not

log = logging.getLogger("vllm.tidegate")


#: What says so in vLLM's additional configuration.
SETTING = "tidegate_layer_inputs"


def at_load(worker: type[Any], then: Callable[[Any], None] = lambda worker: None) -> None:
    """Has each worker of a class switch the outputs on when it has loaded its model, before any pass, and then ``then``.

    A worker in which nothing can be trained serves without.
    """

    def load_model(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if why_not(self.vllm_config, self.model_runner.model) is not None:
            return result
        try:
            tell_compiler(self.vllm_config)
            switch_on(self.model_runner)
            then(self)
        except ValueError as error:
            log.warning("Tidegate trains nothing in this engine: %s", error)
        return result

    around.of_class(worker, "load_model", load_model)


def tell_compiler(config: Any) -> None:
    """Has vLLM take no compiled model from its cache that returns something else.

    What a model returns is in no other part of the key by which vLLM finds compiled models.
    """
    if not isinstance(config.additional_config, dict):
        raise ValueError("the engine's additional configuration is an object of a plugin's")
    config.additional_config[SETTING] = True


def switch_on(runner: Any) -> None:
    """Has every pass return the input of every layer, and of the last norm.

    Between ``load_model`` and the first pass: a compiled model goes on returning what it was compiled with. Raises
    ``ValueError`` for a model that has no such outputs.
    """
    model = runner.model
    switch = getattr(model, "set_aux_hidden_state_layers", None)
    if switch is None:
        raise ValueError(f"{type(model).__name__} does not return the inputs of its layers")
    switch(tuple(range(len(model.model.layers) + 1)))
    runner.use_aux_hidden_state_outputs = True


class Rows(NamedTuple):
    """A request's rows in a pass."""

    #: The first of them in the pass's tensors.
    first: int
    #: The position of the first in the request.
    position: int
    count: int


def rows(runner: Any) -> Iterator[tuple[str, Rows]]:
    """Whose rows are where in the pass under way, by the runner's own batch."""
    state = runner.execute_model_state
    batch = getattr(state, "input_batch", None)
    if batch is not None:
        starts, positions = batch.query_start_loc_np, batch.num_computed_tokens_np
        for at, name in enumerate(batch.req_ids):
            yield name, Rows(int(starts[at]), int(positions[at]), int(starts[at + 1] - starts[at]))
        return
    batch, first = runner.input_batch, 0
    for at, name in enumerate(batch.req_ids):
        count = state.scheduler_output.num_scheduled_tokens.get(name, 0)
        yield name, Rows(first, int(batch.num_computed_tokens_cpu[at]), count)
        first += count


def keys_values(cache: torch.Tensor, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A layer's cache as keys and values by [block, position, head, value].

    vLLM's backends keep [2, block, position, head, value], the same with the first two exchanged, or
    [block, head, position, keys and values]. Raises ``ValueError`` for any other.
    """
    if cache.dim() == 5 and cache.shape[2] == block_size:
        parts = cache.unbind(0 if cache.shape[0] == 2 else 1)
        if len(parts) == 2:
            return parts[0], parts[1]
    if cache.dim() == 4 and cache.shape[2] == block_size:
        keys, values = cache.transpose(1, 2).chunk(2, dim=-1)
        return keys, values
    raise ValueError(f"the layout of a KV cache of {tuple(cache.shape)} is not known")


@dataclass
class Ridden:
    """A sample, as far as passes have come with it."""

    length: int
    #: By layer, and last that of the norm.
    inputs: list[torch.Tensor] = field(default_factory=list)
    #: Its first rows are there.
    upto: int = 0
    #: Why it has to ride again.
    broken: str = ""
    #: Its blocks of the cache, held.
    blocks: list[Any] = field(default_factory=list)
    #: Keys and values by layer, where its blocks were given to a user's request.
    kept: list[tuple[torch.Tensor, torch.Tensor]] | None = None
    version: int = 0

    @property
    def whole(self) -> bool:
        """Whether all of it is there."""
        return self.upto == self.length and not self.broken


class Seam:
    """Between one engine core's runner and the samples that ride in it."""

    def __init__(self, runner: Any, scheduler: Any) -> None:
        manager = scheduler.kv_cache_manager
        self._runner = runner
        self._pool = manager.block_pool
        self._tables = manager.coordinator.single_type_managers[0].req_to_blocks
        self.block_size: int = scheduler.kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        self._riding: dict[str, Ridden] = {}
        around.of_instance(runner, "sample_tokens", self._sample_tokens)

    def expect(self, name: str, length: int) -> Ridden:
        """From now on this request's rows are kept."""
        ridden = self._riding[name] = Ridden(length)
        return ridden

    def forget(self, name: str) -> None:
        """Gives back what is held of a sample."""
        ridden = self._riding.pop(name, None)
        if ridden is not None:
            self._free(ridden)

    def _free(self, ridden: Ridden) -> None:
        if ridden.blocks:
            self._pool.free_blocks(reversed(ridden.blocks))
            ridden.blocks = []

    def swap(self, ridden: Ridden) -> None:
        """Gives a sample's blocks back: from then on its keys and values are in host memory."""
        past = self.sample(ridden).past
        layers = range(len(ridden.inputs) - 1)
        ridden.kept = [tuple(part.cpu() for part in past(layer, ridden.length)) for layer in layers]
        self._free(ridden)

    def _sample_tokens(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if any(not ridden.whole for ridden in self._riding.values()):
            self._collect()
        return original(*args, **kwargs)

    def _collect(self) -> None:
        """Serving goes on whatever happens to a sample."""
        state = self._runner.execute_model_state
        if state is None:
            return
        for name, where in list(rows(self._runner)):
            ridden = self._riding.get(name)
            if ridden is None or ridden.whole or ridden.broken or where.count == 0:
                continue
            try:
                self._copy(ridden, where, state.aux_hidden_states)
                if ridden.whole:
                    self._hold(name, ridden)
            except Exception as error:  # noqa: BLE001 # one sample is lost, and no user's step
                ridden.broken = f"{type(error).__name__}: {error}"
                log.warning("Tidegate lost the rows of a sample: %s", ridden.broken)

    def _copy(self, ridden: Ridden, where: Rows, outputs: list[torch.Tensor]) -> None:
        lo, hi = where.position, min(where.position + where.count, ridden.length)
        if lo > ridden.upto:
            raise ValueError(f"rows {ridden.upto} to {lo} were found in the prefix cache and not computed")
        if not ridden.inputs:
            # Passes run in inference mode, whose tensors autograd refuses.
            with torch.inference_mode(False):
                ridden.inputs = [
                    torch.empty(ridden.length, each.shape[-1], dtype=each.dtype, device=each.device) for each in outputs
                ]
        for into, output in zip(ridden.inputs, outputs, strict=True):
            into[lo:hi].copy_(output[where.first : where.first + hi - lo])
        ridden.upto = max(ridden.upto, hi)

    def _hold(self, name: str, ridden: Ridden) -> None:
        table = self._tables.get(name) or []
        count = -(-ridden.length // self.block_size)
        if len(table) < count:
            raise ValueError(f"its request has {len(table)} blocks and {ridden.length} tokens")
        ridden.blocks = list(table[:count])
        self._pool.touch(ridden.blocks)

    def sample(self, ridden: Ridden) -> units.Sample:
        """What its backward pass reads."""
        layers = self._runner.model.model.layers
        ids = torch.tensor([block.block_id for block in ridden.blocks], device=ridden.inputs[0].device)

        def past(layer: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
            if ridden.kept is not None:
                keys, values = (part[:count].to(ids.device) for part in ridden.kept[layer])
                return keys, values
            parts = keys_values(layers[layer].self_attn.attn.kv_cache, self.block_size)
            blocks = ids[: -(-count // self.block_size)]
            # Indexing copies: the cache is written by steps to come.
            keys, values = (part[blocks].flatten(0, 1)[:count] for part in parts)
            return keys, values

        return units.Sample(ridden.inputs[:-1], past)
