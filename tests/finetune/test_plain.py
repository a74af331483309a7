"""Micro-batches as units: of models that no windows fit, and of any other."""

from __future__ import annotations

import random

import pytest
import robbed
import torch
from peft import LoraConfig, get_peft_model
from tidegate_engines.finetune import plain, trainer
from tidegate_engines.finetune.held import Held, Kind
from tidegate_engines.finetune.plain import Plain
from transformers import AutoConfig, AutoModelForCausalLM

LAYERS, MICRO_BATCHES = 3, 4


def model(checkpointing: bool = False):
    """A GPT-2, which is of no tested family, with dropout."""
    torch.manual_seed(5)
    config = AutoConfig.for_model(
        "gpt2", vocab_size=96, n_embd=32, n_layer=LAYERS, n_head=2, n_positions=64, resid_pdrop=0.1, use_cache=False
    )
    base = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    lora = LoraConfig(r=4, target_modules=["c_attn", "c_fc"], lora_dropout=0.1, init_lora_weights=False)
    made = get_peft_model(base, lora)
    if checkpointing:
        made.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return made.train()


def train(kind: type[Plain] | None, strikes: set[int], checkpointing: bool = False):
    """Some micro-batches of one step; the gradients, and what ran them."""
    trained, thief = model(checkpointing), robbed.Thief(random.Random(3), strikes)
    machine = kind(trained, thief) if kind is not None else None
    torch.manual_seed(9)
    with robbed.Watching(thief):
        for index in range(MICRO_BATCHES):
            ids = torch.randint(96, (2, 12), generator=torch.Generator().manual_seed(index))

            def work(ids=ids):
                loss = trained(input_ids=ids, labels=ids).loss
                loss.backward()
                return loss.item()

            if machine is None:
                work()
            else:
                machine.step(work)
    grads = {name: p.grad.numpy().tobytes() for name, p in trained.named_parameters() if p.grad is not None}
    return grads, machine, thief


def strikes(seed: int, operations: int) -> set[int]:
    """Rarely enough for a micro-batch to get through."""
    rng = random.Random(seed)
    return {rng.randint(1, operations) for _ in range(rng.randint(2, 5))}


@pytest.fixture(scope="module")
def calm():
    """A run without any machine, and how many operations one with a machine has."""
    _, machine, thief = train(Plain, set())
    assert (machine.counts.units, machine.counts.units_redone) == (MICRO_BATCHES, 0)
    return train(None, set())[0], thief.operations


# P-TRAINER-8: what is taken changes no byte, and costs a micro-batch at most.
@pytest.mark.parametrize("seed", range(6))
def test_what_is_taken_at_any_operation_changes_no_byte(calm, seed):
    grads, machine, thief = train(Plain, strikes(seed, calm[1]))
    assert grads == calm[0]
    assert thief.taken > 0 < machine.counts.reclaims
    assert machine.counts.units == MICRO_BATCHES + machine.counts.units_redone
    assert machine.counts.units_redone <= machine.counts.reclaims


def test_the_models_own_checkpointing_is_no_hindrance(calm):
    plainly = train(None, set(), checkpointing=True)[0]
    grads, machine, _ = train(Plain, strikes(1, calm[1]), checkpointing=True)
    assert grads == plainly
    assert machine.counts.units_redone > 0


class NoPoll(Plain):
    """Nobody asks what was lost."""

    def _settle(self):
        self._wait()


class NotAgain(Plain):
    """A micro-batch that lost something is left as it is."""

    def _settle(self):
        super()._settle()
        self._garbage = False


class NotDropped(Plain):
    """What a micro-batch added before it is run again stays."""

    def _restore(self, state):
        kept = [p.grad for p in self._trained]
        super()._restore(state)
        self.kept = kept

    def step(self, work):
        self.kept = None

        def twice():
            result = work()
            for parameter, grad in zip(self._trained, self.kept or [], strict=False):
                parameter.grad += grad
            return result

        return super().step(twice)


class WeightsNotLoaded(Plain):
    """What was lost is used as it is when there is memory again."""

    def _reload(self, name):
        self.memory.again(name)
        self._missing.discard(name)
        self._settle()


class RandomStateNotRestored(Plain):
    """What is run again drops something else."""

    def _restore(self, state):
        return None


@pytest.mark.parametrize("kind", [NoPoll, NotAgain, NotDropped, WeightsNotLoaded, RandomStateNotRestored])
def test_without_a_clause_they_do(calm, kind):
    def wrong(seed):
        try:
            return train(kind, strikes(seed, calm[1]))[0] != calm[0]
        except AssertionError:
            return True

    assert any(wrong(seed) for seed in range(8))


def test_a_micro_batch_that_fails_leaves_the_gradients_as_they_were():
    trained = model()
    machine = Plain(trained)
    ids = torch.arange(12)[None]
    machine.step(lambda: trained(input_ids=ids, labels=ids).loss.backward())
    before = [p.grad.clone() for p in trained.parameters() if p.requires_grad]

    def fails():
        trained(input_ids=ids, labels=ids).loss.backward()
        raise ValueError("out of samples")

    with pytest.raises(ValueError, match="out of samples"):
        machine.step(fails)
    after = [p.grad for p in trained.parameters() if p.requires_grad]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_loss_outside_of_a_micro_batch_is_an_error_and_not_a_wrong_answer():
    # More operations between two thefts than a layer has weights, or it is loaded again and again.
    trained, thief = model().eval(), robbed.Thief(random.Random(3), set(range(10, 2000, 37)))
    Plain(trained, thief)
    with robbed.Watching(thief), torch.no_grad(), pytest.raises(RuntimeError, match="outside of training"):
        trained(input_ids=torch.arange(12)[None])


def test_weights_that_others_share_are_not_taken():
    trained, thief = model(), robbed.Thief(random.Random(3), set())
    shared = trained.get_base_model().transformer.h
    shared[1].mlp.c_proj.weight = shared[0].mlp.c_proj.weight
    Plain(trained, thief)
    taken = {t.data_ptr() for tensors in thief._tensors.values() for t in tensors}
    assert shared[0].mlp.c_proj.weight.data_ptr() not in taken
    assert shared[0].mlp.c_fc.base_layer.weight.data_ptr() in taken
    assert set(thief._tensors) == {Held(n, Kind.WEIGHTS) for n in range(LAYERS)}


def test_what_has_nothing_to_take_is_named():
    assert plain.why_not(model()) is None
    assert "has no layers" in plain.why_not(torch.nn.Linear(2, 2))
    assert "none of its weights is frozen" in plain.why_not(model().requires_grad_(True))


def test_a_model_that_nobody_prepared_is_run_as_it_is():
    assert trainer.step(torch.nn.Linear(2, 2), lambda: 7) == 7
