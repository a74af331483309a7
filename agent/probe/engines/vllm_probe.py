"""P16: two unmodified vLLM engines on one GPU: alone, together without control, and with Tidegate.

    vllm_probe.py [--seconds N] [--trace FILE] [--compiled] [--out DIR]
"""

import argparse
import os

import lines
import runs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--trace")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--out", default=".")
    # What shows here, on the virtual GPU, that the comparison works: another program in vLLM's place.
    parser.add_argument("--engine", default=os.path.join(runs.HERE, "vllm_engine.py"))
    parser.add_argument("--engine-arguments", default="")
    options = parser.parse_args()
    lines.machine(runs.HOME)

    def command(role):
        arguments = [options.engine, role, "--seconds", str(options.seconds), *options.engine_arguments.split()]
        if options.trace:
            arguments += ["--trace", options.trace]
        return arguments + (["--compiled"] if options.compiled else [])

    with lines.Probe("P16"):
        compared = runs.Comparison("P16", command, options.seconds, options.out)
        # What counts first: a machine may be taken away, and engines are slow to start.
        compared.all([runs.ALONE[0], runs.TIDEGATE, runs.UNCONTROLLED, runs.ALONE[1]])


if __name__ == "__main__":
    main()
