"""P35: conditions as blocks inside one pair of engines, so that what differs between two starts of an engine differs in none.

In the order A B B A: gated, paused, frozen (paused, and no process of offline's runs), pinned (paused, and the two engines
have half of the processors each), frozen, paused, gated; then offline ended (`watched`), and the agent (`bare`). Then an
online engine without the library (`native`), twice. Each block has the same requests. Beside them stand what the host
lost and did meanwhile: steal time, page faults, processor time by thread, clocks of the GPU. All of it is read, nothing set
but which processors a program of this probe's own may use.
"""

import collections
import contextlib
import glob
import json
import os
import signal
import subprocess
import time

import lines
import node
import paired
import runs

ORDER = ["gated", "paused", "frozen", "pinned", "frozen", "paused", "gated"]
AFTER = ["watched", "bare"]
NATIVE = ["native", "native"]
PROBE = "P35"
TICK = os.sysconf("SC_CLK_TCK")
# Seconds from a change of condition to the first request that may come.
SETTLE = 0.7
QUERY = "clocks.sm,power.draw,clocks_event_reasons.active"


def processes(session):
    """Ids of the processes of a session."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
            if int(file.read().rsplit(")", 1)[1].split()[3]) == session:
                found.append(int(entry))
    return found


def threads(session):
    """Of each thread of a session: its name, page faults, processor time in seconds."""
    found = {}
    for pid in processes(session):
        for path in glob.glob(f"/proc/{pid}/task/*/stat"):
            with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
                head, rest = file.read().rsplit(")", 1)
                rest = rest.split()
                # Minor and major faults; user and system time.
                found[path] = (head.split("(", 1)[1], int(rest[7]) + int(rest[9]), (int(rest[11]) + int(rest[12])) / TICK)
    return found


def stolen():
    """Processor time that the host took, and all there was, in ticks."""
    with open("/proc/stat", encoding="utf-8") as file:
        times = [int(word) for word in file.readline().split()[1:9]]
    return times[7], sum(times)


def siblings():
    """Processors by the core that they share."""
    cores = set()
    for path in glob.glob("/sys/devices/system/cpu/cpu*/topology/thread_siblings_list"):
        with open(path, encoding="utf-8") as file:
            cores.add(file.read().strip())
    return sorted(cores, key=lambda text: int(text.replace("-", ",").split(",")[0]))


def halves(cores, mine):
    """Two halves of the processors that this process may use; no core is in both."""
    import serve

    sets = [serve.processors(core) & mine for core in cores]
    sets = [one for one in sets if one] or [{one} for one in sorted(mine)]
    middle = len(sets) // 2
    return set().union(*sets[:middle]), set().union(*sets[middle:])


class Clocks:
    """The GPU's clocks and power while a block runs, by nvidia-smi, which is asked and sets nothing."""

    def __enter__(self):
        try:
            self.process = subprocess.Popen(
                ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits", "-i", "0", "-lms", "50"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            self.process = None
        return self

    def __exit__(self, *_):
        self.rows = []
        if self.process:
            self.process.terminate()
            said, _ = self.process.communicate()
            for row in said.splitlines():
                words = [word.strip() for word in row.split(",")]
                with contextlib.suppress(ValueError, IndexError):
                    self.rows.append((float(words[0]), float(words[1]), words[2]))


class Pair:
    """Two programs and a node for them."""

    def __init__(self, options, command, home=runs.HOME):
        self.options, self.command, self.home = options, command, home
        self.blocks, self.counts = [], collections.Counter()
        self.file = os.path.join(options.out, "blocks.jsonl")

    def start(self, here, role, preloaded, stack):
        log = stack.enter_context(open(os.path.join(self.options.out, f"{PROBE}-{role}-{preloaded}.log"), "w+", encoding="utf-8"))
        program = runs.Program(here, self.command, role, preloaded, log)
        stack.callback(self.end, program)
        program.hear("being ready", self.options.ready)
        return program

    @staticmethod
    def end(program):
        """A program that was frozen hears of its end too."""
        Pair.signal(program, signal.SIGCONT)
        node.stop(program.process)

    @staticmethod
    def signal(program, which):
        for pid in processes(program.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, which)

    @staticmethod
    def pin(program, processors):
        for pid in processes(program.process.pid):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(int(thread), processors)

    def block(self, here, name, online, offline=None):
        """One block; a line of blocks.jsonl."""
        self.counts[name] += 1
        head = f"{name} {self.counts[name]}"
        sessions = {"online": online, **({"offline": offline} if offline else {})}
        before = {role: threads(program.process.pid) for role, program in sessions.items()}
        steal, ticks = stolen()
        start = time.monotonic() + SETTLE
        with Clocks() as clocks:
            online.say(repr(start))
            said = json.loads(online.hear("figures", 2 * self.options.block_seconds + runs.FIGURES))
        end = time.monotonic()
        steal_after, ticks_after = stolen()
        lost = 100 * (steal_after - steal) / max(1, ticks_after - ticks)
        hooks = here.hooks() if here.level and here.agent.poll() is None else []
        stops = runs.edges(here.events()) if hooks else []
        block = {"name": name, "start": start, "end": end, "stamps": said["stamps"], "spans": said["spans"],
                 "stops": [stop for stop in stops if start <= stop[0] <= end], "steal_percent": lost,
                 "clocks": clocks.rows[:: max(1, len(clocks.rows) // 100)], "hooks": hooks}
        self.say(head, said, block, clocks.rows)
        for role, program in sessions.items():
            block[role] = self.worked(head, role, before[role], threads(program.process.pid))
        self.blocks.append(block)
        with open(self.file, "a", encoding="utf-8") as file:
            file.write(json.dumps(block) + "\n")

    def say(self, head, said, block, clocks):
        lines.figure(PROBE, f"{head}: requests", said["requests"])
        lines.spread(PROBE, f"{head}: TTFT", said["ttft_s"], "ms", 1e3)
        lines.spread(PROBE, f"{head}: TPOT", said["tpot_s"], "ms", 1e3)
        for name, first, last in paired.SEGMENTS:
            spans = [paired.span(stamps, first, last) for stamps in said["stamps"]]
            spans = [span for span in spans if span is not None]
            if spans:
                lines.figure(PROBE, f"{head}: {name} mean", 1e3 * sum(spans) / len(spans), "ms")
        lines.figure(PROBE, f"{head}: preemptions", len(block["stops"]))
        lines.figure(PROBE, f"{head}: steal time", block["steal_percent"], "%")
        if clocks:
            sm, watts = [row[0] for row in clocks], [row[1] for row in clocks]
            lines.figure(PROBE, f"{head}: SM clock mean", sum(sm) / len(sm), "MHz")
            lines.figure(PROBE, f"{head}: SM clock least", min(sm), "MHz")
            lines.figure(PROBE, f"{head}: power mean", sum(watts) / len(watts), "W")
            lines.note(PROBE, f"{head}: reasons for the clocks: {dict(collections.Counter(row[2] for row in clocks))}")

    @staticmethod
    def worked(head, role, before, after):
        """Faults and processor time of a program's threads in a block."""
        faults, times = 0, collections.Counter()
        for path, (name, more, seconds) in after.items():
            _, had, spent = before.get(path, (name, 0, 0.0))
            faults += more - had
            times[name] += seconds - spent
        lines.figure(PROBE, f"{head}: page faults of {role}", faults)
        lines.figure(PROBE, f"{head}: processor time of {role}", sum(times.values()), "s")
        return {"faults": faults, "threads": dict(times.most_common(8))}

    def enter(self, here, name, online, offline):
        """Has the condition be, whatever the one before was."""
        everywhere = os.sched_getaffinity(0)
        self.signal(offline, signal.SIGCONT)
        for program in (online, offline):
            self.pin(program, everywhere)
        if name == "gated":
            here.resume()
            return
        here.pause()
        if name == "frozen":
            self.signal(offline, signal.SIGSTOP)
        if name == "pinned":
            for program, processors in zip((online, offline), halves(siblings(), everywhere), strict=True):
                self.pin(program, processors)

    def with_the_library(self):
        with node.Node(self.home, "best") as here, contextlib.ExitStack() as stack:
            stack.callback(lambda: here.keep_log(os.path.join(self.options.out, f"{PROBE}-agent.log")))
            # Gated from its first launch, it would not get ready beside an online program that starts up.
            offline = self.start(here, "offline", True, stack)
            online = self.start(here, "online", True, stack)
            offline.say(repr(time.monotonic()))
            for name in ORDER:
                self.enter(here, name, online, offline)
                self.block(here, name, online, offline)
            node.report_gate(lines, PROBE, "all blocks", here.status())
            self.end(offline)
            for name in AFTER:
                if name == "bare":
                    here.agent.send_signal(signal.SIGTERM)
                    here.agent.wait(10)
                self.block(here, name, online)

    def without_it(self):
        with node.Node(self.home) as here, contextlib.ExitStack() as stack:
            online = self.start(here, "online", False, stack)
            for name in NATIVE:
                self.block(here, name, online)

    def judge(self):
        """What the differences are, between what, and of the two that decide whether they hold."""
        paired.report(self.blocks, lambda name, difference: (
            lines.figure(PROBE, name, 1e3 * difference.mean, "ms"), lines.note(PROBE, f"{name}: {difference.text()}")))
        for words, one, other in [
                ("online's first token comes as soon beside a gated offline engine as beside one that is paused", "gated", "paused"),
                ("an offline engine that is stopped costs online no first token by its processors", "paused", "frozen"),
                ("the library and the agent cost online's first token nothing", "watched", "native")]:
            difference = paired.compare(self.blocks, one, other)
            if difference and difference.word() != "undecided":
                lines.guess(PROBE, words, difference.high < paired.SAME)


def run(options, command):
    lines.note(PROBE, f"processors by core: {' '.join(siblings()) or 'not told here'}")
    pair = Pair(options, command)
    try:
        pair.with_the_library()
        pair.without_it()
    finally:
        # What there is when time is over counts too.
        pair.judge()
