"""One process of P14: `online` answers requests by continuous batching, `offline` does prefill after prefill.

Both say `ready` on standard output, begin at a line on standard input (an instant of the monotonic clock) and write
what came of it as one JSON object at their end. `online` does the same again at each further instant that it reads, until
another word or the end of its input. They are ordinary programs: nothing in them knows Tidegate.
"""

import argparse
import json
import os
import random
import select
import sys
import time

import model

BATCH = model.BATCHES[-1]


#: Requests a second in a burst.
RATE = 2.5


def schedule(seconds, seed, rate=RATE):
    """Requests in bursts: (arrival, input tokens, output tokens). Three seconds busy, four not."""
    draw = random.Random(seed)
    at, requests = 0.0, []
    while True:
        at += draw.expovariate(rate)
        burst, inside = divmod(at, 7.0)
        if inside > 3.0:
            at = (burst + 1) * 7.0
        if at >= seconds:
            return requests
        tokens = int(min(4096, max(64, draw.lognormvariate(6.6, 0.8))))
        answer = int(min(400, max(8, draw.lognormvariate(4.2, 0.7))))
        requests.append((at, tokens, answer))


def online(gpu, start, requests):
    coming = [{"arrival": start + at, "input": tokens, "left": answer, "tokens": []} for at, tokens, answer in requests]
    waiting, running, done = [], [], []
    while coming or waiting or running:
        now = time.monotonic()
        while coming and coming[0]["arrival"] <= now:
            waiting.append(coming.pop(0))
            waiting[-1]["queued"] = now
        if waiting and len(running) < BATCH:
            request = waiting.pop(0)
            request["scheduled"] = time.monotonic()
            gpu.prefill(request["input"])
            gpu.wait()
            running.append(request)
            stepped = [request]
        elif running:
            gpu.decode(len(running))
            gpu.wait()
            stepped = running
        else:
            time.sleep(max(0.0, coming[0]["arrival"] - now))
            continue
        now = time.monotonic()
        for request in stepped:
            request["tokens"].append(now)
            request["left"] -= 1
        done += [request for request in running if request["left"] <= 0]
        running = [request for request in running if request["left"] > 0]
    each = [(r["tokens"][0] - r["arrival"],
             (r["tokens"][-1] - r["tokens"][0]) / max(1, len(r["tokens"]) - 1)) for r in done]
    spans = [[r["arrival"], r["tokens"][0], r["tokens"][-1]] for r in done]
    # Here the engine's core and its front end are one.
    stamps = [[r["arrival"] - start, r["arrival"], r["queued"], r["scheduled"], r["tokens"][0], r["tokens"][0]] for r in done]
    return {"requests": len(done), "spans": spans, "stamps": stamps, "ttft_s": [t for t, _ in each],
            "tpot_s": [t for _, t in each]}


def begin(line):
    """The instant that a line names, once it has come; None: it names none."""
    try:
        start = float(line)
    except ValueError:
        return None
    time.sleep(max(0.0, start - time.monotonic()))
    return start


def offline(gpu, start, tokens, beat):
    """Until standard input says stop. The file `beat` grows by a byte with each prefill."""
    done = 0
    with open(beat or os.devnull, "ab", buffering=0) as file:
        while not select.select([sys.stdin], [], [], 0)[0]:
            gpu.prefill(tokens)
            gpu.wait()
            done += tokens
            file.write(b".")
    return {"tokens": done, "seconds": time.monotonic() - start}


def processors(text):
    """Numbers of processors in the kernel's words: `0-3,8`."""
    found = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["online", "offline"])
    parser.add_argument("--backend", choices=["torch", "spin"], required=True)
    parser.add_argument("--shape", choices=list(model.SHAPES), default="8b")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=RATE, help="requests a second in a burst")
    parser.add_argument("--wait", choices=["spin", "block"], default="spin", help="how the host waits for the GPU")
    parser.add_argument("--beat", help="file that grows by a byte with each offline prefill")
    parser.add_argument("--cpus", help="processors to run on, such as 0-7")
    parser.add_argument("--tokens", type=int, default=4096, help="of an offline prefill")
    options = parser.parse_args()
    if options.cpus:
        os.sched_setaffinity(0, processors(options.cpus))
    if options.wait == "block":
        model.block()
    gpu = model.make(options.backend, options.shape)
    requests = schedule(options.seconds, options.seed, options.rate)
    # What is done once: kernels are compiled, graphs captured, memory is taken for the longest, libraries choose their
    # kernels for each length.
    if options.role == "offline":
        gpu.prefill(options.tokens)
    else:
        for tokens in sorted({tokens for _, tokens, _ in requests} | {512}, reverse=True):
            gpu.prefill(tokens)
        gpu.decode(1)
    gpu.wait()
    print("ready", flush=True)
    start = begin(sys.stdin.readline())
    if options.role == "offline":
        print(json.dumps(offline(gpu, start, options.tokens, options.beat)), flush=True)
        return
    while start is not None:
        print(json.dumps(online(gpu, start, requests)), flush=True)
        start = begin(sys.stdin.readline())


if __name__ == "__main__":
    main()
