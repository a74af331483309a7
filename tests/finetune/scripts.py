"""Training scripts as people write them, no line changed, with and without Tidegate.

    scripts/finetune scripts [--steps N] [--seed N] [--only NAME] [--machine windows|plain] [--json FILE]

Each of ``scripts/``, in four ways:

alone    without Tidegate
windows  its layers are run in units, and nothing is taken
robbed   and what they hold is taken between any two operations of the framework (``robbed.py``)
taken    as a user runs it, on the virtual GPU: library, agent, and an online program that has the GPU in bursts and
         takes memory for its cache and gives it back (``node.py``)

In each of the last two something has to be taken at least ``RECLAIMS`` times. The last three adapters have to be the
same bytes, and the first within 1e-5 of them. Then those of a trainer that says what a micro-batch is, in micro-
batches instead of windows (``plain``): all four adapters have to be the same bytes. One script is run once more
without TIDEGATE_ROLE, on a node where a rule of the agent's makes it offline: in units too, and the same bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]

import node
import tiny
from safetensors.torch import load_file

HERE = Path(__file__).parent
ENGINES = HERE.parents[1] / "interposer/engines"
#: By machine: what it is compared with in its bytes, and where memory is taken.
WAYS = {"windows": ("windows", "robbed", "taken"), "plain": ("plain", "plain-robbed", "plain-taken")}
SCRIPTS = ("hf_trainer", "trl_sft", "accelerate_loop")
RECLAIMS = 20
APART = 1e-5
#: Tokens of a window: samples are longer, so that a layer has several.
WINDOW = 24
#: Tokens whose time a layer takes in a micro-batch, 163 ms both ways: 20 of them last for many of online's bursts.
WHOLE = 65_536
#: 12 blocks, of which a model of three layers holds 11 between its passes.
MEMORY_MIB = 24
#: The weights of the layers alone, and a pool in which online wants some of that in every third burst.
WEIGHTS_MIB = 6
NARROW = node.CONFIG.replace('"64MiB"', '"54MiB"')


def command(script: str, work: Path, way: str, steps: int) -> list[str]:
    """A script's command line, as a user types it."""
    paths = (HERE / "scripts" / f"{script}.py", work / "model", work / "data.jsonl", work / f"{script}-{way}")
    return [*map(str, paths), str(steps)]


def finish(process: subprocess.Popen, what: str) -> str:
    """What a run printed."""
    out, error = process.communicate()
    if process.returncode:
        raise SystemExit(f"{what} failed:\n{out[-2000:]}\n{error[-4000:]}")
    return out


def start(command: list[str], environment: dict[str, str], work: Path) -> subprocess.Popen:
    """A run. It finds the package as where it is installed: ``scripts/finetune`` puts the .pth there."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        [sys.executable, *command],
        env={**environment, "HF_HOME": str(work / "home"), "PYTHONPATH": str(ENGINES)},
        **pipes,
    )


def run(way: str, script: str, work: Path, steps: int, seed: int) -> dict:
    """One run; what it says of itself."""
    line = command(script, work, way, steps)
    if way.endswith("taken"):
        return taken(script, line, work, seed, way.startswith("plain"))
    if way != "alone":
        line = [str(HERE / "stolen.py"), way, *line]
    said = finish(start(line, dict(os.environ), work), f"{script} {way}")
    return json.loads(said.splitlines()[-1]) if way != "alone" else {}


#: Without TIDEGATE_ROLE.
RULED = f"[[identity.rules]]\nuid = {os.getuid()}\nrole = \"offline\"\n" + node.CONFIG.replace(
    '[identity]\ntrust_env_uids = ["self"]\n', ""
)


def chosen(report: Path, window: int = WINDOW) -> dict[str, str]:
    """What a script on the virtual GPU has in its environment."""
    report.unlink(missing_ok=True)
    return {
        "TIDEGATE_FINETUNE_DEVICE": "virtual",
        "TIDEGATE_FINETUNE_MEMORY": str(MEMORY_MIB),
        "TIDEGATE_FINETUNE_WINDOW": str(window),
        "TIDEGATE_FINETUNE_REPORT": str(report),
    }


def ruled(script: str, work: Path, steps: int) -> bool:
    """Whether a script that a rule makes offline runs in units, and gives the same bytes."""
    report = work / "report.json"
    with node.Node(RULED) as here:
        environment = {**here.environment("", "tune"), **chosen(report)}
        finish(start(command(script, work, "ruled", steps), environment, work), f"{script} by a rule")
    files = [work / f"{script}-{way}" / "adapter_model.safetensors" for way in ("windows", "ruled")]
    return json.loads(report.read_text())["units"] > 0 and files[0].read_bytes() == files[1].read_bytes()


def taken(script: str, line: list[str], work: Path, seed: int, plain: bool) -> dict:
    """A run on a node whose online program takes memory, until the script ends."""
    report = work / "report.json"
    with node.Node(NARROW if plain else node.CONFIG) as here:
        environment = {**here.environment("offline", "tune"), **chosen(report, WHOLE if plain else WINDOW)}
        if plain:
            environment |= {"TIDEGATE_FINETUNE_MACHINE": "plain", "TIDEGATE_FINETUNE_MEMORY": str(WEIGHTS_MIB)}
        online = here.online(seed)
        process = start(line, environment, work)
        online.start()
        try:
            finish(process, f"{script} on the virtual GPU")
        finally:
            process.kill()
        online.stop()
        return {**json.loads(report.read_text()), "online_filled": online.filled}


def compare(script: str, machine: str, steps: int, work: Path, seed: int) -> dict:
    """A script in all ways of a machine."""
    calm, *disturbed = WAYS[machine]
    said = {way: run(way, script, work, steps, seed) for way in ("alone", calm, *disturbed)}
    files = {way: work / f"{script}-{way}" / "adapter_model.safetensors" for way in said}
    alone, ours = load_file(files["alone"]), load_file(files[calm])
    row = {
        "script": script,
        "machine": machine,
        "units": said[calm]["units"],
        "apart": max(float((alone[n] - ours[n]).abs().max()) for n in alone),
        "trained": max(float(tensor.abs().max()) for name, tensor in alone.items() if "lora_B" in name),
        "online_filled": said[disturbed[-1]]["online_filled"],
    }
    good = row["apart"] <= APART < row["trained"] and alone.keys() == ours.keys()
    good &= said[calm]["reclaims"] == 0 < row["units"]
    if machine == "plain":
        good &= files["alone"].read_bytes() == files[calm].read_bytes()
    for way in disturbed:
        row[way.removeprefix("plain-")] = {
            "same_bytes": files[calm].read_bytes() == files[way].read_bytes(),
            "reclaims": said[way]["reclaims"],
            "units_redone": said[way]["units_redone"],
        }
        good &= files[calm].read_bytes() == files[way].read_bytes() and said[way]["reclaims"] >= RECLAIMS
        if machine == "plain":
            # A reclaim costs a micro-batch at most.
            good &= said[way]["units_redone"] <= said[way]["reclaims"]
    if machine == "windows" and script == SCRIPTS[-1]:
        row["ruled"] = ruled(script, work, steps)
        good &= row["ruled"]
    return {**row, "good": good}


def told(row: dict) -> str:
    """A row, for people."""
    ways = "; ".join(
        f"{way}: {'the same bytes' if row[way]['same_bytes'] else 'OTHER BYTES'} after {row[way]['reclaims']} reclaims"
        f" and {row[way]['units_redone']} units again"
        for way in ("robbed", "taken")
    )
    return (
        f"{row['script']:<15} {row['machine']:<7} {row['units']:>5} units, {row['apart']:.1e} from the run without"
        f" Tidegate, which moved {row['trained']:.1e}; {ways}"
        + ("" if row.get("ruled", True) else "; WRONG where a rule gives the role")
        + ("" if row["good"] else "   FAILED")
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of what online takes")
    parser.add_argument("--only", choices=SCRIPTS)
    parser.add_argument("--machine", choices=list(WAYS), help="windows or micro-batches (plain) only")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        tiny.model(work / "model")
        tiny.data(work / "data.jsonl")
        for machine in [args.machine] if args.machine else WAYS:
            for script in [args.only] if args.only else SCRIPTS:
                # A loop of one's own says nothing of micro-batches.
                if machine == "plain" and script == SCRIPTS[-1]:
                    continue
                rows.append(compare(script, machine, args.steps, work, args.seed))
                print(told(rows[-1]), flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["good"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
