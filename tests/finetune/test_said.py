"""What a training says of itself, whatever trains it."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import cases
import torch
from tidegate_engines.finetune.machine import Machine
from tidegate_engines.finetune.said import Teller
from tidegate_engines.finetune.seam import attach
from tidegate_engines.job import Training


class Heard:
    """The library's place."""

    def __init__(self, fails: bool = False) -> None:
        self.units, self.said, self.fails = 0, [], fails

    def progress(self, units: int) -> None:
        assert units >= 0
        self.units += units

    def trainer(self, now: Training) -> None:
        if self.fails:
            raise OSError("no agent has ever heard of it")
        self.said.append(replace(now))


def case() -> cases.Case:
    drawn = cases.draw("llama", 4, "float32")
    windows = ((0, 5), (5, 10))
    return replace(drawn, length=10, batch=2, padding="none", checkpointing=False, forward=windows, backward=windows)


def train(model: torch.nn.Module, steps: int) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for step in range(steps):
        # Two micro-batches are a step.
        for _ in range(2):
            model(**cases.batch(replace(case(), seed=step))).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


# P-TRAINER-10: steps, tokens, loss and units, with no line of a script.
def test_steps_tokens_loss_and_units_are_told_without_a_word_of_the_script():
    model, heard = cases.model(case()), Heard()
    machine = attach(model, lambda layers: Machine(layers, forward=lambda _: list(case().forward)))
    teller = Teller(heard, model, machine)
    train(model, 3)
    last = heard.said[-1]
    assert [said.step for said in heard.said] == [1, 2, 3]
    assert last.tokens == heard.units == 3 * 2 * 2 * 10
    assert last.units == machine.counts.units == 3 * 2 * 2 * 2 * len(machine.layers)
    assert last.layers == last.resident_layers == len(machine.layers)
    assert 0 < last.loss < 20 and math.isfinite(last.loss)
    teller.finished("out", "a server")
    assert (heard.said[-1].adapter, heard.said[-1].served) == ("out", "a server")


def test_a_training_that_is_run_as_it_is_is_told_of_too_and_other_optimizers_are_not_counted():
    model, heard = cases.model(case()), Heard()
    teller = Teller(heard, model, None)
    teller.goes_on(7, 9)
    train(model, 1)
    train(cases.model(case()), 5)
    assert (heard.said[-1].step, heard.said[-1].steps, heard.said[-1].begun) == (8, 9, 7)
    assert (heard.said[-1].layers, heard.said[-1].units) == (0, 0)
    before = heard.units
    model.eval()
    with torch.no_grad():
        model(**cases.batch(case()))
    copy.deepcopy(model).train()(**cases.batch(case()))
    teller.tell()
    assert heard.units == before, "neither an evaluation nor a copy of the model is this training"


def test_a_library_that_refuses_costs_one_line_and_no_training(caplog):
    model, heard = cases.model(case()), Heard(fails=True)
    teller = Teller(heard, model, None)
    train(model, 3)
    assert teller.now.step == 3
    assert [r.getMessage() for r in caplog.records if "status shows nothing" in r.getMessage()] == [
        "status shows nothing of this training from here on: no agent has ever heard of it"
    ]
