"""P36c, E7, P36at and P39: what a second day on a card asks of PyTorch programs, for torch_probes.py."""

import contextlib
import json
import os
import time

import lines
import loads
import node
import runs

# Shorter than the pauses of the online programs here, so that each of their kernels is an edge; and longer than them.
SETTINGS = '[gate]\ncooldown = "20ms"\n'
LASTING = '[gate]\ncooldown = "150ms"\n'
# What `CUDA_DEVICE_MAX_CONNECTIONS` is set to; None: it is not set.
CONNECTIONS = ("1", "2", "8", None)
# How long a job may take to say that it goes on, in seconds, and how long each way of sharing is watched.
PATIENCE = 30


def program(here, stack, options, role, preloaded, *arguments, script="loads.py", **more):
    """A program that is ready, and ends with the block."""
    log = stack.enter_context(open(os.path.join(options.out, f"second-day-{role}.log"), "a+", encoding="utf-8"))
    one = runs.Program(here, lambda _: [os.path.join(runs.HERE, script), *arguments], role, preloaded, log, **more)
    stack.callback(node.stop, one.process)
    one.hear("being ready", options.ready)
    return one


def begin(one, later=0.2):
    one.say(repr(time.monotonic() + later))


def figures(one, seconds):
    return json.loads(one.hear("figures", seconds + runs.FIGURES))


def edges(here, since):
    """Seconds of each stop since an instant, from the edge until the driver's call had returned."""
    return [off - edge for edge, off in runs.edges(here.events()) if edge >= since]


def beside_kernels(options):
    """Stops beside GEMM, attention and copy kernels, and online's first kernel, with and without control."""
    count = max(10, int(options.seconds * 3))
    seconds = 0.06 * count
    pulse = ("pulse", "--every", "0.06", "--count", str(count))
    with node.Node(runs.HOME, "best", settings=SETTINGS) as here, contextlib.ExitStack() as stack:
        victim = program(here, stack, options, "offline", True, "victim", "--backend", options.backend)
        online = program(here, stack, options, "online", True, *pulse)
        bare = program(here, stack, options, "bare", False, *pulse)
        begin(bare)
        lines.spread("P36c", "online's kernel alone", figures(bare, seconds)["waits_s"], "us", 1e6)
        begin(victim)
        victim.hear("its first kind", PATIENCE)
        for kind in loads.KINDS:
            if kind != loads.KINDS[0]:
                victim.say(kind)
                victim.hear(f"kind {kind}", PATIENCE)
            # Without the library a kernel is no edge.
            for name, one in (("no control", bare), ("Tidegate", online)):
                since = time.monotonic()
                begin(one)
                lines.spread("P36c", f"{kind}, {name}: online's kernel", figures(one, seconds)["waits_s"], "us", 1e6)
                stops = edges(here, since)
                if one is online:
                    lines.figure("P36c", f"{kind}: stops", len(stops))
                    lines.spread("P36c", f"{kind}: call returned", stops, "us", 1e6)
                    if not stops:
                        raise RuntimeError(f"{kind}: offline was not stopped once; the agent: {here.log()}")
        node.report_gate(lines, "P36c", "at the end", here.status())


def after_a_stop(options):
    """A prefill's time on the GPU, 0, 1, 10 and 100 ms after offline was stopped, beside the same with offline paused."""
    count = max(3, int(options.seconds / 2))
    prefill = ("prefill", "--backend", options.backend, "--count", str(count), "--idle", "0.3", "--steps", str(30 * count))
    with node.Node(runs.HOME, "best", settings=LASTING) as here, contextlib.ExitStack() as stack:
        victim = program(here, stack, options, "offline", True, "victim", "--backend", options.backend)
        online = program(here, stack, options, "online", True, *prefill)
        begin(victim)
        victim.hear("its first kind", PATIENCE)
        medians = {}
        for name, order in (("offline paused", here.pause), ("after a stop", here.resume)):
            order()
            since = time.monotonic()
            begin(online)
            said = figures(online, 4 * options.seconds)
            for delay, each in said["prefills_s"]:
                head = f"prefill {1e3 * delay:g} ms after its first kernel, {name}"
                lines.spread("E7", head, each, "ms", 1e3)
                medians.setdefault(delay, {})[name] = lines.percentile(each, 50)
            lines.spread("E7", f"decode step, {name}", said["decodes_s"], "ms", 1e3)
            lines.figure("E7", f"{name}: stops", len(edges(here, since)))
        for delay, found in medians.items():
            later = found["after a stop"] - found["offline paused"]
            lines.figure("E7", f"prefill {1e3 * delay:g} ms after a stop: longer by", 1e3 * later, "ms")


def connections(options):
    """Offline's own throughput by how many connections it may have."""

    def command(role):
        return [os.path.join(runs.HERE, "serve.py"), role, "--backend", options.backend]

    seconds = max(1.0, options.seconds / 3)
    compared = runs.Comparison("P36at", command, seconds, options.out, options.ready)
    compared.all([(f"offline alone, {f'{most} connections' if most else 'not set'}", ["offline"], None, None, False,
                   {"CUDA_DEVICE_MAX_CONNECTIONS": most}) for most in CONNECTIONS])


def shares(options):
    """Two offline programs of weights 1 and 3 beside online, by each way of sharing; then four that take turns."""
    weights = {"one": 1, "three": 3, "third": 1, "fourth": 1}
    settings = SETTINGS + f'[[identity.rules]]\nuid = {os.getuid()}\nrole = "offline"\nweight = 3\n'
    with node.Node(runs.HOME, "best", settings=settings) as here, contextlib.ExitStack() as stack:
        beats = {name: os.path.join(here.dir.name, f"beat-{name}") for name in weights}

        def done(name):
            return os.path.getsize(beats[name]) if os.path.exists(beats[name]) else 0

        # Prefills longer than a time slice: who has one launched at a time has its slice used up.
        def start(name):
            one = program(here, stack, options, name, True, "offline", "--backend", options.backend, "--beat", beats[name],
                          "--shape", "1b", "--tokens", "8192", script="serve.py", TIDEGATE_ROLE="offline", TIDEGATE_JOB=name,
                          TIDEGATE_WEIGHT=str(weights[name]))
            begin(one, 0)

        def watch(mode, names):
            here.set(f"fair.mode={mode}")
            time.sleep(min(2.0, options.seconds / 4))
            before = {name: done(name) for name in names}
            time.sleep(options.seconds)
            made = {name: done(name) - before[name] for name in names}
            total, due = sum(made.values()), sum(weights[name] for name in names)
            head = f"{len(names)} jobs, {mode}" if len(names) > 1 else "alone"
            lines.figure("P39", f"{head}: prefills", total)
            if not total:
                raise RuntimeError(f"{head}: no offline job did anything; the agent: {here.log()}")
            off = 0.0
            for name in names:
                share, wanted = made[name] / total, weights[name] / due
                lines.figure("P39", f"{head}: share of {name} (weight {weights[name]})", 100 * share, "%")
                off = max(off, abs(share / wanted - 1))
            lines.figure("P39", f"{head}: farthest from its weight", 100 * off, "%")
            return off

        # Gated from their first launch they would not get ready beside online.
        start("one")
        watch("turns", ["one"])
        start("three")
        online = program(here, stack, options, "online", True, "online", "--backend", options.backend, "--seconds",
                         str(60 + 8 * options.seconds), script="serve.py")
        begin(online)
        turns = watch("turns", ["one", "three"])
        slices = watch("slices", ["one", "three"])
        watch("together", ["one", "three"])
        here.set("fair.mode=turns")
        start("third")
        start("fourth")
        watch("turns", list(weights))
        lines.guess("P39", "two jobs that take turns get the GPU by their weights, within 3 %", turns <= 0.03)
        lines.guess("P39", "two jobs that share by time slices get the GPU by their weights, within 5 %", slices <= 0.05)
        node.report_gate(lines, "P39", "at the end", here.status())
