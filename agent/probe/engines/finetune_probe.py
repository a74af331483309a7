"""P23 and P22: a LoRA that is trained while memory is taken from it, and beside an engine.

    finetune_probe.py [--backend cuda|virtual] [--seconds N] [--steps N] [--only P22,P23] [--pool SIZE] [--out DIR]

P23: the same steps undisturbed, undisturbed again, and with memory taken in mid-step: losses and adapter are the same
bytes, or on a real GPU, whose kernels may add in another order, no farther apart than twice what two undisturbed runs
are. P22: vLLM alone, beside the trainer without control, and
with Tidegate, gated alone and with so much of the GPU's memory shared: TTFT, TPOT, tokens trained; and vLLM's own loader
takes the adapter. On the virtual GPU another program answers in vLLM's place, and nothing loads the adapter: it shows
that the comparison works. TIDEGATE_PLUGIN names the folder with the package `tidegate_engines`.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time

import lines
import node
import runs

# Seconds until a program is ready: imports, weights drawn.
READY = 240
# Memory that is shared where nobody says it, by probe and backend: an 8B trainer has 14 GiB that can be taken, and beside
# it what PyTorch and the engine allocate has to fit.
POOLS = {"P22": {"cuda": "72GiB", "virtual": "64MiB"}, "P23": {"cuda": "40GiB", "virtual": "64MiB"}}
# Of 2 MiB: what the taker of P23 wants at a time, so that a part of the trainer's memory has to leave.
BLOCKS = {"cuda": 12_000, "virtual": 20}
LENGTHS = {"cuda": 2048, "virtual": 64}
# How many times as far apart as two undisturbed runs are a robbed one may be from an undisturbed one.
BOUND = 2.0

# Of P22: MiB of a trainer of that shape that can be taken, where it is not the trainer's own guess.
MEMORY = {"8b": None, "1b": 3000}

LOADS = """
import json, sys
import vllm_engine
from vllm import LLM
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest

folder, adapter = sys.argv[1:]
engine = LLM(**vllm_engine.arguments(EngineArgs, folder, 0.4, False), enable_lora=True, max_lora_rank=16)
draw = vllm_engine.random.Random(1)
asked = vllm_engine.prompt(64, draw)
answers = [engine.generate([asked], vllm_engine.sampling(16, True), lora_request=request, use_tqdm=False)[0].outputs[0].token_ids
           for request in (None, LoRARequest("trained", 1, adapter))]
print(len(answers[0]), len(answers[1]))
"""


class Probe:
    def __init__(self, options):
        self.options = options
        self.virtual = options.backend == "virtual"
        self.vllm = importlib.util.find_spec("vllm") is not None

    def pool(self, probe):
        return self.options.pool or POOLS[probe][self.options.backend]

    def trainer(self, *more):
        length = self.options.length or LENGTHS[self.options.backend]
        if MEMORY[self.options.shape]:
            more = ("--memory", str(MEMORY[self.options.shape]), *more)
        return [os.path.join(runs.HERE, "finetune_engine.py"), "offline", "--backend", self.options.backend,
                "--length", str(length), "--shape", self.options.shape, *more]

    def taker(self):
        blocks = self.options.blocks or BLOCKS[self.options.backend]
        return [os.path.join(runs.HERE, "finetune_engine.py"), "taker", "--backend", self.options.backend,
                "--blocks", str(blocks)]

    # P23.

    def steps(self, name, gated, taken):
        """What so many steps left, and what the trainer said."""
        saved = os.path.join(self.options.out, f"P23-{name}.pt")
        programs, logs = {}, []
        with node.Node(runs.HOME, "best" if gated else None, self.pool("P23") if gated else None, gated) as here:

            def start(role, command):
                log = open(os.path.join(self.options.out, f"P23-{name}-{role}.log"), "w+", encoding="utf-8")
                logs.append(log)
                # What is taken by its role, and does the same in each run.
                named = "online" if role == "taker" else "offline"
                programs[role] = runs.Program(here, lambda _: command, named, gated, log,
                                              CUBLAS_WORKSPACE_CONFIG=":4096:8")
                programs[role].hear("being ready", READY)

            try:
                start("trainer", self.trainer("--steps", str(self.options.steps), "--save", saved))
                if taken:
                    start("taker", self.taker())
                    programs["taker"].say(repr(time.monotonic()))
                programs["trainer"].say(repr(time.monotonic()))
                said = json.loads(programs["trainer"].hear("figures", self.options.limit))
                if taken:
                    programs["taker"].say("stop")
                    said["taker"] = json.loads(programs["taker"].hear("figures", runs.FIGURES))
                return saved, said
            finally:
                for program in programs.values():
                    node.stop(program.process)
                for log in logs:
                    log.close()
                here.keep_log(os.path.join(self.options.out, f"P23-{name}-agent.log"))

    def exact(self):
        import torch

        kept = {}
        for name, robbed in (("undisturbed", False), ("undisturbed again", False), ("robbed", True)):
            saved, said = self.steps(name.replace(" ", "-"), True, robbed)
            kept[name] = torch.load(saved, weights_only=True)
            for what in ("in_units", "steps", "units", "units_redone", "reclaims", "blocks_lost"):
                lines.figure("P23", f"{name}: {what.replace('_', ' ')}", said[what])
            lines.figure("P23", f"{name}: tokens/s", said["tokens"] / said["seconds"])
            lines.note("P23", f"{name}: losses {' '.join(f'{loss:.6f}' for loss in kept[name]['losses'])}")
            if not said["in_units"]:
                raise RuntimeError("the trainer does not run in units: see its log")
        lines.figure("P23", "robbed: times that online had its memory", said["taker"]["filled"])
        lines.spread("P23", "robbed: online waited", said["taker"]["waited_s"], "ms", 1e3)
        if said["blocks_lost"] < self.options.lost:
            raise RuntimeError(f"{said['blocks_lost']} blocks were lost, and {self.options.lost} were to be borne")
        calm = self.apart(kept["undisturbed"], kept["undisturbed again"], "two undisturbed runs")
        robbed = self.apart(kept["undisturbed"], kept["robbed"], "an undisturbed and a robbed run")
        if any(mine > (0 if self.virtual else BOUND * theirs) for mine, theirs in zip(robbed, calm, strict=True)):
            raise RuntimeError(f"what was taken changed the adapter by {robbed[0]:.3g}, the losses by {robbed[1]:.3g}; "
                               f"two undisturbed runs are {calm[0]:.3g} and {calm[1]:.3g} apart")

    def apart(self, one, other, name):
        """How far apart two runs are, of the largest number: the adapter, the losses."""
        worst = (0.0, "")
        for tensor in one["adapter"]:
            mine, theirs = one["adapter"][tensor], other["adapter"][tensor]
            worst = max(worst, ((mine - theirs).abs().max().item() / max(mine.abs().max().item(), 1e-12), tensor))
        losses = [abs(a - b) / abs(a) for a, b in zip(one["losses"], other["losses"], strict=True)]
        lines.figure("P23", f"{name}: adapter, farthest apart, of the largest number", worst[0])
        lines.figure("P23", f"{name}: losses, farthest apart", max(losses))
        first = next((step for step, off in enumerate(losses) if off), None)
        lines.note("P23", f"{name}: " + (f"farthest in {worst[1]}; losses differ from step {first}" if worst[0] or max(losses)
                                         else "the same bytes"))
        return worst[0], max(losses)

    # P22.

    def beside(self):
        options = self.options
        adapter = os.path.join(options.out, "P22-adapter")

        def command(role):
            if role == "offline" and not options.stand_in:
                return self.trainer("--adapter", adapter)
            if self.virtual or options.stand_in:
                return [os.path.join(runs.HERE, "serve.py"), role, "--backend", "spin", "--seconds", str(options.seconds)]
            if not self.vllm:
                return [os.path.join(runs.HERE, "serve.py"), "online", "--backend", "torch", "--seconds", str(options.seconds)]
            return [os.path.join(runs.HERE, "vllm_engine.py"), "online", "--seconds", str(options.seconds),
                    "--shape", options.shape]

        compared = runs.Comparison("P22", command, options.seconds, options.out, READY)
        hinted = ("Tidegate with hints", ["online", "offline"], "best", None, True)
        if not self.vllm and not self.virtual and not options.stand_in:
            lines.note("P22", "no vLLM here: a PyTorch program answers in its place, which says nothing of its requests and "
                              "shares no memory")
            compared.all([*runs.ALONE, runs.UNCONTROLLED, runs.TIDEGATE])
            return
        chosen = [*runs.ALONE, runs.UNCONTROLLED, hinted, runs.shared(self.pool("P22"))]
        if options.runs:
            names = options.runs.replace("_", " ").split(",")
            chosen = [run for run in chosen if any(run[0].startswith(name) for name in names)]
        compared.all(chosen)
        # Some runs of all are for a call of little time, and the loader starts another engine.
        if self.virtual or options.runs or options.stand_in:
            return
        with tempfile.TemporaryDirectory(prefix="tidegate-model-") as folder:
            sys.path.insert(0, runs.HERE)
            import vllm_engine

            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as config:
                json.dump(vllm_engine.CONFIG, config)
            done = subprocess.run([sys.executable, "-c", LOADS, folder, adapter], cwd=runs.HERE, capture_output=True,
                                  text=True, timeout=READY, check=False)
        if done.returncode:
            raise RuntimeError(f"vLLM does not load the adapter: {done.stderr[-800:]}")
        lines.figure("P22", "tokens that vLLM answered by the adapter", int(done.stdout.split()[-1]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["cuda", "virtual"], default="cuda")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lost", type=int, default=20, help="blocks that the steps of P23 have to lose")
    parser.add_argument("--length", type=int, help="tokens of a sample")
    parser.add_argument("--blocks", type=int, help="of 2 MiB that P23 takes at a time")
    parser.add_argument("--limit", type=float, default=240, help="seconds for the steps of P23")
    parser.add_argument("--pool", help="memory to share, such as 72GiB")
    parser.add_argument("--only", default="P23,P22")
    parser.add_argument("--shape", choices=list(MEMORY), default="8b", help="of the model that is trained and served")
    parser.add_argument("--runs", help="of P22, as their names begin; _ may stand for a space")
    parser.add_argument("--stand-in", action="store_true", help="programs that spin in place of trainer and engine")
    parser.add_argument("--out", default=".")
    options = parser.parse_args()
    runs.end_politely()
    lines.machine(runs.HOME)
    if not os.environ.get("TIDEGATE_PLUGIN"):
        sys.exit("finetune_probe: TIDEGATE_PLUGIN names no folder with tidegate_engines")
    for name, ask in (("P23", Probe.exact), ("P22", Probe.beside)):
        if name in options.only.split(","):
            with lines.Probe(name):
                ask(Probe(options))


if __name__ == "__main__":
    main()
