"""Result lines, as tidegate-probe writes them: one JSON object each, printed as they are found."""

import json
import os
import subprocess
import sys
import time

RESULTS = os.environ.get("TIDEGATE_RESULTS")


def emit(line):
    text = json.dumps(line)
    if RESULTS:
        with open(RESULTS, "a", encoding="utf-8") as results:
            results.write(text + "\n")
    if line["kind"] != "note":
        print(text if line["kind"] == "machine" else show(line), flush=True)


def show(line):
    if line["kind"] == "figure":
        return f"{line['probe']:<5} {line['name']}: {line['value']:.6g} {line['unit']}"
    return f"{line['probe']:<5} {line['verdict']}  {line['seconds']:.1f} s  {line['reason']}"


def figure(probe, name, value, unit=""):
    emit({"kind": "figure", "probe": probe, "name": name, "value": float(value), "unit": unit})


def note(probe, text):
    emit({"kind": "note", "probe": probe, "text": text})


GUESSES = {}


def guess(probe, words, holds):
    """Says of a guess of the design whether it holds; the probe's verdict line carries it."""
    GUESSES.setdefault(probe, []).append({"guess": words, "found": "confirmed" if holds else "refuted"})


class Probe:
    """The verdict of a block: PASS at its end, FAIL with what was raised, SKIP by `Skip`."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.start = time.monotonic()
        return self

    def __exit__(self, kind, error, trace):
        verdict, reason = "PASS", ""
        if isinstance(error, Skip):
            verdict, reason = "SKIP", str(error)
        elif isinstance(error, Exception):
            verdict, reason = "FAIL", f"{kind.__name__}: {error}"
        elif error is not None:
            return False
        emit({
            "kind": "verdict", "probe": self.name, "verdict": verdict, "reason": reason,
            "seconds": time.monotonic() - self.start, "guesses": GUESSES.pop(self.name, []),
        })
        return True


class Skip(Exception):
    """Not tried, and why."""


def percentile(values, p):
    """By nearest rank; of nothing: 0."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * p // 100) - 1))]


def spread(probe, name, values, unit, scale=1.0):
    if not values:
        note(probe, f"{name}: nothing was measured")
        return
    figure(probe, f"{name} mean", scale * sum(values) / len(values), unit)
    for p in (50, 99):
        figure(probe, f"{name} p{p}", scale * percentile(values, p), unit)


def machine(home):
    """The first line of a results file, from tidegate-probe, which knows how to say it."""
    line = json.loads(subprocess.run([os.path.join(home, "tidegate-probe"), "machine"], check=True,
                                     capture_output=True, text=True).stdout)
    line["command"] = " ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]])
    emit(line)
