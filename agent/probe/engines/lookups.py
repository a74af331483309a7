"""P26: which functions of the driver the runtime and PyTorch look up, and how; P27: whether a launch goes unseen.

P26 records by hooks of its own (lookups.c), not by the library's, and compares what was looked up with the library's
table. P27 runs a program under the library and compares the launches that the library counted, kind by kind, with those that
the profiler saw on the device (or, with `--backend spin`, with those that the program made).
"""

import collections
import ctypes
import glob
import json
import os
import re
import subprocess
import sys
import time

import lines
import node
import runs

# What puts work on the device: a function of such a name has to be a row of the library's table.
WORK = re.compile(r"cu(Launch|GraphLaunch|Memcpy|Memset|Memcpy\w*Async|Stream(Write|Wait)Value|StreamBatchMemOp|MemPrefetch)")

RUNTIME = """
import ctypes, sys
runtime = ctypes.CDLL(sys.argv[1])
at = ctypes.c_void_p()
for code in (runtime.cudaFree(None), runtime.cudaMalloc(ctypes.byref(at), 4096), runtime.cudaMemset(at, 0, 4096),
             runtime.cudaDeviceSynchronize()):
    if code:
        sys.exit(f"runtime: error {code}")
"""
TORCH = """
import torch
a = torch.randn(256, 256, device="cuda")
(a @ a).relu().sum().item()
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    for _ in range(3):
        (a @ a).sum()
stream.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    b = a @ a
graph.replay()
torch.cuda.synchronize()
"""
SPIN = """
import sys
sys.path.insert(0, sys.argv[1])
import model
gpu = model.Spin("1b")
gpu.spin(0.1)
gpu.wait()
"""


def recorder(home, folder):
    """The recording library: packed with the rest, or made here."""
    packed = os.path.join(home, "liblookups.so")
    if os.path.exists(packed):
        return packed
    made = os.path.join(folder, "liblookups.so")
    try:
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", made, os.path.join(runs.HERE, "lookups.c")], check=True,
                       capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise lines.Skip(f"no recorder: neither packed nor can it be compiled here ({error})") from error
    return made


def hooked(home):
    """Symbols of the library's table."""
    library = ctypes.CDLL(os.path.join(home, "libtidegate.so"))
    library.tidegate_hooks.restype = ctypes.c_char_p
    return {line.split()[0] for line in library.tidegate_hooks().decode().splitlines()}


def record(name, arguments, preload, folder):
    """What a program looked up, line by line; it runs without the library."""
    path = os.path.join(folder, f"lookups-{name}.txt")
    env = dict(os.environ, LOOKUPS=path)
    env["LD_PRELOAD"] = ":".join(filter(None, [preload, env.get("LD_PRELOAD")]))
    done = subprocess.run([sys.executable, "-B", "-c", *arguments], env=env, capture_output=True, text=True, check=False,
                          timeout=90)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-400:]}")
    with open(path, encoding="utf-8") as file:
        return [line.split() for line in file]


def base(symbol):
    """A function's name without what tells its versions apart."""
    return re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", symbol)


def report(name, found, rows):
    """Counts, names and flags of one program; names of work that the library has no row for."""
    by_dlsym = collections.Counter(line[1] for line in found if line[0] == "dlsym")
    asked = [line for line in found if line[0] == "proc"]
    by_proc = collections.Counter(line[1] for line in asked)
    flags = collections.Counter(line[3] for line in asked)
    versions = collections.Counter(line[2] for line in asked)
    tables = collections.Counter(line[1] for line in found if line[0] == "table")
    lines.figure("P26", f"{name}: names by dlsym", len(by_dlsym))
    lines.figure("P26", f"{name}: names by cuGetProcAddress", len(by_proc))
    lines.figure("P26", f"{name}: private tables", len(tables))
    lines.note("P26", f"{name}: by dlsym {' '.join(sorted(by_dlsym)[:40])}; flags {dict(flags)}; versions "
                      f"{dict(versions)}; tables {' '.join(tables)}")
    known = {base(symbol) for symbol in rows}
    return sorted(each for each in {base(each) for each in [*by_dlsym, *by_proc]} if WORK.match(each) and each not in known)


def lookups(options):
    preload = recorder(runs.HOME, options.out)
    rows = hooked(runs.HOME)
    programs = [("driver", [SPIN, runs.HERE])]
    if options.backend == "torch":
        import torch

        where = os.path.join(os.path.dirname(torch.__file__), "..", "nvidia")
        libraries = glob.glob(os.path.join(where, "**", "libcudart.so*"), recursive=True) + glob.glob(
            "/usr/local/cuda/lib64/libcudart.so.*")
        if libraries:
            programs.append(("runtime", [RUNTIME, libraries[0]]))
        programs.append(("PyTorch", [TORCH]))
    unseen = {}
    for name, arguments in programs:
        found = record(name, arguments, preload, options.out)
        unseen[name] = report(name, found, rows)
        if name == "driver":
            # The recorder is judged first: what this program looks up is known.
            missing = {"cuInit", "cuLaunchKernel"} - {line[1] for line in found if line[0] == "dlsym"}
            if missing:
                raise RuntimeError(f"the recorder did not see {missing}")
        if name == "runtime":
            asked = [line for line in found if line[0] == "proc"]
            lines.guess("P26", "the runtime finds cuGetProcAddress_v2 by dlsym and some 400 names by that, with two flags",
                        any(line[:2] == ["dlsym", "cuGetProcAddress_v2"] for line in found)
                        and 300 <= len({line[1] for line in asked}) <= 500 and len({line[3] for line in asked}) == 2)
            lines.guess("P26", "the runtime takes about half a dozen private tables",
                        3 <= len({line[1] for line in found if line[0] == "table"}) <= 9)
    if options.backend != "torch":
        lines.note("P26", "runtime and PyTorch are not modelled here")
    for name, names in unseen.items():
        if names:
            lines.note("P26", f"{name}: looked up, puts work on the device, no row of the library: {' '.join(names)}")
    wrong = [name for names in unseen.values() for name in names]
    lines.guess("P26", "every function that puts work on the device and is looked up has a row in the library's table",
                not wrong)
    if wrong:
        raise RuntimeError(f"no row for {' '.join(sorted(set(wrong)))}")


# Which rows of the library's table are which kind of work.
KINDS = {"kernel": r"cuLaunch(Kernel|Cooperative)", "graph": r"cuGraphLaunch", "copy": r"cuMemcpy", "fill": r"cuMemset"}


def counted(here, pid):
    """Calls by kind that the library of `pid` counted. It reports now and then: until its word stays the same."""
    last, same, end = None, 0, time.monotonic() + 30
    while time.monotonic() < end:
        process = next((one for one in here.hooks() if one["pid"] == pid), None)
        rows = process["hooks"] if process else []
        now = {kind: sum(int(row["calls"]) for row in rows if re.match(names, row["symbol"]))
               for kind, names in KINDS.items()}
        same = same + 1 if rows and now == last else 0
        if same == 3:
            return now
        last = now
        time.sleep(1)
    raise RuntimeError("the agent does not say what the program's hooks counted")


def unseen(options):
    """What the library counts while a program works, against what came onto the device."""
    with node.Node(runs.HOME, "best") as here:
        trace = os.path.join(options.out, "rm-trace-torch.jsonl")
        log = open(os.path.join(options.out, "P27.log"), "w+", encoding="utf-8")
        program = None
        try:
            def command(_role):
                return [os.path.join(runs.HERE, "launches.py"), "--backend", options.backend]

            program = runs.Program(here, command, "online", True, log, TIDEGATE_RM_TRACE=trace)
            pid = int(program.hear("being ready", options.ready))
            before = counted(here, pid)
            program.say("go")
            device = json.loads(program.hear("figures", 90))
            after = counted(here, pid)
        finally:
            if program:
                node.stop(program.process)
            log.close()
    past = {}
    for kind, made in device["calls"].items():
        seen = after[kind] - before[kind]
        lines.figure("P27", f"{kind}: on the device", made)
        lines.figure("P27", f"{kind}: counted by the library", seen)
        if seen < made:
            past[kind] = made - seen
    lines.note("P27", f"records of the device: {json.dumps(device['on the device'])}")
    lines.guess("P27", "no launch of PyTorch's goes past the library" if options.backend == "torch"
                else "no launch of a driver program goes past the library", not past)
    if past:
        raise RuntimeError(f"not seen by the library: {past}")
