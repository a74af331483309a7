"""Two programs alone, together without control, and together with Tidegate: P14 and P16 differ in the programs."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time

import lines
import node

HERE = os.path.dirname(os.path.abspath(__file__))
HOME = os.environ.get("TIDEGATE_HOME", os.path.dirname(HERE))

ALONE = [("online alone", ["online"], None), ("offline alone", ["offline"], None)]
# How far two runs differ in which nothing differs.
AGAIN = ("online again", ["online"], None)
UNCONTROLLED = ("uncontrolled", ["online", "offline"], None)
LAUNCH_GATE = ("launch gate (L5)", ["online", "offline"], "L5")
TIDEGATE = ("Tidegate", ["online", "offline"], "best")

# What of a difference to online alone is the library's and the agent's, and what is the host side of an offline program
# that is stopped all the time: each has one thing more than the run before.
WATCHED = ("Tidegate without offline", ["online"], "best")
PAUSED = ("Tidegate with offline paused", ["online", "offline"], "best", None, False, None, True)

# Beside it the engine's plugin, which says how many requests are in flight.
HINTED = ("Tidegate with hints", ["online", "offline"], "best", None, True)
# As that, but the front end does not say that it has accepted a request: its engine core is the first to know.
UNANNOUNCED = ("Tidegate, hints of the core alone", ["online", "offline"], "best", None, True, {"TIDEGATE_LINE": "none"})


def shared(pool):
    """Tidegate with so much of the GPU's memory in common, by the engine's plugin."""
    return ("Tidegate with shared memory", ["online", "offline"], "best", pool, True)


def end_politely():
    """Who is told to end, as by a limit of time, ends its programs first."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def edges(events):
    """When offline was found on the GPU by a busy edge, and when it was off it: seconds of the monotonic clock."""
    stopped = [event for event in events if event["kind"] == "preempted" and event["at_ns"]]
    return sorted([(event["at_ns"] - event["value_ns"]) / 1e9, event["at_ns"] / 1e9] for event in stopped)


def paired(spans, alone, stops):
    """How much later the first token of each request came than that of the same request `alone`, in seconds: of those for
    which offline had to be stopped first, and of the others. A request is the same that arrived as long after the first."""

    def waits(spans):
        begin = min((arrival for arrival, _, _ in spans), default=0)
        return {round(arrival - begin, 3): (arrival, first) for arrival, first, _ in spans}

    truth, met, others = waits(alone), [], []
    for offset, (arrival, first) in waits(spans).items():
        if offset in truth:
            stopped = any(arrival <= edge < first for edge, _ in stops)
            (met if stopped else others).append(first - arrival - (truth[offset][1] - truth[offset][0]))
    return met, others


class Program:
    """A program of a run: says `ready`, begins at an instant it reads, ends with figures."""

    def __init__(self, here, command, role, preloaded, log, **more):
        self.log, self.role = log, role
        self.process = subprocess.Popen(
            [sys.executable, *command(role)], env=here.environment(role if preloaded else None, **more), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def say(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def hear(self, what, limit):
        """The next line it says, within `limit` seconds: who hangs costs one run and not the whole call."""
        try:
            line = self.lines.get(timeout=limit)
        except queue.Empty:
            raise RuntimeError(f"{self.role}: no {what} in {limit:.0f} s: {self.tail()}") from None
        if not line:
            raise RuntimeError(f"{self.role} ended without {what}: {self.tail()}")
        return line

    def tail(self):
        self.log.seek(0)
        return self.log.read()[-800:]


# What a program that had all its work done may take to say its figures, in seconds: gates open, queues run dry.
FIGURES = 30


class Comparison:
    """Runs of one probe. `command(role)` is a program's arguments, `ready` how many seconds it may take to get ready;
    logs and timelines go to `out`."""

    def __init__(self, probe, command, seconds, out, ready):
        self.probe, self.command, self.seconds, self.out, self.ready = probe, command, seconds, out, ready
        # Of each run the spans of its requests, and when offline was stopped.
        self.runs = {}

    def one(self, name, roles, level, pool=None, plugin=False, more=None, paused=False):
        """What each role said at its end, and what the agent saw. `paused`: offline jobs are, once all are ready."""
        programs, logs, said = {}, {}, {}
        with node.Node(HOME, level, pool, plugin) as here:
            try:
                # One after the other, offline first: gated from its first launch, it would not get ready beside an
                # online program that starts up.
                for role in sorted(roles):
                    log = os.path.join(self.out, f"{self.probe}-{name}-{role}.log".replace(" ", "-"))
                    logs[role] = open(log, "w+", encoding="utf-8")
                    programs[role] = Program(here, self.command, role, level is not None, logs[role], **(more or {}))
                    programs[role].hear("being ready", self.ready)
                if paused:
                    here.pause()
                said["start"] = start = time.monotonic() + 0.5
                for program in programs.values():
                    program.say(repr(start))
                if "online" in programs:
                    said["online"] = json.loads(programs["online"].hear("figures", 2 * self.seconds + FIGURES))
                else:
                    time.sleep(self.seconds)
                said["end"] = time.monotonic()
                if level:
                    said["status"], said["events"] = here.status(), here.events()
                if "offline" in programs:
                    if paused:
                        here.resume()
                    programs["offline"].say("stop")
                    said["offline"] = json.loads(programs["offline"].hear("figures", FIGURES))
                return said
            finally:
                for program in programs.values():
                    node.stop(program.process)
                for log in logs.values():
                    log.close()
                here.keep_log(os.path.join(self.out, f"{self.probe}-{name}-agent.log".replace(" ", "-")))

    def report(self, name, said):
        online, offline = said.get("online"), said.get("offline")
        if online:
            lines.figure(self.probe, f"{name}: requests", online["requests"])
            lines.spread(self.probe, f"{name}: TTFT", online["ttft_s"], "ms", 1e3)
            lines.spread(self.probe, f"{name}: TPOT", online["tpot_s"], "ms", 1e3)
            self.runs[name] = (online["spans"], edges(said.get("events", [])))
        if offline:
            lines.figure(self.probe, f"{name}: offline tokens/s", offline["tokens"] / offline["seconds"])
            if "wrong" in offline:
                lines.figure(self.probe, f"{name}: offline requests", offline["requests"])
                lines.figure(self.probe, f"{name}: wrong answers", offline["wrong"])
        node.report_gate(lines, self.probe, name, said.get("status"))
        node.report_reclaims(lines, self.probe, name, said.get("events", []))

    def compare(self, name, spans, stops):
        """Each request beside itself alone. What two runs alone differ by is noise, and so may be as much of the others."""
        alone, _ = self.runs.get(ALONE[0][0], ([], []))
        met, others = paired(spans, alone, stops)
        which = ", offline was stopped before" if stops else ""
        for later, which in ((met, ", offline was stopped for them"), (others, which)):
            if later:
                lines.figure(self.probe, f"{name}: requests beside alone{which}", len(later))
                lines.spread(self.probe, f"{name}: TTFT beside alone{which}", later, "ms", 1e3)
                lines.figure(self.probe, f"{name}: TTFT beside alone{which} p10", 1e3 * lines.percentile(later, 10), "ms")

    def all(self, runs):
        """Every run; one that breaks costs its own figures only."""
        broken = []
        for name, *how in runs:
            try:
                said = self.one(name, *how)
            except (RuntimeError, ValueError, OSError) as error:
                broken.append(name)
                lines.note(self.probe, f"{name}: {error}")
                continue
            self.report(name, said)
            self.keep(name, said)
            if said.get("events"):
                self.timeline(name, said)
            if said.get("offline", {}).get("wrong"):
                raise RuntimeError(f"{name}: {said['offline']['wrong']} wrong answers")
        for name, (spans, stops) in self.runs.items():
            if name != ALONE[0][0]:
                self.compare(name, spans, stops)
        if broken:
            raise RuntimeError(f"no figures of {', '.join(broken)}")

    def keep(self, name, said):
        """A line of `runs.jsonl` for who judges the run by what else was recorded: seconds of the monotonic clock."""
        with open(os.path.join(self.out, "runs.jsonl"), "a", encoding="utf-8") as file:
            spans = said.get("online", {}).get("spans", [])
            offline = {key: value for key, value in said.get("offline", {}).items() if key != "spans"}
            stops = edges(said.get("events", []))
            run = {"name": name, "start": said["start"], "end": said["end"], "spans": spans, "stops": stops, "offline": offline}
            file.write(json.dumps(run) + "\n")

    def timeline(self, name, said):
        """Ten seconds of requests and gate, for Perfetto (the Chrome trace format)."""
        spans = said.get("online", {}).get("spans", [])
        events = [event for event in said["events"] if event["at_ns"]]
        begin = spans[len(spans) // 2][0] if spans else (events[0]["at_ns"] / 1e9 if events else 0)
        trace = []

        def add(at, text, track, duration=None):
            if begin <= at < begin + 10:
                kind = {"ph": "i", "s": "t"} if duration is None else {"ph": "X", "dur": duration * 1e6}
                trace.append({"name": text, "ts": (at - begin) * 1e6, "pid": 1, "tid": track, **kind})

        for number, (arrival, first, last) in enumerate(spans):
            add(arrival, "waiting and prefill", 10 + number % 32, first - arrival)
            add(first, "decode", 10 + number % 32, last - first)
        for event in events:
            add(event["at_ns"] / 1e9, f"{event['kind']} {event['text']}".strip(), 1)
        path = os.path.join(self.out, f"{self.probe}-timeline.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": trace}, file)
        lines.note(self.probe, f"{name}: ten seconds of it are in {os.path.basename(path)}, for Perfetto")
