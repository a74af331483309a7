"""Programs of the second day's probes. They speak as serve.py does; nothing in them knows Tidegate.

    loads.py victim --backend torch|spin          kernels of one kind, without a pause; a line names the next kind
    loads.py pulse --every S --count N            short kernels by the driver's API alone, each waited for
    loads.py prefill --backend torch|spin         one prefill each, so long after a short kernel; then decode steps
"""

import argparse
import json
import select
import sys
import time

import model
import serve

#: Milliseconds of a short kernel.
SHORT_MS = 0.02


class TorchLoad:
    """Kernels as engines launch them, of a few milliseconds each."""

    def __init__(self):
        import torch

        self.torch = torch
        torch.backends.cuda.enable_cudnn_sdp(False)
        kind = {"device": "cuda", "dtype": torch.bfloat16}
        self.left, self.right = (torch.randn(8192, 8192, **kind) for _ in range(2))
        self.out = torch.empty(8192, 8192, **kind)
        self.heads = [torch.randn(1, 32, 8192, 128, **kind) for _ in range(3)]
        self.bytes = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(2)]

    def launch(self, kind):
        if kind == "gemm":
            self.torch.matmul(self.left, self.right, out=self.out)
        elif kind == "attention":
            self.torch.nn.functional.scaled_dot_product_attention(*self.heads, is_causal=True)
        else:
            self.bytes[0].copy_(self.bytes[1])

    def wait(self):
        self.torch.cuda.synchronize()


class SpinLoad:
    """Kernels that spin in their place."""

    MS = {"gemm": 1.6, "attention": 2.5, "copy": 0.6}

    def __init__(self):
        self.gpu = model.make("spin", "8b")

    def launch(self, kind):
        self.gpu.spin(self.MS[kind])

    def wait(self):
        self.gpu.wait()


#: What a victim may be told to do.
KINDS = tuple(SpinLoad.MS)


def victim(backend):
    """Launches four of a kind at a time until it is told another kind, or to stop. Says each kind once it is at it."""
    load = TorchLoad() if backend == "torch" else SpinLoad()
    for kind in KINDS:
        # The first of a kind pays for what is done once.
        load.launch(kind)
    load.wait()
    print("ready", flush=True)
    serve.begin(sys.stdin.readline())
    kind, told, launched = KINDS[0], None, 0
    while True:
        if select.select([sys.stdin], [], [], 0)[0]:
            kind = sys.stdin.readline().strip()
            if kind not in KINDS:
                break
        for _ in range(4):
            load.launch(kind)
        load.wait()
        launched += 4
        if told != kind:
            told = kind
            print(kind, flush=True)
    print(json.dumps({"launched": launched}), flush=True)


def pulse(every, count):
    """Seconds from the launch of each short kernel to its end, as the host sees it."""
    gpu = model.make("spin", "8b")
    for _ in range(20):
        gpu.spin(SHORT_MS)
        gpu.wait()
    print("ready", flush=True)
    start = serve.begin(sys.stdin.readline())
    while start is not None:
        waits = []
        for nth in range(count):
            time.sleep(max(0.0, start + nth * every - time.monotonic()))
            before = time.monotonic()
            gpu.spin(SHORT_MS)
            gpu.wait()
            waits.append(time.monotonic() - before)
        print(json.dumps({"waits_s": waits}), flush=True)
        start = serve.begin(sys.stdin.readline())


def took(gpu, launch):
    """Seconds that the GPU worked on what `launch` launches, by its own clock where there is one for it."""
    if not hasattr(gpu, "torch"):
        before = time.monotonic()
        launch()
        gpu.wait()
        return time.monotonic() - before
    events = [gpu.torch.cuda.Event(enable_timing=True) for _ in range(2)]
    with gpu.torch.cuda.stream(gpu.stream):
        events[0].record()
    launch()
    with gpu.torch.cuda.stream(gpu.stream):
        events[1].record()
    gpu.wait()
    return events[0].elapsed_time(events[1]) / 1e3


def prefill(backend, shape, delays, count, idle, tokens, steps):
    """After each pause a short kernel, which has whoever else works on the GPU stopped; so long after its end a prefill.
    Then decode steps, one after the other."""
    gpu = model.make(backend, shape)
    short = model.make("spin", "8b")
    for _ in range(3):
        gpu.prefill(tokens)
        gpu.decode(1)
        gpu.wait()
    print("ready", flush=True)
    start = serve.begin(sys.stdin.readline())
    while start is not None:
        prefills = {}
        for _ in range(count):
            for delay in delays:
                time.sleep(idle)
                short.spin(SHORT_MS)
                short.wait()
                end = time.monotonic() + delay
                # Asleep, a processor may take as long to wake as what is asked about.
                while time.monotonic() < end:
                    pass
                prefills.setdefault(delay, []).append(took(gpu, lambda: gpu.prefill(tokens)))
        decodes = [took(gpu, lambda: gpu.decode(1)) for _ in range(steps)]
        print(json.dumps({"prefills_s": list(prefills.items()), "decodes_s": decodes}), flush=True)
        start = serve.begin(sys.stdin.readline())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=["victim", "pulse", "prefill"])
    parser.add_argument("--backend", choices=["torch", "spin"], default="spin")
    parser.add_argument("--shape", choices=list(model.SHAPES), default="8b")
    parser.add_argument("--every", type=float, default=0.06)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--delays-ms", default="0,1,10,100")
    parser.add_argument("--idle", type=float, default=0.1, help="seconds before each prefill in which others may work")
    parser.add_argument("--tokens", type=int, default=512, help="of a prefill")
    parser.add_argument("--steps", type=int, default=500, help="decode steps at the end")
    options = parser.parse_args()
    if options.role == "victim":
        victim(options.backend)
    elif options.role == "pulse":
        pulse(options.every, options.count)
    else:
        delays = [float(ms) / 1e3 for ms in options.delays_ms.split(",")]
        prefill(options.backend, options.shape, delays, options.count, options.idle, options.tokens, options.steps)


if __name__ == "__main__":
    main()
