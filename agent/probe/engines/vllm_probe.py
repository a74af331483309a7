"""P16: two unmodified vLLM engines on one GPU: alone, together without control, and with Tidegate. P35: where the time of
their requests goes, by conditions within one pair of engines (blocks.py).

    vllm_probe.py [--probes P16,P35] [--seconds N] [--trace FILE] [--compiled] [--pool SIZE] [--invariant] [--out DIR]

Online is alone twice, once with the library and the agent beside it, and once with an offline engine that is paused: what
of a difference is noise, theirs, and the host side of an engine that is stopped.

Where TIDEGATE_PLUGIN names a folder with the plugin's entry point, a run has the online engine say which requests are in
flight. With --pool, one more shares so much of the GPU's memory between the two: what both allocate, their weights
included, has to fit into it but for the KV caches, which grow and shrink. With --invariant what vLLM answers does not
depend on what else is in a batch (VLLM_BATCH_INVARIANT), and the offline engine's answers of all runs have to be the same.
"""

import argparse
import json
import os

import blocks
import lines
import runs


# Seconds until an engine is ready: weights drawn, graphs captured; minutes where it compiles.
READY = 300


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probes", default="P16", help="P16, P35 or both, joined by a comma")
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--block-seconds", type=float, default=20, help="of a block of P35")
    parser.add_argument("--rate", type=float, default=5, help="requests a second in a burst of P35")
    parser.add_argument("--trace")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--pool", help="memory to share, such as 96GiB")
    parser.add_argument("--invariant", action="store_true")
    parser.add_argument("--only", help="runs, as they are called or as their names begin; _ may stand for a space")
    parser.add_argument("--out", default=".")
    parser.add_argument("--ready", type=float, default=READY, help="seconds until an engine is ready")
    # What shows here, on the virtual GPU, that the comparison works: another program in vLLM's place.
    parser.add_argument("--engine", default=os.path.join(runs.HERE, "vllm_engine.py"))
    parser.add_argument("--engine-arguments", default="")
    parser.add_argument("--stand-in", action="store_true", help="programs that spin in vLLM's place")
    parser.add_argument("--offline-share", help="of what the offline engine is shown of the memory")
    parser.add_argument("--long", help="long prompts that the online engine gets besides")
    options = parser.parse_args()
    if options.stand_in:
        options.engine, options.engine_arguments = os.path.join(runs.HERE, "serve.py"), "--backend spin"
    if options.invariant:
        os.environ["VLLM_BATCH_INVARIANT"] = "1"
    runs.end_politely()
    lines.machine(runs.HOME)

    probes = options.probes.split(",")

    def command(role, seconds=options.seconds, *more):
        arguments = [options.engine, role, "--seconds", str(seconds), *options.engine_arguments.split(), *more]
        if options.stand_in:
            return arguments
        for name in ("trace", "offline_share", "long"):
            if getattr(options, name):
                arguments += [f"--{name.replace('_', '-')}", getattr(options, name)]
        return arguments + (["--compiled"] if options.compiled else [])

    if "P35" in probes:
        with lines.Probe("P35"):
            blocks.run(options, lambda role: command(role, options.block_seconds, "--rate", str(options.rate)))
    if "P16" in probes:
        with lines.Probe("P16"):
            two_engines(options, command)


def two_engines(options, command):
    compared = runs.Comparison("P16", command, options.seconds, options.out, options.ready)
    # What counts first: a machine may be taken away, and engines are slow to start.
    chosen = [runs.ALONE[0], runs.TIDEGATE, runs.UNCONTROLLED, runs.ALONE[1], runs.AGAIN, runs.WATCHED, runs.PAUSED]
    if os.environ.get("TIDEGATE_PLUGIN"):
        chosen[2:2] = [runs.HINTED, runs.UNANNOUNCED]
    if options.pool:
        chosen.insert(2, runs.shared(options.pool))
    only = options.only.replace("_", " ").split(",") if options.only else [""]
    # What nobody disturbed is the truth for the others.
    names = {run[0] for run in chosen}
    chosen = [run for run in chosen if any(run[0] == one or one not in names and run[0].startswith(one) for one in only)]
    if options.invariant:
        chosen.sort(key=lambda run: run[0] != "offline alone")
    compared.all(chosen)
    if options.invariant:
        same(os.path.join(options.out, "runs.jsonl"))


def same(path):
    """Compares what the offline engine answered in each run with what it answered alone."""
    with open(path, encoding="utf-8") as file:
        answered = {run["name"]: run["offline"].get("answers") for run in map(json.loads, file)}
    truth = answered.pop("offline alone")
    for name, answers in answered.items():
        if answers:
            both = list(zip(truth, answers, strict=False))
            differing = sum(one != other for one, other in both)
            lines.figure("P16", f"{name}: answers compared", len(both))
            lines.figure("P16", f"{name}: answers that differ", differing)
            if differing or not both:
                raise RuntimeError(f"{name}: {differing} of {len(both)} answers differ from those of the engine alone")


if __name__ == "__main__":
    main()
