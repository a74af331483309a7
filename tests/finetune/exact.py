"""Token windows against ``loss.backward()`` of the unmodified model, on random cases.

    scripts/finetune exact [--cases N] [--robbed N] [--seed S] [--json FILE]

For each family, so many cases in f64 and in f32. The gradient of every trained parameter has to differ by
at most 1e-10 of the largest in f64, by 1e-6 absolutely in f32; so has the loss.

Two kinds of cases ask for less than their own rounding, and have another judge:

* a gradient that is zero, and whose largest entry is a rounding error: with two tokens the one that has a label
  attends to itself alone, so its keys and queries change nothing. In f64 what autograd leaves of the largest gradient
  of any weight, frozen ones too, is ``NOISE`` of it, and that is allowed beside the 1e-10;
* an f32 gradient so large that 1e-6 is less than its last bit: the same model in f64 says what is right, and the
  windows may be no further from that than ``FURTHER`` times what autograd itself is.

In bf16 the losses of 50 steps have to be within 1 % (``bfloat``). Then units with memory taken in between (``robbed``).
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "interposer/engines")]

import bfloat
import cases
import robbed
from cases import Case
from tidegate_engines.finetune.machine import Machine
from tidegate_engines.finetune.seam import attach, detach

#: By dtype: the bound, and whether it is relative to the largest gradient.
BOUNDS = {"float64": (1e-10, True), "float32": (1e-6, False)}

#: Of the largest gradient of all weights: 16 roundings in f64.
NOISE = 16 * torch.finfo(torch.float64).eps
#: How much further from f64 than autograd's f32: two sums of the same terms in another order.
FURTHER = 2.0


@dataclass
class Found:
    """How far the two are apart."""

    gradient: float
    loss: float
    parameters: int
    #: Whether 1e-6 was less than the gradient's last bits, and f64 was asked.
    judged: bool = False

    def fails(self, dtype: str) -> bool:
        # A gradient that is not a number is not within any bound.
        return not (self.gradient <= BOUNDS[dtype][0] and self.loss <= BOUNDS[dtype][0])


def reference(model: torch.nn.Module, inputs: dict, case: Case) -> tuple[torch.Tensor, dict]:
    """Loss and gradients by autograd through the whole model."""
    model.zero_grad(set_to_none=True)
    items = {} if case.items is None else {"num_items_in_batch": torch.tensor(case.items)}
    loss = model(**inputs, **items).loss
    loss.backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return loss.detach(), grads


def machine(model: torch.nn.Module, case: Case, kind: type[Machine] = Machine, **words: object) -> Machine:
    """Has a model's layers run by a machine, with a case's windows."""
    cuts = {
        "forward": lambda _: list(case.forward),
        "backward": lambda _: list(case.backward),
    }
    return attach(model, lambda layers: kind(layers, **cuts, **words))


def compare(case: Case) -> Found:
    """Runs one case both ways."""
    return compare_with(cases.model(case), case)


def compare_with(model: torch.nn.Module, case: Case) -> Found:
    """As :func:`compare`, with a model of the caller's."""
    inputs = cases.batch(case)
    loss, grads = reference(model, inputs, case)
    ran = machine(model, case)
    found, ours = reference(model, inputs, case)
    detach(model)
    if ran.counts.units == 0:
        raise AssertionError("no unit was run")
    if ours.keys() != grads.keys():
        raise AssertionError(f"gradients of other parameters: {ours.keys() ^ grads.keys()}")
    # Where every label is -100 the loss is 0/0 in both.
    if torch.isnan(loss) and torch.isnan(found):
        return Found(0.0, 0.0, len(grads))
    apart = distance(ours, grads)
    apart_loss = (found - loss).abs().item()
    bound, relative = BOUNDS[case.dtype]
    if relative:
        largest = max(g.abs().max().item() for g in grads.values())
        if apart > bound * largest:
            apart = max(0.0, apart - NOISE * largest_of_all(model, case))
        apart /= max(largest, 1e-300)
        apart_loss /= max(loss.abs().item(), 1e-300)
        return Found(apart, apart_loss, len(grads))
    # A loss is of the size of log(vocabulary); f32 has 7 digits of it.
    apart_loss /= max(1.0, loss.abs().item())
    if apart <= bound:
        return Found(apart, apart_loss, len(grads))
    true = in_f64(model, case)
    allowed = FURTHER * distance(grads, true)
    return Found(bound * distance(ours, true) / max(allowed, 1e-300), apart_loss, len(grads), True)


def distance(ours: dict, others: dict) -> float:
    """The largest difference of two gradients of the same parameters."""
    found = ((ours[n] - others[n]).abs().max().item() for n in others)
    # max() would pass over what is not a number.
    return max(found, key=lambda value: (value != value, value))


def in_f64(model: torch.nn.Module, case: Case) -> dict:
    """The gradients of the same weights, all of it computed in f64."""
    wide = copy.deepcopy(model).double()
    cases.widen(wide)
    return reference(wide, cases.batch(case), case)[1]


def largest_of_all(model: torch.nn.Module, case: Case) -> float:
    """The largest gradient of any weight, trained or frozen."""
    every = copy.deepcopy(model).requires_grad_(True)
    if case.dtype == "float64":
        cases.widen(every)
    return max(g.abs().max().item() for g in reference(every, cases.batch(case), case)[1].values())


@dataclass
class Row:
    """One family in one dtype."""

    cases: int = 0
    worst_gradient: float = 0.0
    worst_loss: float = 0.0
    judged: int = 0
    failed: list = field(default_factory=list)


def run(count: int, seed: int) -> dict[str, Row]:
    """All families and dtypes."""
    rows: dict[str, Row] = {}
    for family in cases.FAMILIES:
        for dtype in BOUNDS:
            row = rows[f"{family} {dtype}"] = Row()
            for index in range(count):
                case = cases.draw(family, seed * 1_000_000 + index, dtype)
                found = compare(case)
                row.cases += 1
                row.worst_gradient = max(row.worst_gradient, found.gradient)
                row.worst_loss = max(row.worst_loss, found.loss)
                row.judged += found.judged
                if found.fails(dtype):
                    row.failed.append({**asdict(case), **asdict(found)})
            print(
                f"{family:<8} {dtype}  {row.cases:>4} cases  gradient {row.worst_gradient:.1e}"
                f"  loss {row.worst_loss:.1e}  {row.judged} judged by f64  {len(row.failed)} failed",
                flush=True,
            )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", type=int, default=200, help="of each family and dtype")
    parser.add_argument("--robbed", type=int, default=40, help="cases whose memory is taken")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = run(args.cases, args.seed)
    wide = bfloat.run(args.seed)
    taken = robbed.measure(args.robbed, args.seed, robbed.ABLATIONS if args.robbed else ())
    robbed.tell(taken)
    if args.json:
        text = {
            "seed": args.seed,
            "exact": {name: asdict(row) for name, row in rows.items()},
            "bfloat16": {name: asdict(row) for name, row in wide.items()},
            "robbed": asdict(taken),
        }
        Path(args.json).write_text(json.dumps(text, indent=1) + "\n")
    failed = [case for row in rows.values() for case in row.failed]
    for case in failed[:5]:
        print(f"FAILED: {case}")
    good = not failed and taken.good() and all(row.good() for row in wide.values())
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
