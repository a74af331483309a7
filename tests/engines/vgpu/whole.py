"""Whole vLLM engines in each situation that a scheduler and its workers may find themselves in: `scripts/engines --whole`.

    whole.py --version VERSION --versions VERSION,... --gpu DIR --logs DIR --online PROGRAM --json FILE
             [--full] [--only PATTERN,...] [--seed N]

A *start* is a version and one value of each axis below but the last; each start answers every kind of requests, and each of
these is a case, `EXECUTOR/RANKS/ROLE/AGENT/MEMORY/REQUESTS`. Cases that make no sense are left out (`why_not`). By default
so many starts are run that every two values that go together are in one of them, all versions together; with --full all.
--only has those whose name matches one of the patterns, of all. The seed decides on the order of the kinds, and on when an
agent dies.

Judged is:
  wrong            an answer that is not what its tokens make, by the words that the engine's pages really held
  unanswered       requests without answers after 60 s
  silent_refusals  an engine that shares nothing, or ends, without a line in its log that says why; or says that it shares.
                   Whether memory is shared is what the device's history says of an online engine's (it has less than its
                   cache takes), and what the agent knows of an offline one's. Without a pool it cannot be told apart
The agent kills nothing here: an engine that ends by itself has refused, and its log has to name the reason.
"""

import argparse
import contextlib
import fnmatch
import itertools
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path[:0] = [os.environ["TIDEGATE_ENGINES"]]
import node  # noqa: E402
import runs  # noqa: E402
import two  # noqa: E402

HERE = Path(__file__).parent
AXES = {
    "executor": ("uni", "mp", "ray"),
    "ranks": ("1", "2"),
    "role": ("online", "offline"),
    "agent": ("there", "none", "dies", "late", "norole"),
    "memory": ("pool", "nopool", "full", "again", "second"),
}
KINDS = ("short", "long", "prefix")
#: MiB of a GPU, of an engine's cache on it, and what a filler leaves of it.
DEVICE, CACHE, LEFT = 1024, 192, 24
#: MiB to share: an offline engine has to give some of it to an online program, online ones have what they need.
POOL = {"online": 640, "offline": 224}
#: Seconds for an engine to get ready, for answers, and that a GPU is without an agent where an offline engine waits for one.
READY, ANSWER, AWAY = 300, 60, 3
#: Lines of an engine's log that say why it shares nothing, or ends.
REASON = re.compile(r"Tidegate (takes no memory|shares no KV memory|cannot share)|KV cache has no memory|CUDA error 2\b")
SHARES = "Tidegate shares this engine's KV memory"


def why_not(case):
    """Why a case makes no sense; None: it is run."""
    executor, ranks, role, agent, memory = case[-5:]
    if executor == "uni" and ranks == "2":
        return "vLLM's executor of one process has one rank"
    if role == "offline" and agent in ("none", "norole"):
        return "offline work waits for an agent that makes it offline, and there is none"
    if agent == "none" and memory == "nopool":
        return "without an agent nobody has a pool"
    return None


def pairwise(axes, seed):
    """So many of all that make sense that every two values which go together are in one of them."""
    everything = [case for case in itertools.product(*axes) if why_not(case) is None]
    random.Random(seed).shuffle(everything)

    def pairs(case):
        return set(itertools.combinations(enumerate(case), 2))

    left = set().union(*map(pairs, everything))
    chosen = []
    while left:
        best = max(everything, key=lambda case: len(pairs(case) & left))
        chosen.append(best)
        left -= pairs(best)
    return chosen


class Filler:
    """Has all of the GPUs' memory but LEFT MiB, until it ends. It is nobody of Tidegate's."""

    PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
for gpu in (0, 1):
    context, at = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), gpu) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(free.value - (int(sys.argv[1]) << 20))) == 0
print("full", flush=True)
sys.stdin.readline()
"""

    def __init__(self, here):
        self.process = subprocess.Popen([sys.executable, "-c", self.PROGRAM, str(LEFT)], env=here.environment(),
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stdout.readline() == "full\n"


class Online(threading.Thread):
    """A running apps/kv_online.c that wants memory at random, until it is told to end."""

    def __init__(self, here, program, draw):
        super().__init__(daemon=True)
        self.asks, self.draw, self.over = two.Online(here, program), draw, threading.Event()
        self.start()

    def run(self):
        with contextlib.suppress(BrokenPipeError, IndexError, ValueError):
            while not self.over.is_set():
                want, held, end = self.draw.randrange(1, two.BLOCKS + 1), 0, time.monotonic() + 1
                while held < want and time.monotonic() < end and not self.over.wait(0.01):
                    held += int(self.asks.ask(f"reserve {want - held}")[0])
                self.over.wait(self.draw.uniform(0, 0.3))
                self.asks.ask(f"release {held}")
                self.over.wait(self.draw.uniform(0.1, 0.6))

    def end(self):
        self.over.set()
        self.join(10)
        node.stop(self.asks.process)


class Here(node.Node):
    """A node whose agent comes when it is told to."""

    def __init__(self, role, agent, memory):
        settings = 'headroom_min = "4MiB"\nheadroom_max = "16MiB"\nrestore_interval = "100ms"\n'
        shares = memory != "nopool"
        super().__init__(runs.HOME, "best", f"{POOL[role]}MiB" if shares else None, True, settings if shares else "")
        self.trusting = agent != "norole"

    def __enter__(self):
        self.configure()
        return self

    def configure(self):
        super().configure()
        if not self.trusting:
            config = Path(self.dir.name) / "agent.toml"
            config.write_text(config.read_text().replace('["self"]', "[]"))

    def kill(self):
        self.agent.kill()
        self.agent.wait()


class Start:
    """One start: its engines, and what became of each kind of requests."""

    def __init__(self, options, case, kinds):
        self.options, self.case = options, case
        self.executor, self.ranks, self.role, self.agent, self.memory = case
        self.draw = random.Random(f"{options.seed} {'/'.join(case)}")
        self.kinds = self.draw.sample(kinds, len(kinds))
        #: The kind before which, or in the middle of which, the agent dies; or between two engines of a process.
        moments = ("before", "amid", "between") if self.memory == "again" else ("before", "amid")
        self.dies = (self.draw.choice(self.kinds), self.draw.choice(moments)) if self.agent == "dies" else None
        #: By kind: what it was, as a set of words.
        self.found = {}
        self.engines = []

    def run(self):
        """Until each kind was asked for; after requests without answers the rest has a new engine."""
        while len(self.found) < len(self.kinds):
            self.once([kind for kind in self.kinds if kind not in self.found])
        return self.found

    def once(self, kinds):
        self.engines, self.online, self.filler = [], None, None
        with Here(self.role, self.agent, self.memory) as here:
            self.here = here
            try:
                self.begin()
                self.ask_all(kinds)
            finally:
                for engine in self.engines:
                    node.stop(engine.process)
                if self.online:
                    self.online.end()
                self.unfill()

    def unfill(self):
        if self.filler:
            node.stop(self.filler.process)
            self.filler = None

    def engine(self):
        name = "-".join((self.options.version, *self.case))
        log = open(Path(self.options.logs) / f"{name}-{len(self.engines)}.log", "w+", encoding="utf-8")
        more = {"TIDEGATE_VGPU_WORKER": "paged", "TIDEGATE_JOB": f"whole-{os.getpid()}", "OMP_NUM_THREADS": "1"}
        if self.memory == "again":
            more["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        command = [str(HERE / "whole_engine.py"), self.executor, self.ranks]
        engine = runs.Program(self.here, lambda role: command, self.role, True, log, **more)
        #: Why it answers nothing, and where in its log what it says of itself now begins.
        engine.refused, engine.since = None, 0
        self.engines.append(engine)
        return engine

    def begin(self):
        """Agent, filler and engines, in the order that the case says."""
        here = self.here
        if self.agent in ("there", "dies", "norole"):
            here.start()
        if self.memory == "full":
            self.filler = Filler(here)
        if self.role == "offline" and self.memory != "nopool" and self.agent != "late":
            self.online = Online(here, self.options.online, self.draw)
        first = self.engine()
        if self.agent == "late" and self.role == "offline":
            time.sleep(AWAY)  # it waits for its agent
            here.start()
        self.await_ready(first)
        if self.agent == "late" and self.role == "online":
            here.start()
        if self.memory == "again" and first.refused is None:
            if self.dies and self.dies[1] == "between":
                self.lose_agent()
            first.since = Path(first.log.name).stat().st_size
            first.say("again")
            self.await_ready(first)
        if self.memory == "second":
            self.await_ready(self.engine())
        self.unfill()

    def await_ready(self, engine):
        try:
            engine.hear("being ready", READY)
        except RuntimeError as error:
            engine.refused = "ended" if "ended without" in str(error) else "unready"
            return
        engine.shares = self.shares(engine)

    def shares(self, engine):
        """Whether memory of an engine that is ready is shared: by the device's history, or by what the agent knows."""
        if self.role == "online":
            return two.History(self.options.gpu).of(engine.process.pid) < int(self.ranks) * CACHE
        status = self.here.status() or {}
        return any((job.get("memory") or {}).get("stripes") for job in status.get("jobs", []))

    def silent(self, engine):
        """Whether the engine's log does not say what it should of what is shared."""
        # By its name: the engine writes where the file that it shares with us stands.
        log = Path(engine.log.name).read_bytes()[engine.since:].decode(errors="replace")
        refuses = REASON.search(log) is not None
        if engine.refused == "ended":
            return not refuses
        if self.memory == "nopool":
            return not (refuses or SHARES in log)  # an engine that shares has all of its memory, too
        return engine.shares != (SHARES in log) or (not engine.shares and not refuses)

    def ask_all(self, kinds):
        living = [engine for engine in self.engines if engine.refused is None]
        unready = [engine for engine in self.engines if engine.refused == "unready"]
        silent = [engine for engine in self.engines if engine.refused != "unready" and self.silent(engine)]
        for kind in kinds:
            found = self.found[kind] = {"silent_refusals"} if silent else set()
            found |= {"unanswered"} if unready else set()
            if not living:
                found.add("refused")
                continue
            if self.dies == (kind, "before"):
                self.lose_agent()
            for engine in living:
                engine.say(kind)
            if self.dies == (kind, "amid"):
                time.sleep(self.draw.uniform(0, 1))
                self.lose_agent()
            for engine in living:
                found |= self.judge(engine)
            if found & {"unanswered", "ended"}:
                return

    def lose_agent(self):
        self.here.kill()
        if self.role == "offline":
            time.sleep(AWAY)  # it waits for the next one
            self.here.start()

    def judge(self, engine):
        try:
            said = json.loads(engine.hear("answers", ANSWER))
        except RuntimeError:
            return {"unanswered", "ended"} if engine.process.poll() is not None else {"unanswered"}
        return {"wrong"} if said["wrong"] else set()


def chosen(options):
    """Starts of this version, with the kinds of requests of each."""
    axes = list(AXES.values())
    if options.only:
        patterns = options.only.split(",")
        every = [case for case in itertools.product(*axes) if why_not(case) is None]
        of = {case: [k for k in KINDS if any(fnmatch.fnmatch("/".join((*case, k)), p) for p in patterns)] for case in every}
        return {case: kinds for case, kinds in of.items() if kinds}
    if options.full:
        return {case: list(KINDS) for case in itertools.product(*axes) if why_not(case) is None}
    versions = options.versions.split(",")
    return {case[1:]: list(KINDS) for case in pairwise([versions, *axes], options.seed) if case[0] == options.version}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("version", "versions", "gpu", "logs", "online", "json"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    runs.end_politely()
    starts = chosen(options)
    left_out = sorted({why_not(case) for case in itertools.product(*AXES.values())} - {None})
    two.say(f"vLLM {options.version}: {len(starts)} starts; left out: {'; '.join(left_out)}")
    results = {"cases": 0, "wrong": 0, "unanswered": 0, "silent_refusals": 0, "refused": 0, "failing": [], "run": []}
    with contextlib.suppress(FileNotFoundError):
        results = json.loads(Path(options.json).read_text())
    for case, kinds in starts.items():
        begun = time.monotonic()
        for kind, found in Start(options, case, kinds).run().items():
            name = "/".join((*case, kind))
            results["cases"] += 1
            results["run"].append(f"{options.version}/{name}")
            for word in ("wrong", "unanswered", "silent_refusals", "refused"):
                results[word] += word in found
            bad = found - {"refused"}
            two.say(f"{'FAIL' if bad else 'ok  '} {options.version} {name} {' '.join(sorted(found))}")
            if bad:
                again = f"scripts/engines --whole {options.version} --only {name} --seed {options.seed}"
                results["failing"].append(again)
                two.say(f"     {again}")
        two.say(f"     {time.monotonic() - begun:.0f} s")
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    return bool(results["failing"])


if __name__ == "__main__":
    sys.exit(main())
