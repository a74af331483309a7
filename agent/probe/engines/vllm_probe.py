"""P16: two unmodified vLLM engines on one GPU: alone, together without control, and with Tidegate.

    vllm_probe.py [--seconds N] [--trace FILE] [--compiled] [--pool SIZE] [--out DIR]

Where TIDEGATE_PLUGIN names a folder with the plugin's entry point, a run has the online engine say which requests are in
flight. With --pool, one more shares so much of the GPU's memory between the two: what both allocate, their weights
included, has to fit into it but for the KV caches, which grow and shrink.
"""

import argparse
import os

import lines
import runs


# Seconds until an engine is ready: weights drawn, graphs captured; minutes where it compiles.
READY = 300


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--trace")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--pool", help="memory to share, such as 96GiB")
    parser.add_argument("--only", help="runs, as their names begin")
    parser.add_argument("--out", default=".")
    parser.add_argument("--ready", type=float, default=READY, help="seconds until an engine is ready")
    # What shows here, on the virtual GPU, that the comparison works: another program in vLLM's place.
    parser.add_argument("--engine", default=os.path.join(runs.HERE, "vllm_engine.py"))
    parser.add_argument("--engine-arguments", default="")
    options = parser.parse_args()
    runs.end_politely()
    lines.machine(runs.HOME)

    def command(role):
        arguments = [options.engine, role, "--seconds", str(options.seconds), *options.engine_arguments.split()]
        if options.trace:
            arguments += ["--trace", options.trace]
        return arguments + (["--compiled"] if options.compiled else [])

    with lines.Probe("P16"):
        compared = runs.Comparison("P16", command, options.seconds, options.out, options.ready)
        # What counts first: a machine may be taken away, and engines are slow to start.
        chosen = [runs.ALONE[0], runs.TIDEGATE, runs.UNCONTROLLED, runs.ALONE[1]]
        if os.environ.get("TIDEGATE_PLUGIN"):
            chosen[2:2] = [runs.HINTED, runs.UNANNOUNCED]
        if options.pool:
            chosen.insert(2, runs.shared(options.pool))
        only = options.only.split(",") if options.only else [""]
        compared.all([run for run in chosen if run[0].startswith(tuple(only))])


if __name__ == "__main__":
    main()
