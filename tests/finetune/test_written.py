"""Scripts that write into frozen weights in the middle of a training, over memory that is taken."""

from __future__ import annotations

import gc
import random
from dataclasses import replace

import cases
import pytest
import robbed
import torch
from tidegate_engines.finetune.machine import Machine
from tidegate_engines.finetune.plain import Plain
from tidegate_engines.finetune.seam import attach
from tidegate_engines.finetune.taken import TakenMemory
from tidegate_engines.finetune.windows import every
from test_taken import Job, Played


def layers(model):
    return model.get_base_model().model.layers


def base(model, at=1):
    return layers(model)[at].mlp.down_proj


def in_place(model):
    with torch.no_grad():
        base(model).weight.mul_(1.5)


def by_data(model):
    # As PEFT merges.
    base(model).weight.data += 0.05


def other_data(model):
    base(model).weight.data = base(model).weight.data * 0.5


def by_copy(model):
    base(model).weight.data.copy_(base(model).weight.data * 0.7)


def by_state(model):
    state = {name: value.clone() for name, value in base(model).state_dict().items()}
    state["weight"] += 0.1
    base(model).load_state_dict(state)


def by_optimizer(model):
    weight = base(model).weight
    weight.requires_grad_(True)
    weight.grad = torch.full_like(weight, 0.3)
    torch.optim.SGD([weight], lr=0.2).step()
    weight.grad = None
    weight.requires_grad_(False)


def thawed(model):
    base(model).weight.requires_grad_(True)


def another(model):
    base(model).weight = torch.nn.Parameter(base(model).weight.detach() * 0.9, requires_grad=False)


def tied(model):
    base(model, 0).weight = base(model, 1).weight


def to_dtype(model):
    model.to(torch.float64)


WRITES = (in_place, by_data, other_data, by_copy, by_state, by_optimizer, thawed, another, tied, to_dtype)


def drawn():
    case = cases.draw("llama", 5, "float32")
    return replace(case, layers=3, length=18, padding="none", batch=1, modules=("q_proj", "v_proj"), tied=False)


def trained(write, share, how):
    """Six micro-batches with an optimizer's steps, with a write after the third; what is left of the adapter."""
    case = drawn()
    model = cases.model(case)
    played = Played(40, random.Random(1), share)
    memory = TakenMemory(played, Job(played), played.base, 40)
    step = lambda work: work()  # noqa: E731
    if how == "windows":
        # One window is the model's own computation, so autograd's own bytes are asked for.
        attach(model, lambda ls: Machine(ls, memory, every(64))).copy_weights()
    elif how == "plain":
        step = Plain(model, memory).step
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    for index in range(6):
        if index == 3:
            write(model)
        step(lambda index=index: model(**cases.batch(replace(case, seed=index))).loss.backward())
        optimizer.step()
        optimizer.zero_grad()
    return {n: p.detach().numpy().tobytes() for n, p in model.named_parameters()}, played


# P-TRAINER-8: what a script writes into frozen weights is what it trains on from there.
@pytest.mark.parametrize("how", ["windows", "plain"])
@pytest.mark.parametrize("write", WRITES)
def test_a_script_that_writes_into_frozen_weights_trains_on_the_new_ones(write, how):
    expected, _ = trained(write, 0.0, None)
    assert expected != trained(lambda _: None, 0.0, None)[0] or write is thawed
    for share in (0.0, 0.03):
        found, played = trained(write, share, how)
        assert found == expected
        assert share == 0 or played.taken > 0


def test_a_write_between_a_forward_pass_and_its_backward_pass_is_refused():
    case = drawn()
    model = cases.model(case)
    attach(model, lambda ls: Machine(ls, None, every(7))).copy_weights()
    loss = model(**cases.batch(case)).loss
    by_data(model)
    with pytest.raises(RuntimeError, match="written to between the forward pass and its backward"):
        loss.backward()
    model(**cases.batch(case)).loss.backward()


def test_a_write_to_what_was_taken_is_refused():
    case = drawn()
    model = cases.model(case)
    thief = robbed.Thief(random.Random(0), set())
    machine = attach(model, lambda ls: Machine(ls, thief, every(7)))
    machine.copy_weights()
    for name in list(thief._tensors):
        thief._lost.add(name)
        thief._untold.add(name)
    machine._settle()
    in_place(model)
    with pytest.raises(RuntimeError, match="layer 1 was written to while its memory was taken"):
        model(**cases.batch(case))


@pytest.mark.parametrize("share", [0.0, 0.03])
@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_a_graph_that_is_kept_has_a_second_backward_pass(share, dropout):
    def run(attached):
        case = replace(drawn(), dropout=dropout)
        model = cases.model(case)
        played = Played(40, random.Random(2), share)
        memory = TakenMemory(played, Job(played), played.base, 40)
        if attached:
            attach(model, lambda ls: Machine(ls, memory, every(64))).copy_weights()
            adopted = len(memory._pieces)
        torch.manual_seed(4)
        loss = model(**cases.batch(case)).loss
        loss.backward(retain_graph=True)
        once = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        loss.backward(retain_graph=True)
        loss.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        assert [g.numpy().tobytes() for g in grads] == [(o + o + o).numpy().tobytes() for o in once]
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        if attached:
            gc.collect()
            assert len(memory._pieces) == adopted
        return [g.numpy().tobytes() for g in grads]

    attached = run(True)
    if not dropout:
        assert attached == run(False)


def test_an_optimizer_that_steps_between_the_passes_is_told_of_as_without_us():
    case = drawn()
    model = cases.model(case)
    attach(model, lambda ls: Machine(ls, None, every(7)))
    loss = model(**cases.batch(case)).loss
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
