"""One process of P14: `online` answers requests by continuous batching, `offline` does prefill after prefill.

Both say `ready` on standard output, begin at a line on standard input (an instant of the monotonic clock) and write
what came of it as one JSON object at their end. They are ordinary programs: nothing in them knows Tidegate.
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


def schedule(seconds, seed):
    """Requests in bursts: (arrival, input tokens, output tokens). Three seconds busy, four not."""
    draw = random.Random(seed)
    at, requests = 0.0, []
    while True:
        at += draw.expovariate(2.5)
        burst, inside = divmod(at, 7.0)
        if inside > 3.0:
            at = (burst + 1) * 7.0
        if at >= seconds:
            return requests
        tokens = int(min(4096, max(64, draw.lognormvariate(6.6, 0.8))))
        answer = int(min(400, max(8, draw.lognormvariate(4.2, 0.7))))
        requests.append((at, tokens, answer))


def online(gpu, start, seconds, seed):
    waiting = [{"arrival": start + at, "input": tokens, "left": answer, "tokens": []}
               for at, tokens, answer in schedule(seconds, seed)]
    running, done = [], []
    while waiting or running:
        now = time.monotonic()
        if waiting and waiting[0]["arrival"] <= now and len(running) < BATCH:
            request = waiting.pop(0)
            gpu.prefill(request["input"])
            gpu.wait()
            running.append(request)
            stepped = [request]
        elif running:
            gpu.decode(len(running))
            gpu.wait()
            stepped = running
        else:
            time.sleep(max(0.0, waiting[0]["arrival"] - now))
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
    return {"requests": len(done), "spans": spans, "ttft_s": [t for t, _ in each], "tpot_s": [t for _, t in each]}


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
    # What is done once: kernels are compiled, graphs captured, memory is taken for the longest, libraries choose their
    # kernels for each length.
    if options.role == "offline":
        gpu.prefill(options.tokens)
    else:
        for tokens in sorted({tokens for _, tokens, _ in schedule(options.seconds, options.seed)} | {512}, reverse=True):
            gpu.prefill(tokens)
        gpu.decode(1)
    gpu.wait()
    print("ready", flush=True)
    start = float(sys.stdin.readline())
    time.sleep(max(0.0, start - time.monotonic()))
    if options.role == "online":
        result = online(gpu, start, options.seconds, options.seed)
    else:
        result = offline(gpu, start, options.tokens, options.beat)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
