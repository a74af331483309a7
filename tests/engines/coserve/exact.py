"""vLLM with a sample in its passes against transformers and PEFT on the same files, in f32.

For each family random cases: an adapter of PEFT's, a sample or two, users' requests with and without adapters in the
same passes, random chunks and windows, a cache that is nearly full. What is compared: the input of every layer, keys and
values, loss, every gradient, and users' answers. Then steps of AdamW inside the serving engine against PEFT's own loop.
The buffers that a pass returned are overwritten before the next one, as captured graphs overwrite them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any

import ablations
import alone
import cases
import loop
import refused
import rig
from tidegate_engines.vllm.coserve import seam

#: What must hold, by the name of a figure.
BOUNDS = {
    "input_worst": 1e-5,
    "keys_values_worst": 1e-5,
    "loss_worst": 1e-5,
    "logprob_worst": 1e-4,
    "gradient_worst": cases.GRADIENT,
    "layer_worst": 1e-10,
    "adapter_worst": 1e-4,
    "logits_worst": 1e-4,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="coserve exact", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100, help="random cases of each family")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--family", action="append", choices=rig.FAMILIES, help="this family only; may be repeated")
    parser.add_argument("--steps", type=int, default=20, help="of AdamW; 0 leaves them and a compiled model out")
    parser.add_argument("--without", choices=sorted(ablations.CLAUSES), help="a clause of the plugin is left out")
    parser.add_argument("--json", type=Path, help="where the figures go as well")
    found = parser.parse_args()
    if found.runs < 0 or found.steps < 0:
        parser.error("--runs and --steps are at least 0")
    return found


def family(name: str, given: argparse.Namespace, folder: Path, figures: cases.Figures) -> None:
    """All that is asked of one family, in one engine after another."""
    alone.layers(name, given.seed, figures)
    model = rig.Model(name, seed=given.seed, tied=name == "qwen3").save(folder / "model")
    if given.runs:
        bench = cases.Bench(model, folder)
        for number in range(given.seed, given.seed + given.runs):
            cases.run(bench, number, figures)
        bench.one_copy(figures)
        refused.run(bench, figures)
        figures.count("preempted", len(bench.preempted))
        figures.count("preempted_samples", sum("sample" in name for name in bench.preempted))
        bench.end()
    if given.steps:
        if os.environ.get("COSERVE_RUNNER") != "2":
            compiled(model, folder, given, figures)
        same = rig.Model(name, tied=name == "qwen3").save(folder / "same")
        loop.run(same, folder, given.steps, figures)


def compiled(model: Path, folder: Path, given: argparse.Namespace, figures: cases.Figures) -> None:
    """Some cases with a model that Dynamo has traced and vLLM has split, as in a server; what compiles is left out."""
    # vLLM's own passes are for its kernels, which are not here.
    passes = dict.fromkeys(("eliminate_noops", "fuse_norm_quant", "fuse_act_quant", "fuse_attn_quant"), False)
    way = {"mode": 3, "backend": "eager", "cudagraph_mode": "NONE", "compile_sizes": [], "pass_config": passes}
    bench = cases.Bench(model, folder, enforce_eager=False, compilation_config=way)
    for number in range(given.seed, given.seed + 3):
        cases.run(bench, number, figures)
    figures.count("compiled", 3)
    config = bench.core.vllm_config
    on = config.compute_hash()
    config.additional_config.pop(seam.SETTING, None)
    if config.compute_hash() == on:
        figures.wrong.append("vLLM's key of compiled models is the same with and without the inputs of layers")
    bench.end()


def main() -> int:
    given = arguments()
    warnings.filterwarnings("ignore")
    if given.without:
        ablations.CLAUSES[given.without]()
    if os.environ.get("COSERVE_RUNNER") == "2":
        # Its kernels are interpreted: a step takes twenty times as long.
        given.runs, given.steps = -(-given.runs // 10), -(-given.steps // 4)
    total = cases.Figures()
    for name in given.family or rig.FAMILIES:
        with tempfile.TemporaryDirectory(prefix="coserve-") as folder:
            figures = cases.Figures()
            try:
                family(name, given, Path(folder), figures)
            except Exception as error:  # noqa: BLE001 # the other families are judged too
                traceback.print_exc()
                figures.wrong.append(f"{type(error).__name__}: {error}")
            total.add(name, figures)
    return report(total, given)


def report(total: cases.Figures, given: argparse.Namespace) -> int:
    """Says the figures, and whether all of them hold."""
    import vllm

    beyond = [(name, bound) for name, bound in BOUNDS.items() if not total.within(name, bound)]
    over = [f"{name} {total.worst[name]:.1e} > {bound:.0e} ({total.where[name]})" for name, bound in beyond]
    wrong = len(total.wrong) + len(over)
    found: dict[str, Any] = {
        "version": vllm.__version__,
        "runner": os.environ.get("COSERVE_RUNNER", ""),
        "without": given.without,
        "cases": total.cases,
        "wrong": wrong,
        **{name: total.worst[name] for name in BOUNDS},
        **total.counts,
    }
    print(json.dumps(found), flush=True)
    for line in [*total.wrong[:10], *over]:
        print(f"coserve: exact: {line}", file=sys.stderr)
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
