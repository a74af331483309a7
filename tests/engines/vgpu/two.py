"""Two offline engines share one GPU's KV memory by weight, under 200 reclaims: `scripts/engines --shares`.

    two.py ONLINE GPU_DIR LOG_DIR WEIGHT WEIGHT

`ONLINE` is apps/kv_online.c, compiled. The first engine starts alone and takes what it is shown; the second comes to a
GPU whose physical memory is full. What an engine has is the sum of what the device's history says was allocated by the
processes of its session and not freed; what it deserves is worked out here, from the pool, the weights and the cache
that it was born with; what it made wrong and forgot its own program says, of vLLM's scheduler. Only which reclaims
there were, and what the agent took each to cost, is read from the agent's events.
"""

import json
import os
import random
import re
import struct
import subprocess
import sys
import time
from pathlib import Path

sys.path[:0] = [os.environ["TIDEGATE_ENGINES"]]
import node  # noqa: E402
import runs  # noqa: E402

HERE = Path(__file__).parent
MIB = 1 << 20
#: What both engines share, and the least headroom, of which no engine is shown anything.
POOL, HEADROOM = 656, 4
RECORD = struct.Struct("<QIIIIIIQQ")
MEMORY_UP, MEMORY_DOWN = 18, 19
RECLAIMS = 200
#: Tokens of what the agent takes at once at most: 256 MiB of 16 tokens each.
BATCH = 256 * 16
#: MiB that an engine has beside its cache: paged.py's table of words, and the page behind what is taken.
BESIDE = 10
#: How far from what it deserves an engine may be, and after how many seconds.
OFF, SETTLES = 0.05, 30
#: Blocks of 2 MiB that apps/kv_online.c can have.
BLOCKS = 32
#: Seconds for an engine to get ready, and to finish the requests that it has.
READY, FINISH = 300, 300
#: MiB of KV that a request has on average: 100 to 200 tokens and half of 48, 16 of which are a block of 1 MiB.
REQUEST = 11
#: Of what an engine deserves, what its requests use.
FILL = 0.9


def sessions():
    """Processes by the session that they are of."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            found.setdefault(int(fields[3]), set()).add(int(entry.name))
    return found


class History:
    """What processes have allocated, by the device's own testimony."""

    def __init__(self, folder):
        self.file = open(Path(folder) / "history.bin", "rb")
        self.rest = b""
        self.has = {}

    def read(self):
        text = self.rest + self.file.read()
        whole = len(text) // RECORD.size * RECORD.size
        self.rest = text[whole:]
        for _, kind, _, pid, _, _, _, _, size in RECORD.iter_unpack(text[:whole]):
            if kind in (MEMORY_UP, MEMORY_DOWN):
                self.has[pid] = self.has.get(pid, 0) + (size if kind == MEMORY_UP else -size)

    def of(self, session):
        """MiB that the processes of a session have."""
        self.read()
        return sum(self.has.get(pid, 0) for pid in sessions().get(session, ())) / MIB


class Engine(runs.Program):
    def __init__(self, here, folder, name, weight, seed):
        self.name, self.weight = name, weight
        log = open(Path(folder) / f"{name}.log", "w+", encoding="utf-8")
        super().__init__(here, lambda role: [str(HERE / "sharing.py"), role, "--seed", str(seed)], "offline", True, log,
                         TIDEGATE_JOB=name, TIDEGATE_WEIGHT=str(weight), TIDEGATE_VGPU_WORKER="paged")


    def forgotten(self):
        """Tokens that its scheduler has forgotten so far, and why."""
        self.say("forgotten")
        return json.loads(self.hear("what it forgot", FINISH))


class Online:
    """A running apps/kv_online.c."""

    def __init__(self, here, program):
        self.process = subprocess.Popen([program], env=here.environment("online"), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stdout.readline().startswith("ready ")

    def ask(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().split()


def fill(part):
    """So many requests fill a part of the pool."""
    return str(int(FILL * POOL * part / REQUEST))


def say(text):
    print(text, flush=True)


def reclaims(here, begun):
    """Job and tokens of each since the first `begun`."""
    events = [event for event in here.events() if event["kind"] == "reclaimed"]
    return [(event["job"], int(re.search(r"(\d+) tokens? to compute again", event["text"])[1]))
            for event in events[begun:]]


def deserved(engines):
    """MiB by weight, of two; what the one cannot have, as its cache was born smaller, is the other's."""
    parts = [POOL * engine.weight / sum(each.weight for each in engines) for engine in engines]
    lacks = [max(0, part - BESIDE - engine.born) for part, engine in zip(parts, engines)]
    return [part - own + other for part, own, other in zip(parts, lacks, reversed(lacks))]


def settled(history, engines, within):
    """What each has once each is within OFF of what it deserves, and after how long; or at the end of it."""
    deserves, begin = deserved(engines), time.monotonic()
    while True:
        has = [history.of(engine.process.pid) for engine in engines]
        off = [abs(one / other - 1) for one, other in zip(has, deserves)]
        taken = time.monotonic() - begin
        if max(off) <= OFF or taken > within:
            return has, deserves, max(off), taken
        time.sleep(0.1)


def strike(here, online, engines, draw, count=RECLAIMS):
    """Random demands of online until the agent has made so many reclaims; how often online was left waiting."""
    waited, begun = 0, len(reclaims(here, 0))
    while len(reclaims(here, begun)) < count:
        want, held, end = draw.randrange(1, BLOCKS + 1), 0, time.monotonic() + 2
        while held < want and time.monotonic() < end:
            held += int(online.ask(f"reserve {want - held}")[0])
            time.sleep(0.01)
        waited += held < want
        assert online.ask("check") == ["ok"], "what online wrote is not what it reads"
        time.sleep(draw.uniform(0, 0.2))
        assert int(online.ask(f"release {held}")[0]) == held
        time.sleep(draw.uniform(0.2, 1.0))
        for engine in engines:
            assert engine.process.poll() is None, f"{engine.name} ended: {engine.tail()}"
    return waited, reclaims(here, begun)


def main():
    program, gpu, folder, *weights = sys.argv[1:]
    weights = [int(weight) for weight in weights]
    case = ":".join(map(str, weights))
    draw, failures = random.Random(case), []
    settings = f'headroom_min = "{HEADROOM}MiB"\nheadroom_max = "16MiB"\nrestore_interval = "100ms"\n'
    settings += f'[[identity.rules]]\nuid = {os.getuid()}\nrole = "offline"\nweight = {max(weights)}\n'

    def judge(what, holds):
        say(f"{case}  {'ok  ' if holds else 'FAIL'}  {what}")
        if not holds:
            failures.append(what)

    engines, online = [], None
    with node.Node(runs.HOME, "best", f"{POOL}MiB", True, settings) as here:
        try:
            history = History(gpu)
            for nth, weight in enumerate(weights):
                engine = Engine(here, folder, f"engine-{nth}-{case.replace(':', '-')}", weight, nth)
                engines.append(engine)
                engine.born = int(engine.hear("being ready", READY).split()[1])
                # The first one fills what it has while it is alone.
                engine.say(fill(weight / sum(weights) if nth else 1))
                say(f"{case}  {engine.name} is ready with a cache of {engine.born} MiB, and has "
                    f"{history.of(engine.process.pid):.0f}")
                if not nth:
                    time.sleep(3)  # for its requests to fill it
            engines[0].say(fill(weights[0] / sum(weights)))
            has, deserves, off, taken = settled(history, engines, SETTLES)
            judge(f"of {POOL} MiB they have {', '.join(f'{one:.0f}' for one in has)} and deserve "
                  f"{', '.join(f'{one:.0f}' for one in deserves)}: off by {100 * off:.1f} % {taken:.1f} s after the "
                  "second was ready", off <= OFF)
            online = Online(here, program)
            before = [engine.forgotten() for engine in engines]
            waited, made = strike(here, online, engines, draw)
            after = [engine.forgotten() for engine in engines]
            lost = [[tokens for job, tokens in made if job == engine.name] for engine in engines]
            over = [sum(own) / engine.weight for own, engine in zip(lost, engines)]
            most = max(max(own, default=0) / engine.weight for own, engine in zip(lost, engines))
            apart = abs(over[0] - over[1])
            judge(f"{len(made)} reclaims ({', '.join(str(len(own)) for own in lost)}); tokens lost "
                  f"{', '.join(str(sum(own)) for own in lost)}, over weight {', '.join(f'{one:.0f}' for one in over)}: "
                  f"{apart:.0f} apart, where a batch holds {BATCH} and the dearest reclaim cost {most:.0f}; "
                  f"online waited in vain {waited} times", apart <= BATCH and min(map(sum, lost)) > 0)
            for engine in engines:
                engine.say("stop")
            for engine, one, other in zip(engines, before, after):
                said = json.loads(engine.hear("figures", FINISH))
                lost, own = (other[why] - one[why] for why in ("lost", "own"))
                judge(f"{engine.name}: {said['requests']} requests answered, all that were asked; {said['wrong']} "
                      f"wrong; under the reclaims its scheduler forgot {lost} tokens to losses and {own} by itself",
                      said["wrong"] == 0 and said["requests"] > 0)
        finally:
            for each in engines + ([online] if online else []):
                node.stop(each.process)
    return len(failures)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
