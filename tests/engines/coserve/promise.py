"""``scripts/coserve promise --background``: what background requests cost users in time, and what they get.

vLLM's real scheduler with our plugin, in virtual time (``virtual.py``). Users are the requests of recorded traces, and a
batch client always has requests waiting. Times are the worker's own: when a user's tokens came, against when the trace
says that the request was sent. Beside the plugin the same users get

    alone       nothing else
    priority N  vLLM's own priority scheduling, and a batch client with N requests in flight
    fixed N     the plugin, but N rows of background requests in each step instead of what the library says. Of all N
                that keep the promise the one that brings most is the bar

A promise is kept if all users' means (shares), or 99 of 100 users' times (times), are within it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import virtual
import vllm
from tidegate_engines import coserve_abi
from tidegate_engines.vllm.background import promised, told
from tidegate_engines.vllm.background.scheduler import Background
from virtual import Answer, Arrival, Engine, Gpu

#: Nothing of the library was chosen by these traces.
TRACES = (
    "azure23_conv_a2",
    "azure23_code_a2",
    "servegen_mlarge_c140_a",
    "servegen_mmid_c46_a",
    "servegen_mmid_c49_a",
    "servegen_r1_mix_a",
    "synth_batch_a",
)
BATCH = "offline_sharegpt_lengths_a"
PROMISES = ("tpot=+5%,ttft=+5%", "tpot=20ms,ttft=500ms")
CAPS = (1, 4, 16)
#: A batch client has so many requests at the server.
WAITING = 256
#: Rows a step, tried in this ratio; the best is then known to as much.
FINE = 1.1


class Fixed:
    """In the library's place: the same rows in each step."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def rides(self, ask: coserve_abi.Ask) -> coserve_abi.Rides:
        if ask.prompts:
            return coserve_abi.Rides()
        rows = min(ask.background, self.rows)
        return coserve_abi.Rides(rows=rows, prompt=min(ask.prompt, self.rows - rows))

    def rode(self, step: coserve_abi.Step) -> None:
        """Nothing is learnt."""

    def see(self, *seen: int) -> None:
        """Nothing is learnt."""


@dataclass(frozen=True)
class Times:
    """What users got, and the background requests' tokens of a second."""

    ttft: tuple[float, ...]
    tpot: tuple[float, ...]
    background: float
    computed: float
    steps: int

    def line(self, alone: Times) -> dict[str, float]:
        """For people."""
        return {
            "ttft_ms": mean(self.ttft),
            "ttft_more": mean(self.ttft) / mean(alone.ttft) - 1,
            "ttft_p99_ms": tail(self.ttft),
            "tpot_ms": mean(self.tpot),
            "tpot_more": mean(self.tpot) / mean(alone.tpot) - 1,
            "tpot_p99_ms": tail(self.tpot),
            "background_tokens_per_s": self.background,
            "background_prompt_tokens_per_s": self.computed - self.background,
        }


def mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)


def tail(values: tuple[float, ...]) -> float:
    """The least that 99 of 100 do not exceed."""
    return sorted(values)[-(len(values) // 100) - 1]


def keeps(promise: coserve_abi.Config, times: Times, alone: Times) -> bool:
    """Whether users got what was promised."""
    if promise.kind == coserve_abi.SHARES:
        share = 1 + promise.ttft_share / 1e4, 1 + promise.tpot_share / 1e4
        return mean(times.ttft) <= share[0] * mean(alone.ttft) and mean(times.tpot) <= share[1] * mean(alone.tpot)
    return tail(times.ttft) * 1e6 <= promise.ttft_ns and tail(times.tpot) * 1e6 <= promise.tpot_ns


@dataclass(frozen=True)
class Rig:
    """What all runs of a trace have in common."""

    gpu: Gpu
    users: list[Arrival]
    batch: list[Arrival]
    seconds: float
    seed: int

    def run(self, kind: str, number: int = 0, promise: str = "") -> Times:
        """One run to the last user's last token."""
        engine = Engine(
            virtual.scheduler("priority" if kind == "priority" else "fcfs"), self.gpu, random.Random(self.seed)
        )
        state = None
        if kind in ("plugin", "fixed"):
            decides: Any = coserve_abi.Coserve(promised.parse(promise)) if kind == "plugin" else Fixed(number)
            # The wall clock that tells how long a user waited for the core.
            told.time = SimpleNamespace(time=lambda: engine.now / 1e9)
            state = Background(engine.scheduler, decides, lambda: engine.now)
            state.watch()
        most = {"alone": 0, "priority": number}.get(kind, WAITING)
        tokens = self._serve(engine, most)
        if state is not None and not state.on:
            raise RuntimeError("the plugin gave up")
        users = [answer for name, answer in engine.answers.items() if name.startswith("user")]
        short = [answer for answer in users if answer.count != answer.arrival.tokens]
        if short:
            raise RuntimeError(f"{len(short)} users have not all of their tokens")
        return Times(
            tuple(answer.ttft / 1e6 for answer in users),
            tuple(answer.tpot / 1e6 for answer in users if answer.tpot is not None),
            tokens / self.seconds,
            (tokens + self._prompts(engine)) / self.seconds,
            engine.steps,
        )

    def _serve(self, engine: Engine, most: int) -> int:
        """All users to their last token, and ``most`` background requests at a time. The tokens that these got in time."""
        coming = iter(enumerate(self.users))
        batch = enumerate(itertools.cycle(self.batch))
        after = next(coming, None)
        left, here, tokens, end = len(self.users), 0, 0, int(self.seconds * 1e9)
        while left or (most and engine.now < end):
            while after is not None and after[1].at_ns <= engine.now:
                engine.add(f"user-{after[0]}", after[1], 0)
                after = next(coming, None)
            while here < most:
                number, lengths = next(batch)
                engine.add(f"background-{number}", Arrival(engine.now, lengths.prompt, lengths.tokens), 1)
                here += 1
            before = engine.now, engine.steps, len(engine.queue)
            for name, count in engine.step():
                answer = engine.answers[name]
                whole = answer.count == answer.arrival.tokens
                if name.startswith("user"):
                    left -= whole
                else:
                    here -= whole
                    tokens += count if engine.now <= end else 0
            if before == (engine.now, engine.steps, len(engine.queue)):
                # Nothing runs. A core with requests that are held looks again soon; one without sleeps.
                until = engine.now + virtual.SPIN if engine.scheduler.has_requests() else sys.maxsize
                engine.now = min(until, after[1].at_ns if after is not None else until)
        return tokens

    def _prompts(self, engine: Engine) -> int:
        """Prompt tokens of background requests that had a first token in time."""
        end = self.seconds * 1e9
        of = (answer for name, answer in engine.answers.items() if name.startswith("background"))
        return sum(answer.arrival.prompt for answer in of if answer.first and answer.first <= end)


def best(rig: Rig, config: coserve_abi.Config, alone: Times, known: dict[int, Times]) -> tuple[int, Times | None]:
    """The most rows a step that keep the promise, and what they bring. More rows cost users more."""

    def kept(rows: int) -> bool:
        if rows not in known:
            known[rows] = rig.run("fixed", rows)
        return keeps(config, known[rows], alone)

    low, high = 0, 1
    while high <= virtual.REQUESTS and kept(high):
        low, high = high, high * 2
    while high - low > 1 and high > low * FINE:
        middle = round((low * high) ** 0.5) if low else high // 2
        middle = min(max(middle, low + 1), high - 1)
        low, high = (middle, high) if kept(middle) else (low, middle)
    # What keeps the promise with fewer rows may bring more.
    fit = {rows: times for rows, times in known.items() if keeps(config, times, alone)}
    if not fit:
        return 0, None
    rows = max(fit, key=lambda rows: fit[rows].background)
    return rows, fit[rows]


def trace(name: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """The lines of a trace: each policy under each promise."""
    traces = given.data / "traces"
    rig = Rig(
        Gpu(given.data / "calibration", given.gpu, given.model),
        virtual.arrivals(traces / f"{name}.csv.gz", given.seconds),
        virtual.arrivals(traces / f"{BATCH}.csv.gz", 0),
        given.seconds,
        given.seed,
    )
    alone = rig.run("alone")
    others = {"alone": alone} | {f"priority {cap}": rig.run("priority", cap) for cap in CAPS}
    known: dict[int, Times] = {}
    lines: list[dict[str, Any]] = []
    for promise in given.promise:
        config = promised.parse(promise)
        head = {"what": "promise", "version": given.version, "trace": name, "promise": promise}
        head["alone_keeps"] = keeps(config, alone, alone)
        policies = others | {"plugin": rig.run("plugin", promise=promise)}
        more = {}
        if head["alone_keeps"]:
            rows, fixed = best(rig, config, alone, known)
            if fixed is not None:
                policies[f"fixed {rows}"] = fixed
            most = fixed.background if fixed is not None else 0.0
            more["over_fixed"] = policies["plugin"].background / most if most else None
        for policy, times in policies.items():
            kept = keeps(config, times, alone)
            lines.append(head | {"policy": policy, "kept": kept} | times.line(alone) | (more if policy == "plugin" else {}))
    return lines


HEAD = ("trace", "promise", "policy", "kept", "TTFT", "p99 ms", "TPOT", "p99 ms", "tokens/s", "of fixed")


def table(lines: list[dict[str, Any]]) -> str:
    """For people."""
    rows = [HEAD]
    for line in lines:
        over = line.get("over_fixed")
        rows.append(
            (
                line["trace"],
                line["promise"],
                line["policy"],
                "yes" if line["kept"] else "no" if line["alone_keeps"] else "nor alone",
                f"{line['ttft_more']:+.1%}",
                f"{line['ttft_p99_ms']:.0f}",
                f"{line['tpot_more']:+.1%}",
                f"{line['tpot_p99_ms']:.1f}",
                f"{line['background_tokens_per_s']:,.0f}",
                "" if over is None else f"{over:.2f}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What the plugin kept."""
    ours = [line for line in lines if line["policy"] == "plugin"]
    held = [line for line in ours if line["alone_keeps"]]
    over = [line["over_fixed"] for line in held if line.get("over_fixed") is not None]
    return {
        "what": "promise, all",
        "version": ours[0]["version"],
        "cases": len(ours),
        "of_those_alone_keeps": len(held),
        "kept": sum(line["kept"] for line in held),
        "background_tokens_per_s": sum(line["background_tokens_per_s"] for line in held) / max(len(held), 1),
        "over_fixed_least": min(over, default=None),
        "over_fixed_mean": sum(over) / len(over) if over else None,
        "no_fixed_keeps": len(held) - len(over),
    }


def one(job: tuple[str, argparse.Namespace]) -> list[dict[str, Any]] | str:
    """A trace, in a process of its own."""
    try:
        return trace(*job)
    except (virtual.TableError, RuntimeError) as error:
        return f"{job[0]}: {error}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--background", action="store_true")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--trace", action="append", default=[])
    parser.add_argument("--promise", action="append", default=[])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args()
    given.trace, given.promise = given.trace or list(TRACES), given.promise or list(PROMISES)
    given.version = os.environ.get("COSERVE_VERSION", vllm.__version__)
    for promise in given.promise:
        try:
            promised.parse(promise)
        except ValueError as error:
            parser.error(f"--promise {promise}: {error}")
    return given


def main() -> int:
    given = arguments()
    lines: list[dict[str, Any]] = []
    failed = 0
    with multiprocessing.get_context("fork").Pool(given.jobs, maxtasksperchild=1) as pool:
        for found in pool.imap(one, [(name, given) for name in given.trace]):
            if isinstance(found, str):
                print(f"coserve: promise: {found}", file=sys.stderr)
                failed = 1
                continue
            lines += found
            for line in found:
                print(json.dumps(line), flush=True)
    if not lines:
        return 1
    print(json.dumps(whole := summary(lines)))
    print(table(lines), file=sys.stderr)
    for line in lines:
        if line["policy"] == "plugin" and line["alone_keeps"] and not line["kept"]:
            failed = 1
            print(f"coserve: promise: broken: {line['trace']}, {line['promise']}", file=sys.stderr)
    return int(failed or whole["kept"] < whole["of_those_alone_keeps"] or not whole["of_those_alone_keeps"])


if __name__ == "__main__":
    import logging

    logging.disable(logging.CRITICAL)
    sys.exit(main())
