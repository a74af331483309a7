"""Random cases: one sample that rides among users' requests, and what transformers and PEFT make of it."""

from __future__ import annotations

import copy
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tidegate_engines.vllm.coserve import adapters, decoder, head, riding, seam, units
from transformers import AutoModelForCausalLM
from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.v1.worker.gpu_worker import Worker

import rig

#: Two answers are told apart where the first two tokens differ by more than noise.
NEAR = 1e-4

#: How far a gradient may be off, of the largest of its matrix.
GRADIENT = 2e-5

#: Blocks of 16 tokens: so few that who holds none sees them written by others.
BLOCKS = 43


@dataclass
class Figures:
    """What was found."""

    cases: int = 0
    worst: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    #: Where the worst was found.
    where: dict[str, str] = field(default_factory=dict)

    def see(self, name: str, value: float, where: str = "") -> None:
        """Keeps the worst; what is no number is the worst of all."""
        value = value if value == value else float("inf")
        if value > self.worst[name]:
            self.worst[name], self.where[name] = value, where

    def count(self, name: str, by: int = 1) -> None:
        self.counts[name] += by

    def within(self, name: str, bound: float) -> bool:
        return self.worst[name] <= bound

    def add(self, name: str, other: Figures) -> None:
        """Those of one family."""
        self.cases += other.cases
        self.counts += other.counts
        self.wrong += [f"{name}: {line}" for line in other.wrong]
        for figure, value in other.worst.items():
            self.see(figure, value, f"{name} {other.where.get(figure, '')}".rstrip())


def apart(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference, for the largest value."""
    largest = theirs.abs().max().item()
    difference = (ours - theirs).abs().max().item()
    return difference / largest if largest else (float("inf") if difference else 0.0)


@dataclass
class User:
    """A request that must be answered as if nothing else ran."""

    name: str
    prompt: list[int]
    #: Of PEFT's, or None.
    adapter: str | None
    length: int


class Bench:
    """An engine with the seam in it, and PEFT's model of the same files."""

    def __init__(self, model: Path, folder: Path, **words: Any) -> None:
        self.folder, self.model = folder, model
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        one = LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj", "v_proj"])
        self.peft: PeftModel = get_peft_model(base, one, "one")
        self._adapter("one", torch.Generator().manual_seed(1))
        self.add("two", LoraConfig(r=8, lora_alpha=8, target_modules=list(decoder.MATRICES)), 2)
        seam.at_load(Worker)
        self.engine = rig.engine(model, blocks=BLOCKS, **words)
        self.core, runner = rig.core(self.engine), rig.worker(self.engine).model_runner
        self.runner = runner
        self.seam = seam.Seam(runner, self.core.scheduler)
        self.riding = riding.Riding(self.core, self.seam)
        self.layers, self.head = decoder.layers(runner.model), head.Head.of(runner.model)
        self.answers: dict[str, list[int]] = {}
        #: Requests that lost their blocks and began again, samples too.
        self.preempted: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._serial = 0
        rig.poison(runner)

    # Adapters of PEFT's.

    def _adapter(self, name: str, draw: torch.Generator) -> Path:
        """Random weights that change answers, saved as PEFT saves."""
        with torch.no_grad():
            for key, parameter in self.peft.named_parameters():
                if f".{name}." in key:
                    parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.07)
        self.peft.save_pretrained(self.folder / "adapters", selected_adapters=[name])
        return self.folder / "adapters" / name

    def add(self, name: str, config: LoraConfig, seed: int) -> Path:
        """Another one."""
        self.peft.add_adapter(name, config)
        return self._adapter(name, torch.Generator().manual_seed(seed))

    def lora(self, name: str) -> LoRARequest:
        """As a user asks for it."""
        number = self._numbers.setdefault(name, len(self._numbers) + 1)
        return LoRARequest(name, number, str(self.folder / "adapters" / name))

    @property
    def manager(self) -> Any:
        """vLLM's LoRA model manager."""
        return self.runner.lora_manager._adapter_manager

    # Users.

    def ask(self, prompt: list[int], adapter: str | None, length: int) -> User:
        """Sends a request."""
        self._serial += 1
        user = User(f"user-{self._serial}", prompt, adapter, length)
        words = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False)
        given = {"prompt_token_ids": prompt}
        self.engine.add_request(user.name, given, words, lora_request=self.lora(adapter) if adapter else None)
        return user

    def step(self, budget: int) -> None:
        """One step of the engine of at most so many rows."""
        self.core.scheduler.max_num_scheduled_tokens = budget
        requests = list(self.core.scheduler.requests.values())
        for output in self.engine.step():
            if output.finished:
                self.answers[output.request_id] = list(output.outputs[0].token_ids)
        self.preempted |= {request.request_id for request in requests if request.num_preemptions}

    def drain(self, rng: random.Random) -> None:
        """Steps until nobody waits."""
        while self.core.scheduler.has_requests():
            self.step(rng.choice([16, 64, 512]))

    @torch.no_grad()
    def check(self, user: User, figures: Figures) -> None:
        """Counts an answer that transformers and PEFT would not have given."""
        tokens = self.answers.pop(user.name)
        figures.count("answers")
        ids = torch.tensor([user.prompt + tokens])
        if user.adapter is None:
            with self.peft.disable_adapter():
                logits = self.peft(ids).logits[0]
        else:
            self.peft.set_adapter(user.adapter)
            logits = self.peft(ids).logits[0]
        rows = logits[len(user.prompt) - 1 : -1].log_softmax(-1)
        given = rows.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        if len(tokens) != user.length or (rows.max(1).values - given > NEAR).any():
            figures.count("wrong_answers")
            figures.wrong.append(f"{user.name} of adapter {user.adapter} was answered with another token")

    def one_copy(self, figures: Figures) -> None:
        """Each base tensor that a unit reads lies in memory of vLLM's."""
        own = {t.untyped_storage().data_ptr() for t in (*self.runner.model.parameters(), *self.runner.model.buffers())}
        read = [tensor for layer in self.layers for _, tensor in layer.weights.tensors()]
        read += [self.head.weight, self.head.norm]
        figures.count("base_tensors", len(read))
        if copies := sum(tensor.untyped_storage().data_ptr() not in own for tensor in read):
            figures.wrong.append(f"{copies} of {len(read)} base tensors are copies")

    def end(self) -> None:
        """Ends the engine; the process goes on."""
        rig.end(self.engine)


@dataclass
class Truth:
    """What transformers and PEFT find."""

    inputs: list[torch.Tensor]
    keys_values: list[tuple[torch.Tensor, torch.Tensor]]
    loss: torch.Tensor
    logprobs: torch.Tensor
    gradients: dict[str, torch.Tensor]


def truth(peft: PeftModel, adapter: str, tokens: list[int], labels: torch.Tensor, divisor: float) -> Truth:
    """Their own forward and backward."""
    peft.set_adapter(adapter)
    inner = peft.get_base_model().model
    inputs: list[torch.Tensor] = []
    kept = (*inner.layers, inner.norm)
    hooks = [each.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach()[0])) for each in kept]
    peft.zero_grad()
    found = peft(torch.tensor([tokens]), use_cache=True)
    for hook in hooks:
        hook.remove()
    logprobs = found.logits[0].log_softmax(-1)
    at = (labels != head.IGNORED).nonzero()[:, 0]
    picked = logprobs[at].gather(1, labels[at, None])[:, 0]
    loss = -picked.sum() / divisor
    loss.backward()
    gradients = {key: p.grad.clone() for key, p in peft.named_parameters() if f".{adapter}." in key}
    kv = [(c.keys[0].transpose(0, 1), c.values[0].transpose(0, 1)) for c in found.past_key_values.layers]
    return Truth(inputs, kv, loss.detach(), picked.detach(), gradients)


def place(key: str) -> tuple[int, str, str]:
    """Layer, matrix and part (A or B) of a tensor by its name in PEFT's model."""
    words = key.split(".")
    at = next(number for number, word in enumerate(words) if word in ("lora_A", "lora_B"))
    return int(words[words.index("layers") + 1]), words[at - 1], words[at][-1]


def labelled(rng: random.Random, tokens: list[int]) -> torch.Tensor:
    """What follows each row, some of it not learnt.

    A row that sees others is: the first alone sees itself, and all that reaches its queries and keys is rounding.
    """
    labels = torch.tensor([*tokens[1:], head.IGNORED])
    share = rng.choice([0, 0.3, 0.9])
    for at in range(len(tokens) - 1):
        if rng.random() < share:
            labels[at] = head.IGNORED
    at = rng.randrange(1, len(tokens) - 1)
    labels[at] = tokens[at + 1]
    return labels


def length(rng: random.Random) -> int:
    """Around the ends of blocks, and anything."""
    return rng.choice([3, 15, 16, 17, 33, rng.randint(3, 64), rng.randint(64, 200), rng.randint(64, 200)])


def run(bench: Bench, number: int, figures: Figures) -> None:
    """One case."""
    rng = random.Random(f"case {number}")
    name, targets = f"case-{number}", rng.sample(decoder.MATRICES, rng.randint(1, 7))
    rank = rng.choice([1, 2, 3, 8, 16])
    config = LoraConfig(r=rank, lora_alpha=rng.choice([rank, 2 * rank, 5]), target_modules=targets)
    saved = bench.add(name, config, number)
    adapter = adapters.Adapter.load(saved, bench.layers)
    samples = [rig.tokens(rng, length(rng)) for _ in range(rng.choice([1, 1, 1, 2]))]
    free = bench.core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    users = [crowd(bench, rng, name) for _ in range(rng.choice([0, 1, 2, 3, 8]))]
    for _ in range(rng.randint(0, 4)):
        bench.step(rng.choice([1, 7, 64]))
    if rng.random() < 0.3:
        # It is given up on its way, and rides again: what it has left in the prefix cache may not be found.
        given_up, _ = bench.riding.begin(samples[0], bench.lora(name), adapter.version)
        for _ in range(rng.randint(0, 4)):
            bench.step(rng.randint(1, 64))
        bench.riding.end(given_up)
        figures.count("given_up")
    rides = [bench.riding.begin(tokens, bench.lora(name), adapter.version) for tokens in samples]
    while any(request in bench.core.scheduler.requests for request, _ in rides):
        if rng.random() < 0.15 and len(users) < 6:
            users.append(crowd(bench, rng, name))
        bench.step(rng.choice([rng.randint(1, 8), rng.randint(1, 64), rng.randint(1, 64), 512]))
    figures.cases += 1
    for (request, ridden), tokens in zip(rides, samples, strict=True):
        figures.count("samples")
        if ridden.whole:
            judge(bench, name, adapter, ridden, tokens, users, rng, figures)
        else:
            figures.wrong.append(f"case {number}: {ridden.broken or f'{ridden.upto} of {len(tokens)} rows came'}")
        bench.riding.end(request)
    bench.drain(rng)
    for user in users:
        bench.check(user, figures)
    if (left := bench.core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()) != free:
        figures.wrong.append(f"case {number}: {free - left} blocks were not given back")
    bench.engine.remove_lora(bench.lora(name).lora_int_id)
    bench.peft.delete_adapter(name)


def crowd(bench: Bench, rng: random.Random, own: str) -> User:
    """A user, with one adapter or another or none."""
    adapter = rng.choice([None, "one", "two", own])
    return bench.ask(rig.tokens(rng, rng.randint(1, 110)), adapter, rng.randint(1, 12))


def judge(
    bench: Bench,
    name: str,
    adapter: adapters.Adapter,
    ridden: seam.Ridden,
    tokens: list[int],
    users: list[User],
    rng: random.Random,
    figures: Figures,
) -> None:
    """Backward in random windows, with users' steps between them, and all of it against PEFT's."""
    labels = labelled(rng, tokens)
    divisor = rng.choice([1.0, float((labels != head.IGNORED).sum())])
    sample = bench.seam.sample(ridden)
    learnt = bench.head(ridden.inputs[-1], labels, divisor, rng.randint(1, len(tokens)))
    found = units.gradients(adapter.layers)
    backward = units.Backward(bench.layers, adapter.layers, sample, learnt.dy, found)
    while not backward.done:
        if rng.random() < 0.3:
            if rng.random() < 0.4 and len(users) < 9:
                users.append(crowd(bench, rng, name))
            bench.step(rng.choice([16, 64, 512]))
        backward.advance(rng.choice([1, 5, 16, 64, 512]) if len(tokens) < 64 else rng.choice([16, 50, 64, 512]))
    real = truth(bench.peft, name, tokens, labels, divisor)
    for ours, theirs in zip(ridden.inputs, real.inputs, strict=True):
        figures.see("input_worst", apart(ours, theirs))
    for layer, pair in enumerate(real.keys_values):
        for ours, theirs in zip(sample.past(layer, len(tokens)), pair, strict=True):
            figures.see("keys_values_worst", apart(ours, theirs), f"{name} layer {layer}")
    figures.see("loss_worst", abs(learnt.loss - real.loss.item()) / abs(real.loss.item()))
    figures.see("logprob_worst", (learnt.logprobs[labels != head.IGNORED] - real.logprobs).abs().max().item())
    gradients(name, found, real.gradients, lambda: in_f64(bench.peft, name, tokens, labels, divisor), figures)


def in_f64(peft: PeftModel, *of: Any) -> dict[str, torch.Tensor]:
    """PEFT's gradients in f64, of what ``truth`` takes."""
    return truth(copy.deepcopy(peft).double(), *of).gradients


def gradients(
    name: str,
    found: units.Gradients,
    real: dict[str, torch.Tensor],
    exactly: Callable[[], dict[str, torch.Tensor]],
    figures: Figures,
) -> None:
    """Each against the largest of its own matrix.

    The gradient of a query or key may be what is left of large terms that cancel out. Then PEFT's own f32 is a rounding
    off, too: what is farther from it than the bound is compared with PEFT in f64, and may be no farther from that than
    PEFT's f32 is.
    """
    seen = 0
    precise: dict[str, torch.Tensor] = {}
    for layer, of_layer in enumerate(found):
        for matrix, pair in of_layer.items():
            for part, ours in zip("AB", pair, strict=True):
                key = adapters.key(layer, matrix, part).replace(".weight", f".{name}.weight")
                off = apart(ours, real[key])
                if off > GRADIENT:
                    precise = precise or exactly()
                    ours_off, theirs_off = apart(ours.double(), precise[key]), apart(real[key].double(), precise[key])
                    figures.count("compared_in_f64")
                    off = GRADIENT * ours_off / theirs_off if ours_off > GRADIENT and theirs_off > GRADIENT else ours_off
                figures.see("gradient_worst", off, f"{name} {matrix} {part} of layer {layer}")
                seen += 1
    if seen != len(real):
        figures.wrong.append(f"{name}: {seen} gradients, and PEFT has {len(real)}")
