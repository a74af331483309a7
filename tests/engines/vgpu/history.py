"""What the virtual GPU's own history says of the runs of `scripts/engines --served`.

    history.py GPU_DIR OUT_DIR

`GPU_DIR/history.bin` holds records as `tests/vgpu/src/history.rs` writes them, `OUT_DIR/runs.jsonl` when each run began
and ended and what its programs said. Nothing here comes from the agent or the library.
"""

import json
import struct
import sys
from pathlib import Path

RECORD = struct.Struct("<QIIIIIIQQ")
KERNEL_START, DISABLE_END, ENABLE_END = 1, 6, 7


def records(folder):
    """(at, kind, pid, client, object), by time."""
    whole = (folder / "history.bin").read_bytes()
    found = [(at, kind, pid, client, thing)
             for at, kind, _gpu, pid, client, thing, *_ in
             RECORD.iter_unpack(whole[:len(whole) // RECORD.size * RECORD.size])
             if kind in (KERNEL_START, DISABLE_END, ENABLE_END)]
    return sorted(found, key=lambda record: record[0])


def busy(spans):
    """Stretches of time in which a request was in flight."""
    merged = []
    for begin, _first, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return merged


def ahead(history):
    """For each time that online came back to a GPU that was offline's: how long before its first kernel the last of
    offline's channels was off (ns; less than 0: after it)."""
    gated = {pid for _, kind, pid, *_ in history if kind == DISABLE_END}
    enabled, opened, waiting, margins, off = set(), False, [], [], None
    for at, kind, pid, client, thing in history:
        if kind == ENABLE_END:
            enabled.add((client, thing))
            opened = True
        elif kind == DISABLE_END and (client, thing) in enabled:
            enabled.discard((client, thing))
            if not enabled:
                off = at
                margins += [begun - at for begun in waiting]
                waiting.clear()
        elif kind == KERNEL_START and pid not in gated and opened:
            opened = False
            if enabled:
                waiting.append(at)
            elif off is not None:
                margins.append(at - off)
    return margins + [float("-inf")] * len(waiting)


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def main():
    history = records(Path(sys.argv[1]))
    runs = [json.loads(line) for line in (Path(sys.argv[2]) / "runs.jsonl").read_text().splitlines()]
    # What offline makes of a GPU of its own, in tokens a second.
    alone = [run for run in runs if run["offline"] and not run["spans"]]
    for run in runs:
        if not run["name"].startswith("Tidegate"):
            continue
        window = [record for record in history if run["start"] * 1e9 <= record[0] < run["end"] * 1e9]
        margins = ahead(window)
        if margins:
            first = sum(margin >= 0 for margin in margins)
            print(f"GPU   {run['name']}: online came back to an open gate {len(margins)} times; the last channel "
                  f"was off before its first kernel {first} times ({100 * first / len(margins):.0f} %), "
                  f"median {quantile(margins, 0.5) / 1e3:.0f} us before, least {min(margins) / 1e3:.0f} us")
        taken = sum(min(end, run["end"]) - begin for begin, end in busy(run["spans"]))
        idle = 1 - taken / (run["end"] - run["start"])
        print(f"GPU   {run['name']}: no request in flight {100 * idle:.1f} % of the time")
        if not run["offline"].get("tokens"):
            continue
        for other in alone:
            rate = [each["offline"]["tokens"] / each["offline"]["seconds"] for each in (run, other)]
            print(f"GPU   {run['name']}: offline tokens of what that time allows: {rate[0] / rate[1] / idle:.3f}")


if __name__ == "__main__":
    main()
