"""What a call has the engine do, in units.

Each piece of work says what its next unit is, and how much of it is left; somebody else says how many rows of it run,
and when. Work that is dropped gives back what it held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...coserve_abi import BACKWARD, HEAD, OPTIMIZER, PUBLICATION
from . import losses, messages, units
from .adapters import Adapter, Rate
from .engine import Engine
from .messages import Datum, Refused
from .seam import Ridden

#: A sample whose rows were lost rides again, so often.
AGAIN = 3
#: Nothing.
NONE = (0, 0)


class Work:
    """Done with the first unit that says so."""

    result: dict[str, Any] | None = None

    def next(self) -> int:
        """Tokens of the sample that could begin to ride; 0: there is none."""
        return 0

    def begin(self) -> None:
        """It begins."""

    def unit(self) -> tuple[int, int]:
        """The kind of the unit that could run now, and what is left of it."""
        return NONE

    def run(self, rows: int) -> None:
        """Runs it."""

    def poll(self) -> None:
        """What goes on by itself, once before each step."""

    def drop(self) -> None:
        """It is not wanted any more."""


class Sample:
    """One of a pass's data."""

    def __init__(self, datum: Datum, loss: losses.Loss) -> None:
        self.datum, self.loss_of = datum, loss
        self.name, self.ridden = "", None
        #: Rows whose logprobs are known, and the loss of them.
        self.row, self.loss = 0, 0.0
        self.logprobs: list[float] = []
        self.dy: torch.Tensor | None = None
        self.backward: units.Backward | None = None
        self.rides = 0

    ridden: Ridden | None

    def __len__(self) -> int:
        return len(self.datum.tokens)


class Pass(Work):
    """A forward pass of some samples, and their backward passes, in their order.

    Samples ride beside each other. What they add to the gradient is added in their order.
    """

    def __init__(
        self,
        engine: Engine,
        adapter: Adapter,
        lora: Any,
        asked: messages.Forward | messages.Backward,
        gradients: Callable[[], units.Gradients],
    ) -> None:
        self._engine, self._adapter, self._lora = engine, adapter, lora
        custom = isinstance(asked, messages.Backward)
        name = "custom" if custom else asked.loss
        clip = (0.0, 0.0) if custom else (asked.clip_low, asked.clip_high)
        self._back = custom or asked.backward
        if self._back and name is None:
            raise Refused("bad_request", "backward needs a loss")
        for at, datum in enumerate(asked.data):
            self._fits(datum, at, name)
        self._custom, self._gradients = custom, gradients
        self._learnt = sum(losses.learnt(name, datum) for datum in asked.data)
        self.samples = [Sample(datum, losses.loss(name, datum, clip)) for datum in asked.data]
        #: How many have begun, and which is under way behind the head.
        self._begun = self._at = 0
        self._error: Exception | None = None

    def _fits(self, datum: Datum, at: int, name: str | None) -> None:
        messages.whole(datum, at, losses.NEEDS.get(name or "", ()))
        engine, length = self._engine, len(datum.tokens)
        vocabulary, longest = engine.vocabulary, engine.config.model_config.max_model_len - 1
        for kind, tokens in (("tokens", datum.tokens), ("targets", datum.targets)):
            if (most := max(tokens)) >= vocabulary:
                text = f"data[{at}].{kind}[{tokens.index(most)}] is {most}, and the vocabulary has {vocabulary}"
                raise Refused("bad_request", text)
        if length > longest:
            raise Refused("bad_request", f"data[{at}] has {length} tokens; the engine takes {longest}")
        if length > engine.activations:
            text = f"data[{at}] has {length} tokens; {engine.activations} may be held (TIDEGATE_TUNE: activations)"
            raise Refused("bad_request", text)
        # One block is vLLM's own, and the token that the sample asks for has a place.
        blocks = engine.scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1
        if (size := engine.block_size) * blocks < length + 1:
            raise Refused("bad_request", f"data[{at}] has {length} tokens, and the KV cache {size * blocks}")

    def next(self) -> int:
        return len(self.samples[self._begun]) if self._begun < len(self.samples) else 0

    def begin(self) -> None:
        self._ride(self.samples[self._begun])
        self._begun += 1

    @property
    def held(self) -> int:
        """Tokens of samples that have begun and are not over."""
        return sum(len(sample) for sample in self.samples[self._at : self._begun])

    def _ride(self, sample: Sample) -> None:
        engine = self._engine
        if sample.name:
            engine.riding.end(sample.name)
        sample.rides += 1
        sample.name, sample.ridden = engine.riding.begin(sample.datum.tokens, self._lora, self._adapter.version)

    def unit(self) -> tuple[int, int]:
        if self._error is not None:
            raise self._error
        if self._at >= self._begun:
            return NONE
        sample = self.samples[self._at]
        ridden = sample.ridden
        if ridden is None or not ridden.whole:
            self._mend(sample)
            return NONE
        if sample.row < len(sample):
            return HEAD, len(sample) - sample.row
        backward = sample.backward
        return (BACKWARD, backward.end) if backward is not None and not backward.done else NONE

    def _mend(self, sample: Sample) -> None:
        """A sample whose request is gone, or whose rows were lost, rides again."""
        ridden = sample.ridden
        gone = sample.name not in self._engine.scheduler.requests
        if ridden is None or not (ridden.broken or gone):
            return
        if sample.rides > AGAIN:
            raise RuntimeError(f"a sample's rows were lost {AGAIN + 1} times: {ridden.broken or 'its request was ended'}")
        self._ride(sample)

    def run(self, rows: int) -> None:
        sample = self.samples[self._at]
        if sample.row < len(sample):
            self._learn(sample, rows)
        elif sample.backward is not None:
            sample.backward.advance(rows)
        if sample.row == len(sample) and (sample.backward is None or sample.backward.done):
            self._end(sample)

    def _learn(self, sample: Sample, rows: int) -> None:
        ridden, lo = sample.ridden, sample.row
        assert ridden is not None
        x = ridden.inputs[-1]
        hi = min(lo + rows, len(sample))
        if sample.dy is None and self._back:
            sample.dy = torch.zeros_like(x)
        loss = 0.0

        def given(logprobs: torch.Tensor) -> torch.Tensor:
            nonlocal loss
            found = sample.loss_of(lo, logprobs)
            loss = found.loss
            return found.d if self._back else torch.zeros_like(logprobs)

        targets = torch.tensor(sample.datum.targets[lo:hi], device=x.device)
        logprobs, dy = self._engine.head.part(x[lo:hi], targets, given)
        if sample.dy is not None:
            sample.dy[lo:hi] = dy
        sample.loss += loss
        sample.logprobs += logprobs.tolist()
        sample.row = hi
        if loss - loss != 0 or not bool(logprobs.isfinite().all()):
            raise Refused("not_finite", f"data[{self._at}]: the loss is not finite")
        if hi == len(sample) and sample.dy is not None:
            engine = self._engine
            past = engine.seam.sample(ridden)
            sample.backward = units.Backward(engine.layers, self._adapter.layers, past, sample.dy, self._gradients())

    def _end(self, sample: Sample) -> None:
        self._engine.riding.end(sample.name)
        sample.name, sample.ridden, sample.dy, sample.backward = "", None, None, None
        self._at += 1
        if self._at == len(self.samples):
            self.result = {} if self._custom else self._found()

    def _found(self) -> dict[str, Any]:
        return {
            "logprobs": [sample.logprobs for sample in self.samples],
            "loss": sum(sample.loss for sample in self.samples),
            "tokens": self._learnt,
            "version": self._adapter.version,
        }

    def in_blocks(self) -> Iterator[tuple[int, Sample]]:
        """Samples with keys and values in blocks that no request holds, and how many tokens come before each."""
        before = 0
        for sample in self.samples[self._at : self._begun]:
            if sample.ridden is not None and sample.ridden.blocks:
                yield before, sample
            before += len(sample)

    def swap(self, sample: Sample) -> None:
        """Gives its blocks back."""
        assert sample.ridden is not None
        self._engine.seam.swap(sample.ridden)

    def lost(self, sample: Sample, error: Exception) -> None:
        """They are given back without: the pass fails, and not before the step that is being made is whole."""
        self._error = error
        self._engine.seam.forget(sample.name)

    def drop(self) -> None:
        for sample in self.samples[self._at : self._begun]:
            if sample.name:
                self._engine.riding.end(sample.name)
                sample.name, sample.ridden, sample.backward = "", None, None


class Optimize(Work):
    """A step of AdamW, some layers at a time."""

    def __init__(
        self, adapter: Adapter, gradients: units.Gradients, asked: messages.Step, then: Callable[[], None]
    ) -> None:
        self._adapter, self._gradients, self._then = adapter, gradients, then
        self._rate = Rate(asked.lr, (asked.beta1, asked.beta2), asked.eps, asked.weight_decay)
        self._clip, self._norm, self._layer = asked.clip, 0.0, 0
        self._measured = self._begun = False

    @property
    def begun(self) -> bool:
        """Whether some of the weights may have changed."""
        return self._begun

    def unit(self) -> tuple[int, int]:
        return OPTIMIZER, len(self._adapter.layers) - self._layer

    def run(self, rows: int) -> None:
        if not self._measured:
            self._measure()
        hi = min(self._layer + rows, len(self._adapter.layers))
        self._begun = True
        self._adapter.step_layers(self._gradients, self._rate, self._layer, hi)
        self._layer = hi
        if hi == len(self._adapter.layers):
            self._then()
            version = self._adapter.version
            self.result = {"step": version, "gradient_norm": self._norm, "version": version}

    def _measure(self) -> None:
        parts = [part for of_layer in self._gradients for pair in of_layer.values() for part in pair]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in parts]))
        self._norm, self._measured = norm.item(), True
        if self._norm - self._norm != 0:
            raise Refused("not_finite", "the gradient is not finite")
        if self._clip is not None and self._norm > self._clip:
            # As torch.nn.utils.clip_grad_norm_ does.
            for part in parts:
                part.mul_(self._clip / (self._norm + 1e-6))


class Once(Work):
    """Something that is one unit, between two steps of the engine."""

    def __init__(self, call: Callable[[], dict[str, Any] | None]) -> None:
        """``call`` gives the result, or None: it is to be tried again after a step."""
        self._call = call

    def unit(self) -> tuple[int, int]:
        return PUBLICATION, 1

    def run(self, rows: int) -> None:
        self.result = self._call()


class Aside(Work):
    """Something that takes long and needs no step: in a thread, and what follows from it between two steps."""

    def __init__(
        self, call: Callable[[], Any], then: Callable[[Any], dict[str, Any] | None], wake: Callable[[], None]
    ) -> None:
        self._then, self._wake = then, wake
        self._found: Any = None
        self._error: BaseException | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, args=(call,), name="tidegate-tune", daemon=True).start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._found = call()
        except BaseException as error:  # noqa: BLE001 # it is said in the engine core's thread
            self._error = error
        self._ended.set()
        self._wake()

    def poll(self) -> None:
        if not self._ended.is_set():
            return
        if self._error is not None:
            raise self._error
        self.result = self._then(self._found)
