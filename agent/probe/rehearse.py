"""Carries out the plan of a day on a card against the virtual GPU, in every way in which that day may go.

    rehearse.py --day DIR --built DIR [--quick] [--calls N,...] [--only NAME,...] [--json FILE]

`DIR` of --day is what `scripts/h200 pack day` made, that of --built has `vgpud` and the virtual driver. The first
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

# What a machine that is lent takes to start, and each call to send and fetch, in seconds: estimates, to be replaced
# by what the first call shows.
START, AROUND = 90, 10
BUDGET_S = 25 * 60
MOST_FILES, MOST_BYTES = 8, 16 << 20
NOBODY = 65534
# Methods that hold work in mid-kernel, by the table of `tests/vgpu/src/personality.rs`: a disable stops at once, or
# only with what follows it; the restart of a runlist harms none that stops without it.
HOLDS = {
    "evicts": {"A", "B", "C"}, "restart": {"B"}, "preempt": {"C"}, "refuses-foreign": {"A", "B", "C"},
    "refuses-restart": {"C"}, "kernel-end": set(), "deaf": set(),
}
# Where the others' probes stop their workers by the method that P2m found, and only the question about a disable alone
# is answered with no.
FAILS = {"restart": {"P2"}, "preempt": {"P2"}}
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


def plan(day):
    """Rows of the plan: number, mode, limit in seconds, arguments."""
    rows = []
    with open(os.path.join(day, "plan.txt"), encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                number, mode, limit, *arguments = line.split()
                rows.append((number, mode, int(limit), arguments))
    return rows


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

    def __init__(self, options, gpu, row, abridged, before=None, **variables):
        self.number, self.mode, self.limit, _ = row
        self.out = tempfile.mkdtemp(prefix="tidegate-call-")
        os.chmod(self.out, 0o777)
        more = []
        if self.mode == "torch":
            # No PyTorch here: kernels that spin in its place.
            more = ["--backend", "spin"] + (["--seconds", "2"] if abridged else [])
        else:
            more = ["--device", f"virtual={gpu.dir}"] + (["--quick", "--long", "1"] if abridged else [])
        env = dict(os.environ, OUT=self.out, TIDEGATE_VGPU_DIR=gpu.dir, TMPDIR=self.out, HOME=self.out,
                   LD_LIBRARY_PATH=os.path.join(options.day, "driver"),
                   LD_PRELOAD=os.path.join(options.day, "libvgpu_rm.so"), **variables)
        self.start = time.monotonic()
        self.process = subprocess.Popen(
            ["bash", os.path.join(options.day, "run"), self.number, *more], env=env, preexec_fn=before,
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
            "minutes": round((took + AROUND) / 60, 2), "verdicts": verdicts, "files": len(files),
            "largest_bytes": max(map(os.path.getsize, files), default=0),
        }
        problems = []
        if not verdicts:
            problems.append(f"no results: {self.said[-400:]}")
        if took > self.limit + 20:
            problems.append(f"took {took:.0f} s of {self.limit}")
        if len(files) > MOST_FILES or found["largest_bytes"] > MOST_BYTES:
            problems.append(f"{len(files)} files, the largest of {found['largest_bytes']} bytes")
        found["problems"] = problems
        shutil.rmtree(self.out, ignore_errors=True)
        return found

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
    calls = []
    # What a first call found stays with the machine, and this is another one.
    if os.path.exists(os.path.join(options.day, "method")):
        os.remove(os.path.join(options.day, "method"))
    with Gpu(options.built, "--personality", personality) as gpu:
        for row in plan(options.day):
            if options.calls and row[0] not in options.calls.split(","):
                continue
            call = Call(options, gpu, row, abridged)
            found = call.finish()
            if row[0] == "1":
                found["methods"] = sorted(held(call))
                if held(call) != HOLDS[personality]:
                    found["problems"].append(f"methods {sorted(held(call))}, not {sorted(HOLDS[personality])}")
            failed = {probe for probe, verdict in found["verdicts"].items() if verdict == "FAIL"}
            if row[1] == "probes" and failed - FAILS.get(personality, failed):
                found["problems"].append(f"{sorted(failed)} failed, not {sorted(FAILS[personality])}")
            left = gpu.disabled()
            if left:
                found["problems"].append(f"{len(left)} channels are left disabled")
            show(personality, found)
            calls.append(found)
    return {"calls": calls, "good": not any(call["problems"] for call in calls)}


def condition(options, name, before, *arguments, passes=("end",), **variables):
    """The first call under a condition, in which these pass."""
    with Gpu(options.built, *arguments) as gpu:
        found = Call(options, gpu, plan(options.day)[0], True, before, **variables).finish()
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
        call = Call(options, gpu, plan(options.day)[0], True)
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
        if found["verdicts"].get("P3b") != "PASS":
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
    print(f"{name:<22} call {found['call']} {found['mode']:<6} {found['took_s']:6.1f} s of {found['limit_s']}"
          f"{'  FAIL ' + ','.join(bad) if bad else ''}{'  WRONG ' + '; '.join(found['problems']) if found['problems'] else ''}",
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--day", required=True)
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
    conditions["one GPU of two"] = condition(options, "one GPU of two", None, "--gpus", "2",
                                             passes=("P1", "P2", "P2m", "P3", "P3b", "end"),
                                             TIDEGATE_VGPU_HIDE="nvidia1:2")
    conditions["killed in the middle"] = killed(options)
    rows = plan(options.day)
    report["calls"] = next(iter(report["personalities"].values()))["calls"]
    # No call outlasts its limit, so this is what the day takes at most.
    most = START + sum(limit + AROUND for _, _, limit, _ in rows)
    report["minutes"] = round(most / 60, 1)
    report["measured_minutes"] = None if options.quick or options.calls else round(
        (START + sum(call["took_s"] + AROUND for call in report["calls"])) / 60, 1)
    report["budget_minutes"] = 30
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    print(f"\n{len(rows)} calls of at most {report['minutes']} minutes, of a budget of 30"
          + ("" if report["measured_minutes"] is None else f"; they took {report['measured_minutes']} here"))
    good = all(one["good"] for group in ("personalities", "conditions") for one in report[group].values())
    if most > BUDGET_S:
        print(f"rehearse: {most} s are more than {BUDGET_S}")
    sys.exit(0 if good and most <= BUDGET_S else 1)


if __name__ == "__main__":
    main()
