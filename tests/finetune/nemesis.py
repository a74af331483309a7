"""`tidegate finetune`'s training on the virtual GPU against faults, judged by the bytes of its adapter.

    scripts/finetune nemesis [--schedules N] [--seed S] [--without CLAUSE] [--json FILE]

A schedule: an online program that takes memory and gives it back, and faults at random steps of the training: SIGSTOP
and kill -9 of the trainer, kill -9 of the agent or the online program. Whoever is killed is started again, with the
same arguments. The adapter has to have the bytes of an undisturbed run, may never be there in part, and a kill may cost
no more steps than ``SAVE_EVERY``. ``--without`` leaves out a clause of the machine (``robbed.ABLATIONS``), which has to
make adapters wrong. Exit codes: 0 all held, 1 something did not (its seed is printed), 2 nothing was tested.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "interposer/engines")]

STEPS, SAVE_EVERY = 24, 4
#: Seconds within which a training makes a step: one that waits for memory that never comes makes none.
DEADLINE_S = 300.0
FAULTS = ("stop", "kill", "agent", "online")


def trainer(clause: str, arguments: list[str]) -> int:
    """The training itself, in a process of its own: each step is told, and a clause may be left out."""
    import torch
    from tidegate_engines.finetune import cli, trainer

    torch.set_num_threads(1)
    cli.TELL_EVERY = 1
    if clause:
        import robbed

        trainer.Machine = getattr(robbed, clause)
    return cli.main(arguments)


class Training:
    """A trainer's process, and the steps that it says it has done."""

    def __init__(self, here: object, work: Path, out: Path, clause: str) -> None:
        asks = {
            "model": work / "model",
            "data": work / "data.jsonl",
            "out": out,
            "steps": STEPS,
            "save-every": SAVE_EVERY,
            "batch": 2,
            "lora": "r=4,dropout=0.1",
            "device": "virtual",
            "memory": 24,
            "window": 24,
        }
        command = [sys.executable, __file__, "--trainer", clause, *(f"--{k}={v}" for k, v in asks.items())]
        self.report = out.with_name(f"{out.name}.report")
        environment = {**here.environment("offline", "tune"), "TIDEGATE_FINETUNE_REPORT": str(self.report)}
        self.log = out.with_name(f"{out.name}.log")
        with self.log.open("a") as log:
            pipes = {"stdout": subprocess.PIPE, "stderr": log, "text": True}
            self.process = subprocess.Popen(command, env=environment, **pipes)
        self.step = self.begun = 0
        self.done = False
        self._said: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self._said.put(line)
        self._said.put(None)

    def until(self, step: int) -> bool:
        """Waits until a step is done; False where the process ended before."""
        while self.step < step:
            line = self._said.get(timeout=DEADLINE_S)
            if line is None:
                return False
            if line.startswith("goes on from step"):
                self.step = self.begun = int(line.split()[4])
            elif line.startswith("step "):
                self.step = int(line.split()[1].split("/")[0])
        return True

    def end(self) -> int:
        """Its exit code; 0 for one whose adapter was there when it was killed."""
        self.until(STEPS + 1)
        if self.done:
            return 0
        return self.process.wait(DEADLINE_S)


@dataclass
class Found:
    """What all schedules came to."""

    schedules: int = 0
    violations: int = 0
    wrong_adapters: int = 0
    torn: int = 0
    lost_steps: int = 0
    units_redone: int = 0
    reclaims: int = 0
    faults: int = 0


def whole(out: Path) -> bool:
    """Whether an adapter is not there, or all of it is."""
    from safetensors import safe_open

    if not out.exists():
        return True
    try:
        json.loads((out / "adapter_config.json").read_text())
        with safe_open(out / "adapter_model.safetensors", "pt") as file:
            return bool(list(file.keys()))
    except Exception:
        return False


class Schedule:
    """One of them."""

    def __init__(self, seed: int, work: Path, clause: str, found: Found) -> None:
        self.rng, self.seed = random.Random(seed), seed
        self.work, self.out = work, work / f"out-{seed}"
        self.clause, self.found = clause, found
        self.wrong: list[str] = []

    def run(self, expected: bytes) -> list[str]:
        """What was wrong."""
        import node

        faults = [self.rng.choice(FAULTS) for _ in range(self.rng.randint(1, 3))]
        with node.Node() as here:
            online = here.online(self.seed)
            online.start()
            training = Training(here, self.work, self.out, self.clause)
            for fault in faults:
                if not training.until(training.step + self.rng.randint(1, STEPS // 3)):
                    break
                self.found.faults += 1
                training, online = self.fault(fault, here, training, online)
            code = training.end()
            online.stop()
        self.judge(code, training, expected)
        return self.wrong

    def fault(self, fault: str, here: object, training: Training, online: object) -> tuple:
        """Does it, and starts again who died of it."""
        time.sleep(self.rng.uniform(0.0, 0.3))
        if fault == "stop":
            training.process.send_signal(signal.SIGSTOP)
            time.sleep(self.rng.uniform(0.05, 0.8))
            training.process.send_signal(signal.SIGCONT)
        elif fault == "agent":
            here.agent.kill()
            here.agent.wait()
            time.sleep(self.rng.uniform(0.0, 1.5))
            here.start_agent()
        elif fault == "online":
            online.kill()
            online = here.online(self.rng.randrange(1 << 30))
            online.start()
        else:
            training.process.kill()
            training.until(STEPS + 1)
            done = training.step
            self.check_whole()
            if self.out.exists():
                # It was killed after it was done: nobody starts it again.
                training.done = True
                return training, online
            training = Training(here, self.work, self.out, self.clause)
            if training.until(1) and done < STEPS:
                # Its first line is where it goes on, or that it did a first step.
                lost = done - training.begun
                self.found.lost_steps += max(lost, 0)
                if lost > SAVE_EVERY:
                    self.wrong.append(f"a kill at step {done} went on from {training.begun}")
        return training, online

    def check_whole(self) -> None:
        if not whole(self.out):
            self.found.torn += 1
            self.wrong.append("an adapter is there in part")

    def judge(self, code: int, training: Training, expected: bytes) -> None:
        self.check_whole()
        file = self.out / "adapter_model.safetensors"
        if code != 0 or not file.exists() or file.read_bytes() != expected:
            self.found.wrong_adapters += 1
            said = training.log.read_text()[-300:] if code else "other bytes than undisturbed"
            self.wrong.append(f"exit code {code}: {said}")
        if training.report.exists():
            report = json.loads(training.report.read_text())
            self.found.units_redone += report["units_redone"]
            self.found.reclaims += report["reclaims"]


def main() -> int:
    if sys.argv[1:2] == ["--trainer"]:
        return trainer(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--schedules", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without", default="", metavar="CLAUSE")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()

    import node
    import tiny

    found = Found()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        os.environ["HF_HOME"] = str(work / "home")
        tiny.model(work / "model")
        tiny.data(work / "data.jsonl")
        with node.Node() as here:
            calm = Training(here, work, work / "calm", "")
            if code := calm.end():
                print(f"nemesis: the undisturbed run failed ({code}): {calm.log.read_text()[-2000:]}", file=sys.stderr)
                return 2
        expected = (work / "calm" / "adapter_model.safetensors").read_bytes()
        for seed in range(args.seed, args.seed + args.schedules):
            wrong = Schedule(seed, work, args.without, found).run(expected)
            found.schedules += 1
            found.violations += len(wrong)
            print(f"seed {seed}: {'; '.join(wrong) or 'held'}  {json.dumps(asdict(found))}", flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(asdict(found)) + "\n")
    if not found.reclaims and not found.violations:
        print("nemesis: nothing was ever taken from a trainer", file=sys.stderr)
        return 2
    return 1 if found.violations else 0


if __name__ == "__main__":
    sys.exit(main())
