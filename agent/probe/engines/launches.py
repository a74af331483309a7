"""The program of P27: works at a word and says what the device did of it.

Says its process id when it is ready, reads a line, works, and writes one JSON object: `calls`, those that put work
on the device by kind, as the profiler found them (CUPTI's records of the device, joined by their correlation), or as
this program made them.
"""

import argparse
import json
import os
import sys

import model


def torch_work():
    import torch

    a = torch.randn(512, 512, device="cuda")
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(3):
            (a @ a).relu()
    stream.synchronize()
    with torch.cuda.graph(graph):
        b = (a @ a).relu()
        b.sum()

    def work():
        for _ in range(50):
            c = (a @ a).relu()
            c.sum().item()
            a.cpu()
            torch.zeros_like(a)
        with torch.cuda.stream(stream):
            for _ in range(20):
                torch.nn.functional.softmax(a, dim=-1)
        for _ in range(30):
            graph.replay()
        torch.cuda.synchronize()

    def profiled():
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            work()
        path = f"/tmp/tidegate-profile-{os.getpid()}.json"
        profile.export_chrome_trace(path)
        with open(path, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        os.unlink(path)
        device = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
        kinds = {}
        for event in device:
            kinds[event["cat"]] = kinds.get(event["cat"], 0) + 1
        # What one call set off has its correlation in common: a graph's kernels, the parts of a copy.
        calls = {}
        for event in device:
            calls.setdefault(event["args"].get("correlation"), []).append(event["cat"])
        found = {"kernel": 0, "graph": 0, "copy": 0, "fill": 0}
        for parts in calls.values():
            if len(parts) > 1 and "kernel" in parts:
                found["graph"] += 1
            else:
                found[{"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "fill"}[parts[0]]] += 1
        return {"calls": found, "on the device": kinds}

    # The profiler's first use sets things up on the device.
    profiled()
    return profiled


def spin_work():
    gpu = model.Spin("1b")
    gpu.spin(0.01)
    gpu.wait()

    def work():
        for _ in range(500):
            gpu.spin(0.01)
        gpu.wait()
        return {"calls": {"kernel": 500}, "on the device": {}}

    return work


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=["torch", "spin"], required=True)
    options = parser.parse_args()
    work = torch_work() if options.backend == "torch" else spin_work()
    print(os.getpid(), flush=True)
    if sys.stdin.readline().strip() != "go":
        return
    print(json.dumps(work()), flush=True)
    # The library is asked what it counted before this process ends.
    sys.stdin.readline()


if __name__ == "__main__":
    main()
