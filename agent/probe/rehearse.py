"""Carries out the plan of a day on a card against the virtual GPU, in every way in which that day may go.

    rehearse.py --dir DIR --day 1|2 --built DIR [--quick] [--calls N,...] [--only NAME,...] [--json FILE]

`DIR` of --dir is what `scripts/h200 pack day` or `day2` made, that of --built has `vgpud` and the virtual driver. What only
a card has, PyTorch, vLLM, SGLang and a trainer, is played by programs whose kernels spin (engines/serve.py). The first
firmware personality goes through the plan as it stands, which says how long each call takes; the others go through it
abridged; so does each of the conditions. With --quick all are abridged, and the budget is that of the plan's limits
alone. Judged by the device's own state and by what the personality is said to honour, not by the probes' word.
"""

import argparse
import ctypes
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

# What a machine that is lent takes to start, in seconds: an estimate, to be replaced by what the first call shows.
START = 90
MOST_FILES, MOST_BYTES = 8, 16 << 20
NOBODY = 65534
# Methods that hold work in mid-kernel, by the table of `tests/vgpu/src/personality.rs`: a disable stops at once, or
# only with what follows it; the restart of a runlist harms none that stops without it.
HOLDS = {
    "evicts": {"A", "B", "C"}, "restart": {"B"}, "preempt": {"C"}, "refuses-foreign": {"A", "B", "C"},
    "refuses-restart": {"C"}, "kernel-end": set(), "deaf": set(),
}
# Firmware that stops nothing in mid-kernel: Tidegate gates launches there.
GATED = {"kernel-end", "deaf"}


class Day:
    """What a day's plan has to keep to. `around`: seconds that a call takes to send and to fetch, an estimate. `commands`
    and `budget`: what all commands, and all of it, may come to. `fails`: probes that fail by what a personality does."""

    def __init__(self, around, commands, budget, fails, killed):
        self.around, self.commands, self.budget, self.fails, self.killed = around, commands, budget, fails, killed


DAYS = {
    # Where the others' probes stop their workers by the method that P2m found, and only the question about a disable alone
    # is answered with no.
    1: Day(10, 25 * 60, 25 * 60, {"restart": {"P2"}, "preempt": {"P2"}}, "P3b"),
    2: Day(20, 1500, 28 * 60, {}, "P38"),
}
# Probes of the second day that ask how something is stopped, which firmware that stops nothing answers with no.
STOPS = {"P2m", "P36a", "P36b", "P36c", "P38", "P8", "P15m"}
# What comes last may be ended by the limit of its call.
LAST = "P8"
METHODS = {"A": "A disable", "B": "B disable and restart", "C": "C unlist and preempt"}


class Gpu:
    """A virtual GPU that lives as long as the block."""

    def __init__(self, built, *arguments):
        self.built, self.arguments = built, arguments
        self.dir = tempfile.mkdtemp(prefix="tidegate-rehearse-")

    def __enter__(self):
        self.process = subprocess.Popen([os.path.join(self.built, "vgpud"), "--dir", self.dir, *self.arguments],
                                        stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline().strip() != "ready":
            raise RuntimeError("the virtual GPU does not start")
        # For who is not root.
        for path in (self.dir, *(os.path.join(self.dir, name) for name in os.listdir(self.dir))):
            os.chmod(path, 0o777)
        return self

    def disabled(self):
        """Channels that are disabled, as the device has them."""
        found, line = [], 0
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
            control.connect(os.path.join(self.dir, "control"))
            while line is not None:
                control.send(f"state {line}".encode())
                text = control.recv(1 << 20).decode()
                line = None
                for row in text.splitlines()[1:]:
                    if row.startswith("more "):
                        line = int(row.split()[1])
                    elif row.startswith("channel ") and ("disabled=1" in row or "disabled=true" in row):
                        found.append(row)
        return found

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


def plan(folder):
    """Calls of the plan: a number, and parts of mode, limit in seconds, arguments."""
    calls = {}
    with open(os.path.join(folder, "plan.txt"), encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                number, mode, limit, *arguments = line.split()
                calls.setdefault(number, []).append((mode, int(limit), arguments))
    return list(calls.items())


def stand_ins(gpu, abridged):
    """What is said besides to the parts of a call, by their mode: what plays what only a card has, for how long."""
    more = {"probes": f"--device virtual={gpu.dir}", "torch": "--backend spin", "vllm": "--stand-in", "sglang": "--stand-in",
            "finetune": "--stand-in"}
    short = {"probes": "--quick --long 1", "torch": "--seconds 2", "vllm": "--seconds 2 --block-seconds 1",
             "sglang": "--seconds 2", "finetune": "--seconds 2"}
    return {f"TIDEGATE_MORE_{mode}": f"{what} {short[mode]}" if abridged else what for mode, what in more.items()}


def no_futex_waitv():
    """In a child: `futex_waitv` (449) is unknown, as in gVisor, whose kernel says 4.4."""
    code = struct.pack(
        "HBBIHBBIHBBIHBBI",
        0x20, 0, 0, 0,  # load the system call's number
        0x15, 0, 1, 449,  # futex_waitv?
        0x06, 0, 0, 0x00050000 | 38,  # ENOSYS
        0x06, 0, 0, 0x7FFF0000)  # allowed
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", 4, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    # PR_SET_NO_NEW_PRIVS, then PR_SET_SECCOMP with a filter.
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
        os._exit(99)


def nobody():
    """In a child: no root."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


class Call:
    """One call of the plan, carried out."""

    def __init__(self, options, gpu, call, abridged, before=None, **variables):
        self.number, self.parts = call
        self.mode = " ".join(dict.fromkeys(mode for mode, _, _ in self.parts))
        self.limit, self.around = sum(limit for _, limit, _ in self.parts), DAYS[options.day].around
        self.out = tempfile.mkdtemp(prefix="tidegate-call-")
        os.chmod(self.out, 0o777)
        env = dict(os.environ, OUT=self.out, TIDEGATE_VGPU_DIR=gpu.dir, TMPDIR=self.out, HOME=self.out,
                   LD_LIBRARY_PATH=os.path.join(options.dir, "driver"),
                   LD_PRELOAD=os.path.join(options.dir, "libvgpu_rm.so"), **stand_ins(gpu, abridged), **variables)
        self.start = time.monotonic()
        self.process = subprocess.Popen(
            ["bash", os.path.join(options.dir, "run"), self.number], env=env, preexec_fn=before,
            start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def finish(self):
        """Waits for its end; what came of it."""
        self.said, _ = self.process.communicate()
        took = time.monotonic() - self.start
        files = [os.path.join(self.out, name) for name in os.listdir(self.out)]
        files = [path for path in files if os.path.isfile(path)]
        results = [path for path in files if os.path.basename(path).startswith("results")]
        self.lines = []
        for path in results:
            with open(path, encoding="utf-8") as file:
                self.lines += [json.loads(line) for line in file]
        verdicts = {line["probe"]: line["verdict"] for line in self.lines if line["kind"] == "verdict"}
        found = {
            "call": self.number, "mode": self.mode, "limit_s": self.limit, "took_s": round(took, 1),
            "minutes": round((took + self.around) / 60, 2), "verdicts": verdicts, "files": len(files),
            "largest_bytes": max(map(os.path.getsize, files), default=0),
        }
        problems = []
        if not verdicts:
            problems.append(f"no results: {self.said[-400:]}")
        # Each call is judged beside runs of its own machine, and says what machine that is.
        if not any(line["kind"] == "machine" for line in self.lines):
            problems.append("the results do not say where they are of")
        if took > self.limit + 20:
            problems.append(f"took {took:.0f} s of {self.limit}")
        if len(files) > MOST_FILES or found["largest_bytes"] > MOST_BYTES:
            problems.append(f"{len(files)} files, the largest of {found['largest_bytes']} bytes")
        found["problems"] = problems
        shutil.rmtree(self.out, ignore_errors=True)
        return found

    def reasons(self, probes):
        """Why they failed."""
        return {line["probe"]: line["reason"] for line in self.lines
                if line["kind"] == "verdict" and line["probe"] in probes}

    def figure(self, probe, name):
        for line in self.lines:
            if line["kind"] == "figure" and line["probe"] == probe and line["name"] == name:
                return line["value"]
        return None


def held(call):
    """Methods that held in mid-kernel in every round, by P2m's figures."""
    return {letter for letter, name in METHODS.items()
            if any(call.figure("P2m", f"{name}, mid-kernel: held, of {rounds}") == rounds for rounds in (1, 3))}


def whole(options, personality, abridged):
    """The plan under one personality."""
    calls, expected = [], DAYS[options.day].fails.get(personality)
    # What a first call found stays with the machine, and this is another one.
    if os.path.exists(os.path.join(options.dir, "method")):
        os.remove(os.path.join(options.dir, "method"))
    with Gpu(options.built, "--personality", personality) as gpu:
        for number, parts in plan(options.dir):
            if options.calls and number not in options.calls.split(","):
                continue
            call = Call(options, gpu, (number, parts), abridged)
            found = call.finish()
            if number == "1":
                found["methods"] = sorted(held(call))
                if held(call) != HOLDS[personality]:
                    found["problems"].append(f"methods {sorted(held(call))}, not {sorted(HOLDS[personality])}")
            failed = {probe for probe, verdict in found["verdicts"].items() if verdict == "FAIL"}
            failed -= {LAST} if call.reasons({LAST}) == {LAST: "interrupted"} else set()
            if options.day == 1:
                failed = failed if parts[0][0] == "probes" else set()
                allowed = failed if expected is None else expected
            else:
                allowed = {probe for probe in failed if probe in STOPS} if personality in GATED else expected or set()
            if failed - allowed:
                found["problems"].append(f"{sorted(failed)} failed, not {sorted(allowed)}: {call.reasons(failed - allowed)}")
            left = gpu.disabled()
            if left:
                found["problems"].append(f"{len(left)} channels are left disabled")
            show(personality, found)
            calls.append(found)
    return {"calls": calls, "good": not any(call["problems"] for call in calls)}


def condition(options, name, before, *arguments, passes=("end",), **variables):
    """The first call under a condition, in which these pass."""
    with Gpu(options.built, *arguments) as gpu:
        found = Call(options, gpu, plan(options.dir)[0], True, before, **variables).finish()
        if gpu.disabled():
            found["problems"].append("channels are left disabled")
        failed = [probe for probe in passes if found["verdicts"].get(probe) != "PASS"]
        if failed:
            found["problems"].append(f"no PASS of {', '.join(failed)}")
    show(name, found)
    return {**found, "good": not found["problems"]}


def killed(options):
    """The first call, its probe at work killed while its channels are disabled; the rest goes on."""
    with Gpu(options.built) as gpu:
        call = Call(options, gpu, plan(options.dir)[0], True)
        victim, end = None, time.monotonic() + 120
        while victim is None and time.monotonic() < end and call.process.poll() is None:
            if gpu.disabled():
                victim = probe_of(call.process.pid, gpu.dir)
            time.sleep(0.002)
        if victim:
            os.kill(victim, signal.SIGKILL)
        found = call.finish()
        if not victim:
            found["problems"].append("no probe was met with its channels disabled")
        elif "FAIL" not in found["verdicts"].values():
            found["problems"].append("the probe that was killed has no verdict")
        if found["verdicts"].get(DAYS[options.day].killed) != "PASS":
            found["problems"].append("the probes after it did not run")
        if gpu.disabled():
            found["problems"].append("channels are left disabled")
    show("killed in the middle", found)
    return {**found, "good": not found["problems"]}


def probe_of(session, gpu):
    """A probe's own process in that session."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                line = file.read().decode(errors="replace").split("\0")
            with open(f"/proc/{pid}/environ", "rb") as file:
                ours = gpu.encode() in file.read()
        except OSError:
            continue
        if ours and len(line) > 2 and line[0].endswith("tidegate-probe") and line[1] == "one":
            return int(pid)
    return None


def show(name, found):
    bad = [probe for probe, verdict in found["verdicts"].items() if verdict == "FAIL"]
    print(f"{name:<22} call {found['call']} {found['mode']:<12} {found['took_s']:6.1f} s of {found['limit_s']}"
          f"{'  FAIL ' + ','.join(bad) if bad else ''}{'  WRONG ' + '; '.join(found['problems']) if found['problems'] else ''}",
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", required=True)
    parser.add_argument("--day", type=int, choices=list(DAYS), default=1)
    parser.add_argument("--built", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", help="personalities, joined by commas")
    parser.add_argument("--calls", help="numbers of calls, joined by commas; all unless given")
    parser.add_argument("--json")
    options = parser.parse_args()
    names = subprocess.run([os.path.join(options.built, "vgpud"), "--dir", "/nonexistent", "--personality", "list"],
                           check=True, capture_output=True, text=True).stdout.split()
    unknown = set(names) ^ set(HOLDS)
    if unknown:
        sys.exit(f"rehearse: personalities that only one side knows: {unknown}")
    chosen = options.only.split(",") if options.only else names
    report = {"personalities": {}, "conditions": {}}
    for at, name in enumerate(chosen):
        report["personalities"][name] = whole(options, name, options.quick or at > 0)
    conditions = report["conditions"]
    if os.geteuid() == 0:
        conditions["no root"] = condition(options, "no root", nobody)
    conditions["no futex_waitv"] = condition(options, "no futex_waitv", no_futex_waitv)
    # A container that was given one of two GPUs.
    passes = {1: ("P1", "P2", "P2m", "P3", "P3b", "end"), 2: ("P2m", "P36a", "P36b", "P31s", "P38", "end")}
    conditions["one GPU of two"] = condition(options, "one GPU of two", None, "--gpus", "2", passes=passes[options.day],
                                             TIDEGATE_VGPU_HIDE="nvidia1:2")
    if options.day == 2:
        conditions["two GPUs"] = condition(options, "two GPUs", None, "--gpus", "2", passes=("P37", "P38", "end"))
    conditions["killed in the middle"] = killed(options)
    day, calls = DAYS[options.day], plan(options.dir)
    report["calls"] = next(iter(report["personalities"].values()))["calls"]
    # No part outlasts its limit, so this is what the day takes at most.
    commands = sum(limit for _, parts in calls for _, limit, _ in parts)
    most = START + commands + day.around * len(calls)
    report["day"], report["commands_s"] = options.day, commands
    report["minutes"] = round(most / 60, 1)
    report["measured_minutes"] = None if options.quick or options.calls else round(
        (START + sum(call["took_s"] + day.around for call in report["calls"])) / 60, 1)
    report["budget_minutes"] = 30
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    print(f"\n{len(calls)} calls of at most {report['minutes']} minutes, of a budget of 30"
          + ("" if report["measured_minutes"] is None else f"; they took {report['measured_minutes']} here"))
    good = all(one["good"] for group in ("personalities", "conditions") for one in report[group].values())
    fits = most <= day.budget and commands <= day.commands
    if not fits:
        print(f"rehearse: {most} s with commands of {commands} s are more than {day.budget} s with {day.commands} s")
    sys.exit(0 if good and fits else 1)


if __name__ == "__main__":
    main()
