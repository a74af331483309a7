"""P40: an unmodified SGLang engine offline, beside a PyTorch program that answers requests.

    sglang_probe.py [--seconds N] [--stand-in] [--out DIR]

Does SGLang start beside the library at all, is it gated, and what is left to it? `--stand-in` has programs that spin in place
of both, for the virtual GPU.
"""

import argparse
import os

import lines
import runs

# Seconds until the engine is ready: weights drawn, kernels of Triton compiled, graphs captured.
READY = 60


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--stand-in", action="store_true", help="programs that spin in place of both")
    parser.add_argument("--ready", type=float, default=READY, help="seconds until the engine is ready")
    parser.add_argument("--out", default=".")
    options = parser.parse_args()
    runs.end_politely()
    lines.machine(runs.HOME)

    def command(role):
        if role == "offline" and not options.stand_in:
            return [os.path.join(runs.HERE, "sglang_engine.py"), "offline"]
        backend = "spin" if options.stand_in else "torch"
        return [os.path.join(runs.HERE, "serve.py"), role, "--backend", backend, "--seconds", str(options.seconds)]

    with lines.Probe("P40"):
        # What nobody disturbed is the truth for the other.
        runs.Comparison("P40", command, options.seconds, options.out, options.ready).all([runs.ALONE[0], runs.TIDEGATE])


if __name__ == "__main__":
    main()
