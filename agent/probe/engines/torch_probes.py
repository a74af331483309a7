"""P14, P27, P26, P13 and P12 (Triton), in this order: PyTorch programs, alone and together, on this machine's GPU.

    torch_probes.py [--backend torch|spin] [--seconds N] [--only P13,P14]

Result lines go to $TIDEGATE_RESULTS as they are found. `--backend spin` needs no PyTorch and also runs on the virtual
GPU: it shows that the comparison works, not what PyTorch does.
"""

import argparse
import os
import subprocess
import sys
import time

import lines
import lookups
import model
import node
import runs

# Seconds until a program is ready: imports, compiled kernels, captured graphs.
READY = 90

EMPTY_KERNEL = """
import sys, time
import torch, triton
import triton.language as tl

@triton.jit
def empty(at, n: tl.constexpr):
    pass

at = torch.zeros(1, device="cuda")
def once(n):
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    for _ in range(n):
        empty[(1,)](at, 1)
    return (time.perf_counter_ns() - start) / n
for _ in range(5):
    once(200)
print(sorted(once(200) for _ in range(51))[25])
"""


def triton_launch():
    """Nanoseconds of a Triton launch without the library and with it, in turns."""
    try:
        import triton  # noqa: F401
    except ImportError as error:
        raise lines.Skip(f"no Triton here ({error})") from error
    costs = {"native": [], "hooked": []}
    with node.Node(runs.HOME) as here:
        for _ in range(3):
            for name, role in (("native", None), ("hooked", "online")):
                out = subprocess.run([sys.executable, "-c", EMPTY_KERNEL], env=here.environment(role), check=True,
                                     capture_output=True, text=True, timeout=120)
                costs[name].append(float(out.stdout.split()[-1]))
    native, hooked = (lines.percentile(costs[name], 50) for name in ("native", "hooked"))
    lines.figure("P12t", "Triton launch: native", native, "ns")
    lines.figure("P12t", "Triton launch: added by the library", hooked - native, "ns")


def decode_gaps(backend, iterations):
    """GPU idle time between decode iterations, by events on the GPU's own clock."""
    if backend != "torch":
        raise lines.Skip("decode gaps are those of PyTorch's own loop: --backend torch")
    import torch

    for shape in ("1b", "8b"):
        gpu = model.Torch(shape)
        gpu.capture()
        for name, work_ms in (("not CPU-bound", 0.0), ("2 ms of Python a step", 2.0)):
            for batch in (1, 32):
                events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
                          for _ in range(iterations)]
                for before, after in events:
                    before.record(gpu.stream)
                    gpu.decode(batch)
                    after.record(gpu.stream)
                    # The scheduler needs the token before it can plan the next step.
                    with torch.cuda.stream(gpu.stream):
                        gpu.tokens[:batch].cpu()
                    end = time.perf_counter() + work_ms / 1e3
                    while time.perf_counter() < end:
                        pass
                torch.cuda.synchronize()
                gaps = [first[1].elapsed_time(second[0]) for first, second in zip(events, events[1:])]
                steps = [before.elapsed_time(after) for before, after in events]
                head = f"{shape}, batch {batch}, {name}"
                lines.spread("P13", f"{head}: gap", gaps, "ms")
                lines.figure("P13", f"{head}: longest gap", max(gaps), "ms")
                lines.figure("P13", f"{head}: iteration p50", lines.percentile(steps, 50), "ms")
                lines.note("P13", f"{head}: a cooldown of {2 * max(gaps):.3f} ms")
        del gpu
        torch.cuda.empty_cache()


def colocation(options):
    def command(role):
        return [os.path.join(runs.HERE, "serve.py"), role, "--backend", options.backend, "--seconds",
                str(options.seconds)]

    compared = runs.Comparison("P14", command, options.seconds, options.out, options.ready)
    # What counts first: a machine may be taken away.
    compared.all([runs.UNCONTROLLED, runs.TIDEGATE, *runs.ALONE, runs.LAUNCH_GATE])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["torch", "spin"], default="torch")
    parser.add_argument("--seconds", type=float, default=35)
    parser.add_argument("--iterations", type=int, default=1500)
    parser.add_argument("--only", default="P14,P27,P26,P13,P12t")
    parser.add_argument("--ready", type=float, default=READY, help="seconds until a program is ready")
    parser.add_argument("--out", default=".")
    options = parser.parse_args()
    only = options.only.split(",")
    lines.machine(runs.HOME)
    if "P14" in only:
        with lines.Probe("P14"):
            colocation(options)
    if "P27" in only:
        with lines.Probe("P27"):
            lookups.unseen(options)
    if "P26" in only:
        with lines.Probe("P26"):
            lookups.lookups(options)
    if "P13" in only:
        with lines.Probe("P13"):
            decode_gaps(options.backend, options.iterations)
    if "P12t" in only:
        with lines.Probe("P12t"):
            triton_launch()


if __name__ == "__main__":
    main()
