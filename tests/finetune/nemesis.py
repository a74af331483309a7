"""`tidegate finetune`'s training on the virtual GPU against faults, judged by the bytes of its adapter.

    scripts/nemesis finetune [--mode real] [--schedules N] [--seed S] [--script FILE] [--json FILE]
                             [--without CLAUSE | --ablations]

A schedule is a training beside an online program that takes memory and gives it back, and faults at random moments
(``faults.py``; --script FILE plays those of a file instead): bursts, SIGSTOP and kill -9 of trainer, agent and online
program, agents that come back late. Whoever is killed is started again, with the same arguments.

What has to hold: the adapter has the bytes of an undisturbed run; it is never there in part under its own name, which
is looked at all the time; a kill costs no more steps than ``SAVE_EVERY``; a reclaim costs no more units than a layer
has windows, and one, on average; online reads back what it wrote; and by the device's own history nothing is unmapped
beside an enabled channel of the trainer, and nothing faults.

--without leaves out a clause, which has to break something; --ablations leaves out each, until it is found or
--schedules are over. Exit codes: 0 all held (--ablations: all were found), 1 not (seed and script are
printed), 2 no verdict.
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
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "interposer/engines")]

import faults
import node
from faults import Fault
from forge import SAVE_IN_PLACE

STEPS, SAVE_EVERY, WINDOW = 8, 2, 16
#: Seconds within which a training makes a step: one that waits for memory that never comes makes none.
DEADLINE_S = 300.0
#: Schedules of one node: then it is judged, and another is made.
NODE_LASTS = 40
#: Every so many trainings a process of its own, that imports all it needs, and not a fork of one that has.
FRESH = 20
FORGE = Path(__file__).parent / "forge.py"


class Training:
    """A trainer's process, and the steps that it says it has done."""

    def __init__(self, stage: Stage, out: Path, clause: str, **other: object) -> None:
        """``other``: arguments that have another value; ``units``, a file for what is there before each unit;
        ``fresh``, whether it is a process of its own, that imports all it needs."""
        units, fresh = other.pop("units", ""), other.pop("fresh", None)
        asks = {
            "model": stage.work / "model",
            "data": stage.work / "data.jsonl",
            "out": out,
            "steps": STEPS,
            "save-every": SAVE_EVERY,
            "batch": 2,
            "lora": "r=4,dropout=0.1",
            "device": "virtual",
            "memory": 24,
            "window": WINDOW,
            **other,
        }
        self.steps = int(asks["steps"])
        self.log = out.with_name(f"{out.name}.log")
        pipe = out.with_name(f"{out.name}.said")
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)
        asked = {
            "arguments": [f"--{name}={value}" for name, value in asks.items()],
            "clause": clause,
            "units": str(units),
            "report": str(out.with_name(f"{out.name}.report")),
            "out": str(pipe),
            "log": str(self.log),
        }
        self.pid = stage.fork(asked, fresh)
        self.step = self.begun = 0
        #: As it said with its last step.
        self.units_redone = self.reclaims = 0
        #: As it said them, of each step.
        self.losses: list[str] = []
        self.code: int | None = None
        self._ended = False
        self._said: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, args=(pipe,), daemon=True).start()

    def _read(self, pipe: Path) -> None:
        # Ends with the process, which alone has it open for writing.
        with pipe.open() as lines:
            for line in lines:
                self._said.put(line)
        self._said.put(None)

    def until(self, step: int) -> bool:
        """Waits until a step is done; False where the process ended before."""
        while self.step < step and not self._ended:
            try:
                line = self._said.get(timeout=DEADLINE_S)
            except queue.Empty:
                self.signal(signal.SIGUSR1)
                time.sleep(1.0)
                raise Stands(f"the training stands still at step {self.step}: {self.last_words()}") from None
            if line is None:
                self._ended = True
                return False
            words = line.split()
            if line.startswith("goes on from step"):
                self.step = self.begun = int(words[4])
            elif line.startswith("step "):
                self.step = int(words[1].split("/")[0])
                self.units_redone, self.reclaims = int(words[6]), int(words[12])
                self.losses.append(words[3])
            elif line.startswith("exit "):
                self.code = int(words[1])
        return self.step >= step

    def end(self) -> int | None:
        """Its exit code; None where it was killed."""
        self.until(self.steps + 1)
        return self.code

    def signal(self, number: int) -> None:
        """A signal to it, if it is there."""
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            pass

    def last_words(self) -> str:
        return self.log.read_text()[-1500:] if self.log.exists() else "it said nothing"


class Stands(RuntimeError):
    """Nothing goes on."""


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
    #: By kind.
    by_kind: dict[str, int] = field(default_factory=dict)
    unmaps_beside_a_channel: int = 0
    bursts: int = 0
    seconds: float = 0.0


#: What --json has of it.
FIGURES = (
    "schedules",
    "violations",
    "wrong_adapters",
    "torn",
    "lost_steps",
    "units_redone",
    "reclaims",
    "faults",
)


class Watch(threading.Thread):
    """Looks at an adapter's name all the time: it is not there, or all of it is."""

    def __init__(self, out: Path, expected: bytes) -> None:
        super().__init__(daemon=True)
        self._out, self._expected = out, expected
        self._over = threading.Event()
        self.torn: str | None = None
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.001) and self.torn is None:
            self.look()

    def look(self) -> None:
        """What is there now."""
        if not self._out.exists():
            return
        try:
            json.loads((self._out / "adapter_config.json").read_text())
            size = (self._out / "adapter_model.safetensors").stat().st_size
        except (OSError, ValueError) as error:
            self.torn = f"an adapter is there in part: {error}"
            return
        if size != len(self._expected):
            self.torn = f"an adapter is there in part: {size} of {len(self._expected)} bytes"

    def stop(self) -> str | None:
        self._over.set()
        self.join()
        self.look()
        return self.torn


class Stage:
    """A node, and what makes its trainers."""

    def __init__(self, work: Path, config: str = node.CONFIG, busy: bool = True) -> None:
        """``busy``: whether online takes and gives memory by itself."""
        self.work = work
        self.here = node.Node(config).__enter__()
        # A job's log is shared memory under its name, and this user's other trainers may have theirs.
        self.environment = self.here.environment("offline", f"nemesis-{os.getpid()}")
        self.pids: list[int] = []
        self._made = 0
        command = [sys.executable, str(FORGE)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._forge = subprocess.Popen(command, env=self.environment, **pipes)
        if self._forge.stdout.readline().strip() != "ready":
            raise RuntimeError("the forge does not come up")
        self._own: list[subprocess.Popen] = []
        self.online = self.here.online(1)
        if busy:
            self.online.start()

    def fork(self, asked: dict, fresh: bool | None = None) -> int:
        """A training's process."""
        self._made += 1
        if self._made % FRESH == 1 if fresh is None else fresh:
            command = [sys.executable, str(FORGE), "--once", json.dumps(asked)]
            self._own.append(subprocess.Popen(command, env=self.environment))
            pid = self._own[-1].pid
        else:
            self._forge.stdin.write(json.dumps(asked) + "\n")
            self._forge.stdin.flush()
            pid = int(self._forge.stdout.readline())
        self.pids.append(pid)
        return pid

    def judge(self) -> dict:
        """What the device's history says of all trainers."""
        command = [str(node.BUILT / "nemesis"), "history", str(self.here.folder / "gpu")]
        command += [f"--pids={','.join(map(str, self.pids))}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def close(self) -> None:
        self._forge.stdin.close()
        for process in (self._forge, *self._own):
            process.kill()
            process.wait()
        self.here.__exit__()


class Schedule:
    """One of them."""

    def __init__(self, seed: int, stage: Stage, clause: str, found: Found, script: list[Fault] | None) -> None:
        rng = random.Random(seed)
        self.script = faults.draw(rng, STEPS) if script is None else script
        self.rng, self.stage, self.clause, self.found = rng, stage, clause, found
        self.out = stage.work / f"out-{seed}-{clause}"
        self.wrong: list[str] = []

    def run(self, expected: bytes) -> list[str]:
        """What was wrong."""
        watch = Watch(self.out, expected)
        filled = self.stage.online.filled
        training = Training(self.stage, self.out, self.clause)
        try:
            for fault in self.script:
                if not training.until(fault.step):
                    break
                time.sleep(fault.after_ms / 1e3)
                self.found.faults += 1
                self.found.by_kind[fault.kind] = self.found.by_kind.get(fault.kind, 0) + 1
                training = self.suffer(fault, training)
            code = training.end()
        except Stands as error:
            training.signal(signal.SIGKILL)
            self.wrong.append(str(error))
            code = None
        self.count(training)
        if (torn := watch.stop()) is not None:
            self.found.torn += 1
            self.wrong.append(torn)
        file = self.out / "adapter_model.safetensors"
        if not file.exists() or file.read_bytes() != expected:
            self.found.wrong_adapters += 1
            there = "has other bytes than undisturbed" if file.exists() else "is not there"
            self.wrong.append(f"the adapter {there}; exit code {code}: {training.last_words()}")
        if (error := self.stage.online.error) is not None:
            self.wrong.append(f"online: {error}")
        self.found.bursts += max(self.stage.online.filled - filled, 0)
        return self.wrong

    def count(self, training: Training) -> None:
        self.found.units_redone += training.units_redone
        self.found.reclaims += training.reclaims

    def suffer(self, fault: Fault, training: Training) -> Training:
        """Does it, and starts again who died of it."""
        here, lasts = self.stage.here, fault.ms / 1e3
        if fault.kind == "kill":
            return self.kill(training)
        if fault.kind == "stop":
            training.signal(signal.SIGSTOP)
            time.sleep(lasts)
            training.signal(signal.SIGCONT)
        elif fault.kind == "agent":
            here.agent.kill()
            here.agent.wait()
            time.sleep(lasts)
            here.start_agent()
        elif fault.kind == "restart":
            here.agent.terminate()
            here.agent.wait()
            here.start_agent()
        elif fault.kind == "freeze":
            here.agent.send_signal(signal.SIGSTOP)
            time.sleep(lasts)
            here.agent.send_signal(signal.SIGCONT)
        elif fault.kind == "pause":
            self.stage.online.signal(signal.SIGSTOP)
            time.sleep(lasts)
            self.stage.online.signal(signal.SIGCONT)
        elif fault.kind == "burst":
            self.stage.online.want(fault.blocks, lasts)
        else:
            self.stage.online.kill()
            self.stage.online = here.online(self.rng.randrange(1 << 30))
            self.stage.online.start()
        return training

    def kill(self, training: Training) -> Training:
        training.signal(signal.SIGKILL)
        training.until(STEPS + 1)
        self.count(training)
        done = training.step
        if self.out.exists():
            # It was done when it was killed: nobody starts it again.
            training.units_redone = training.reclaims = 0
            return training
        again = Training(self.stage, self.out, self.clause)
        # Its first line is where it goes on, or that it did a first step.
        if again.until(1):
            lost = max(done - again.begun, 0)
            self.found.lost_steps += lost
            if lost > SAVE_EVERY:
                self.wrong.append(f"killed at step {done}, it went on from {again.begun}")
        return again


class Nemesis:
    """All schedules."""

    def __init__(self, work: Path, script: list[Fault] | None) -> None:
        self.work, self.script = work, script
        self.windows = 0
        self.expected = b""

    def undisturbed(self) -> str | None:
        """A run that nothing happens to; what went wrong with it."""
        import tiny
        from tidegate_engines.finetune import asked
        from tidegate_engines.finetune.cli import tokens
        from transformers import AutoTokenizer

        tiny.model(self.work / "model")
        data = tiny.data(self.work / "data.jsonl")
        tokenizer = AutoTokenizer.from_pretrained(self.work / "model")
        samples = tokens(asked.data(data), tokenizer, data, 1024, False)
        self.windows = -(-max(map(len, samples)) // WINDOW)
        stage = Stage(self.work)
        stage.online.stop()
        try:
            calm = Training(stage, self.work / "calm", "", fresh=False)
            if code := calm.end():
                return f"the undisturbed run failed ({code}): {calm.last_words()}"
        finally:
            stage.close()
        self.expected = (self.work / "calm" / "adapter_model.safetensors").read_bytes()
        return None

    def run(self, seeds: range, clause: str, until_found: bool = False) -> Found:
        """So many schedules; with ``until_found`` no more once something was wrong."""
        found, begun = Found(), time.monotonic()
        at = seeds.start
        while at < seeds.stop and not (until_found and found.violations):
            stage = Stage(self.work)
            try:
                at = self._on(stage, range(at, min(at + NODE_LASTS, seeds.stop)), clause, found, until_found)
            finally:
                stage.close()
            found.seconds = round(time.monotonic() - begun, 1)
        return found

    def _on(self, stage: Stage, seeds: range, clause: str, found: Found, until_found: bool) -> int:
        """Those of one node; the seed that is next."""
        for seed in seeds:
            schedule = Schedule(seed, stage, clause, found, self.script)
            wrong = schedule.run(self.expected)
            found.schedules += 1
            last = wrong or seed + 1 == seeds.stop
            if last:
                history = stage.judge()
                found.unmaps_beside_a_channel += len(history["unmaps"])
                kinds = {"unmaps": "a mapping changed beside an enabled channel", "faults": "the device faulted"}
                wrong += [f"{what}: {record}" for kind, what in kinds.items() for record in history[kind]]
                if not history["moved"] and not clause:
                    wrong.append("the device's history has no memory that was taken from a trainer")
            self._tell(seed, schedule, wrong, found)
            if wrong:
                # What is on the node now is nobody's doing.
                return seed + 1
        return seeds.stop

    def _tell(self, seed: int, schedule: Schedule, wrong: list[str], found: Found) -> None:
        found.violations += len(wrong)
        if wrong:
            print(f"seed {seed}: {'; '.join(wrong)}")
            print(f"replay: scripts/nemesis finetune --schedules 1 --seed {seed}, or --script with")
            print("".join(f"    {fault}\n" for fault in schedule.script), end="", flush=True)
        elif found.schedules % 10 == 0:
            print(f"{found.schedules} schedules, last seed {seed}: {json.dumps(asdict(found))}", flush=True)

    def judge_cost(self, found: Found) -> None:
        """Whether reclaims cost more than they may: the windows of a layer, and one unit."""
        most = self.windows + 1
        if found.units_redone > found.reclaims * most:
            found.violations += 1
            cost = found.units_redone / max(found.reclaims, 1)
            print(f"a reclaim costs {cost:.2f} units on average; {most} is the most")


def clauses() -> list[str]:
    """What can be left out."""
    import robbed

    return [*(kind.__name__ for kind in robbed.ABLATIONS), SAVE_IN_PLACE]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/nemesis finetune", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mode", choices=["real"], default="real", help="what runs them: real processes")
    parser.add_argument("--schedules", type=int, default=10, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of the first schedule; the next has the next")
    parser.add_argument("--script", type=Path, metavar="FILE", help="faults to play in each schedule")
    parser.add_argument("--without", default="", metavar="CLAUSE", help="a clause to leave out; `list` prints them")
    parser.add_argument("--ablations", action="store_true", help="leave out each clause, until that is found")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    if args.without == "list":
        print("\n".join(clauses()))
        return 0
    if args.schedules < 1 or args.seed < 0:
        parser.error("--schedules takes a whole number from 1, --seed one from 0")
    if args.without and args.without not in clauses():
        parser.error(f"--without: no clause is called '{args.without}'; one of {', '.join(clauses())}")
    try:
        script = faults.read(args.script, STEPS) if args.script else None
    except faults.BadScript as error:
        parser.error(str(error))

    # Ended from outside, it takes its node along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    with tempfile.TemporaryDirectory(prefix="tidegate-nemesis-") as folder:
        os.environ["HF_HOME"] = folder + "/home"
        runs = Nemesis(Path(folder), script)
        if (wrong := runs.undisturbed()) is not None:
            print(f"nemesis: {wrong}", file=sys.stderr)
            return 2
        seeds = range(args.seed, args.seed + args.schedules)
        if args.ablations:
            return ablations(runs, seeds, args.json)
        found = runs.run(seeds, args.without)
        runs.judge_cost(found)
    said = asdict(found)
    print(json.dumps({**said, "windows": runs.windows, "seed": args.seed}))
    if args.json:
        args.json.write_text(json.dumps({name: said[name] for name in FIGURES}, indent=1) + "\n")
    if not found.violations and found.reclaims < found.schedules:
        print("nemesis: too little happened: fewer reclaims than schedules", file=sys.stderr)
        return 2
    return 1 if found.violations else 0


def ablations(runs: Nemesis, seeds: range, into: Path | None) -> int:
    """Each clause left out, until that is found."""
    rows = {}
    for clause in clauses():
        found = runs.run(seeds, clause, until_found=True)
        rows[clause] = {"found": found.violations > 0, "schedules": found.schedules}
        said = f"found in schedule {found.schedules}" if found.violations else "NOT FOUND"
        print(f"without a clause: {clause:<24} {said}", flush=True)
    if into:
        into.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["found"] for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
