"""P14, P33, P32, P34, P27, P26, P13 and P12 (Triton), in this order: PyTorch programs, alone and together, on this machine's
GPU. P36c, E7, P36at and P39 (second_day.py) run where they are named.

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
import second_day

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
                # Triton reads a kernel's source from its file.
                path = os.path.join(here.dir.name, "empty.py")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(EMPTY_KERNEL)
                out = subprocess.run([sys.executable, path], env=here.environment(role), check=False, capture_output=True,
                                     text=True, timeout=120)
                if out.returncode:
                    raise RuntimeError(f"{name}: {out.stderr[-800:]}")
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
    compared.all([runs.UNCONTROLLED, runs.TIDEGATE, *runs.ALONE, runs.LAUNCH_GATE, runs.AGAIN])


def beside(options):
    """What offline's host side costs online: a processor on which it polls for the GPU, also while it is stopped."""

    def comparison(*offline):
        def command(role):
            more = offline if role == "offline" else ()
            return [os.path.join(runs.HERE, "serve.py"), role, "--backend", options.backend, "--seconds",
                    str(options.seconds), *more]

        return runs.Comparison("P33", command, options.seconds, options.out, options.ready)

    alone = runs.ALONE[:1]
    poller = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        comparison().all([("online beside a process that polls", *alone[0][1:])])
    finally:
        node.stop(poller)
    comparison("--wait", "block").all([("Tidegate, offline sleeps where it waits", *runs.TIDEGATE[1:])])
    comparison().all([("online alone", *alone[0][1:]), ("Tidegate, offline polls where it waits", *runs.TIDEGATE[1:])])


def crash(options):
    """The agent is killed while it holds offline back. What offline has launched ends within a second or two, since its
    own library enables its channels; then it waits for the next agent, if that is not there before."""
    for name in ("a new agent at once", "no agent for a while"):
        programs = {}
        with node.Node(runs.HOME, "best") as here, open(os.path.join(options.out, "P32.log"), "a+", encoding="utf-8") as log:
            beat = os.path.join(here.dir.name, "beat")

            def beats(beat=beat):
                return os.path.getsize(beat) if os.path.exists(beat) else 0

            def until(what, limit, told):
                end = time.monotonic() + limit
                while not what():
                    if time.monotonic() > end:
                        raise RuntimeError(f"{told}: not in {limit:.0f} s; the agent: {here.log()}")
                    time.sleep(0.002)

            def still(seconds, beats=beats):
                before = beats()
                time.sleep(seconds)
                return beats() == before

            def command(role, beat=beat):
                more = ["--beat", beat] if role == "offline" else ["--seconds", "60"]
                return [os.path.join(runs.HERE, "serve.py"), role, "--backend", options.backend, *more]

            try:
                for role in ("offline", "online"):
                    programs[role] = runs.Program(here, command, role, True, log)
                    programs[role].hear("being ready", options.ready)
                programs["offline"].say(repr(time.monotonic()))
                until(lambda: beats() > 3, 30, "offline's first prefills")
                programs["online"].say(repr(time.monotonic()))
                until(lambda: still(0.5), 30, "a closed gate")
                here.agent.kill()
                here.agent.wait()
                node.stop(programs["online"].process)
                held, begun = beats(), time.monotonic()

                def took(what, begun=begun, name=name):
                    lines.figure("P32", f"{name}: {what}", (time.monotonic() - begun) * 1e3, "ms")

                if name == "no agent for a while":
                    until(lambda held=held: beats() > held, 10, "what offline had launched has ended, without an agent")
                    took("until offline's prefill had ended")
                    # It may have had launches of the next one through.
                    until(lambda: still(1.0), 10, "offline waits for an agent")
                    held, begun = beats(), time.monotonic()
                here.start()
                took("until the agent served, from its start", begun)
                until(lambda held=held: beats() > held + 5, 30, "offline going on beside a new agent")
                took("until offline had done six more prefills", begun)
            finally:
                for program in programs.values():
                    node.stop(program.process)
                here.keep_log(os.path.join(options.out, f"P32-{name.replace(' ', '-')}-agent.log"))


def late(options):
    """Two processes of one job come while online keeps the GPU: each one's channels are stopped as they are made, again
    with each that follows. They all have to go on in every pause."""
    programs = {}
    with node.Node(runs.HOME, "best") as here, open(os.path.join(options.out, "P34.log"), "a+", encoding="utf-8") as log:
        beats = [os.path.join(here.dir.name, f"beat-{nth}") for nth in (1, 2)]

        def command(role):
            more = ["--beat", role] if role in beats else ["--seconds", "60"]
            return [os.path.join(runs.HERE, "serve.py"), "offline" if role in beats else role, "--backend", options.backend,
                    *more]

        def count(beat):
            return os.path.getsize(beat) if os.path.exists(beat) else 0

        try:
            programs["online"] = runs.Program(here, command, "online", True, log)
            programs["online"].hear("being ready", options.ready)
            programs["online"].say(repr(time.monotonic()))
            for beat in beats:
                programs[beat] = runs.Program(here, command, beat, True, log, TIDEGATE_ROLE="offline", TIDEGATE_JOB="offline")
            for beat in beats:
                programs[beat].hear("being ready", options.ready)
                programs[beat].say(repr(time.monotonic()))
            # Over at least two of online's bursts.
            for nth in range(3):
                before = [count(beat) for beat in beats]
                end = time.monotonic() + 15
                while not all(count(beat) > had + 3 for beat, had in zip(beats, before, strict=True)):
                    if time.monotonic() > end:
                        raise RuntimeError(f"in round {nth} prefills went from {before} to {[count(beat) for beat in beats]} "
                                           f"in 15 s; the agent: {here.log()}")
                    time.sleep(0.02)
                time.sleep(5)
            lines.figure("P34", "preemptions", here.status()["gpus"][0]["preemptions"])
            lines.figure("P34", "prefills of both", sum(map(count, beats)))
        finally:
            for program in programs.values():
                node.stop(program.process)
            here.keep_log(os.path.join(options.out, "P34-agent.log"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["torch", "spin"], default="torch")
    parser.add_argument("--seconds", type=float, default=35)
    parser.add_argument("--iterations", type=int, default=1500)
    parser.add_argument("--only", default="P14,P33,P32,P34,P27,P26,P13,P12t")
    parser.add_argument("--ready", type=float, default=READY, help="seconds until a program is ready")
    parser.add_argument("--out", default=".")
    options = parser.parse_args()
    only = options.only.split(",")
    runs.end_politely()
    lines.machine(runs.HOME)
    probes = {
        "P14": lambda: colocation(options), "P33": lambda: beside(options), "P32": lambda: crash(options),
        "P34": lambda: late(options), "P27": lambda: lookups.unseen(options), "P26": lambda: lookups.lookups(options),
        "P13": lambda: decode_gaps(options.backend, options.iterations), "P12t": triton_launch,
        "P36c": lambda: second_day.beside_kernels(options), "E7": lambda: second_day.after_a_stop(options),
        "P36at": lambda: second_day.connections(options), "P39": lambda: second_day.shares(options),
    }
    for name, ask in probes.items():
        if name in only:
            with lines.Probe(name):
                ask()


if __name__ == "__main__":
    main()
