"""Whether what `wheels.py --lean` left over is enough: unpacks its slices as a machine with a GPU does, and imports what the
probes load of it, each name in a process of its own.

    imports.py SLICES --python PYTHON [--driver LIBCUDA]

SLICES is what `wheels.py --out` made. PYTHON is one that has what that machine has, its torch above all. Some kernels are
linked against libcuda.so.1, which no machine without a GPU has: LIBCUDA is one, and the virtual GPU's is enough
(target/debug/libcuda.so). Nothing is computed, and no GPU is needed.

Exit codes: 0 all names are imported, 1 one is not (its last line is printed), 2 the slices cannot be put together.
"""

import argparse
import glob
import os
import subprocess
import sys
import tempfile

# What the probes and the plugin load, by the first package of a bundle. vLLM and SGLang import their kernels only once they
# find a GPU, so those are named here too.
USED = {
    "vllm": [
        "vllm", "vllm.LLM", "vllm.SamplingParams", "vllm.engine.arg_utils", "vllm.v1.engine.async_llm", "vllm.v1.engine.core",
        "vllm.platforms.cuda", "vllm._C_stable_libtorch", "vllm._custom_ops", "vllm.vllm_flash_attn._vllm_fa3_C",
        "vllm.v1.attention.backends.flash_attn", "vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu_worker",
        "vllm.model_executor.models.llama", "vllm.lora.request", "peft",
    ],
    "sglang": [
        "sglang", "sglang.Engine", "sgl_kernel", "sglang.srt.managers.scheduler", "sglang.srt.managers.tp_worker",
        "sglang.srt.model_executor.model_runner", "sglang.srt.layers.attention.triton_backend", "sglang.srt.models.llama",
    ],
}
# What takes its kernels at its import by the GPU that PyTorch shows it: for so long it is shown a Hopper.
BY_GPU = {"sglang": "sgl_kernel"}
# Imports a module, or a name of one.
IMPORT = """
import importlib, sys, types, unittest.mock
name, *by_gpu = sys.argv[1:]
for module in by_gpu:
    import torch
    hopper = types.SimpleNamespace(major=9, minor=0, multi_processor_count=132, name="NVIDIA H200")
    said = dict(is_available=lambda: True, current_device=lambda: 0, get_device_properties=lambda *_: hopper,
                get_device_capability=lambda *_: (9, 0))
    with unittest.mock.patch.multiple(torch.cuda, **said):
        importlib.import_module(module)
try:
    importlib.import_module(name)
except ModuleNotFoundError as missing:
    if missing.name != name:
        raise
    module, _, name = name.rpartition(".")
    getattr(importlib.import_module(module), name)
"""
LIMIT = 300


def unpacked(slices, python, scratch):
    """Keeps each slice as its `take` does, and joins them; the folder that Python finds the packages in, and whose they are."""
    takes = sorted(glob.glob(os.path.join(slices, "slice-*", "take")))
    if not takes:
        sys.exit(f"imports: {slices} has no slices")
    # `join` calls python3.
    env = dict(os.environ, TIDEGATE_WHEELS=os.path.join(scratch, "store"),
               PATH=f"{os.path.dirname(os.path.abspath(python))}:{os.environ['PATH']}")
    for take in takes:
        subprocess.run(["sh", take], env=env, check=True, stdout=subprocess.DEVNULL)
    (name,) = os.listdir(env["TIDEGATE_WHEELS"])
    done = subprocess.run(["sh", os.path.join(env["TIDEGATE_WHEELS"], name, "join"), scratch], env=env, check=False)
    if done.returncode:
        sys.exit(2)
    return os.path.join(scratch, "site"), name


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("slices")
    parser.add_argument("--python", required=True)
    parser.add_argument("--driver", help="a libcuda.so.1")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-imports-") as scratch:
        site, name = unpacked(options.slices, options.python, scratch)
        if name not in USED:
            sys.exit(f"imports: nobody said what is used of {name}: one of {', '.join(USED)}")
        env = dict(os.environ, PYTHONPATH=site, HOME=scratch, PYTHONDONTWRITEBYTECODE="1")
        if options.driver:
            os.mkdir(os.path.join(scratch, "driver"))
            os.symlink(os.path.abspath(options.driver), os.path.join(scratch, "driver", "libcuda.so.1"))
            env["LD_LIBRARY_PATH"] = ":".join(filter(None, [f"{scratch}/driver", env.get("LD_LIBRARY_PATH")]))
        lost = 0
        for used in USED[name]:
            done = subprocess.run([options.python, "-c", IMPORT, used, *BY_GPU.get(name, "").split()], env=env, cwd=scratch, timeout=LIMIT, check=False,
                                  capture_output=True, text=True)
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            print(f"{'ok    ' if done.returncode == 0 else 'FAILED'} {used}{'' if done.returncode == 0 else ': ' + last}", flush=True)
            lost += done.returncode != 0
        print(f"{len(USED[name]) - lost} of {len(USED[name])} names of {name} are imported")
        sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
