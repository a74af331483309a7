"""Gathers the wheels that a machine without a network lacks for some packages, in slices that can be carried one by one.

    wheels.py vllm==0.24.0 peft --have pip-list.txt --python 3.12 --out DIR [--lean] [--drop PATTERN]

`pip-list.txt` is what `pip list --format=freeze` says there. Prints the size of the bundle, and refuses it above 768 MiB.
DIR/slice-NN/ holds a part each and `take`, which keeps it on that machine, in a folder of the first package's name. `join`,
which `take` keeps beside the parts, unpacks the wheels once all parts are there.

With --lean packages that SPARED names stay out, what LEFT_OUT names is left out of its wheel, and the bundle is compressed with a window of 128 MiB. A wheel's own
compression looks 32 KiB back, and kernels for one GPU resemble each other from megabyte to megabyte. `--drop` leaves out
what its pattern names besides, of any wheel, as `vllm/third_party/*`.
"""

import argparse
import csv
import fnmatch
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

MIB = 1 << 20
MOST = 768 * MIB
# What can be carried at a time is 64 MiB, with the tree.
SLICE = 46 * MIB
STORE = "${TIDEGATE_WHEELS:-/tmp/tidegate-wheels}"
# What a wheel brings and a node with an H100 or H200 and a Llama model never loads, and why it can be spared. `wheels.py
# --lean` leaves it out.
LEFT_OUT = {
    "vllm": {
        "vllm/vllm_flash_attn/_vllm_fa2_C*": "FlashAttention 2, for GPUs before Hopper; its import stands in a try",
        "vllm/_moe_C_stable_libtorch*": "kernels of mixtures of experts; its import stands in a try",
        "vllm/vllm-rs": "the HTTP front end in Rust; the probes use the engine from Python",
        "vllm/third_party/*/include/*": "sources that kernels are compiled from at run time: there is no compiler there",
        "vllm/third_party/deep_gemm/_C.cpython-31[!2]*": "another Python's; VLLM_USE_DEEP_GEMM is 0 besides",
        "vllm/entrypoints/*/static/*": "web pages",
    },
    "sglang-kernel": {
        "sgl_kernel/flash_ops*": "FlashAttention 3, nine tenths of the wheel; --attention-backend triton does without",
        "sgl_kernel/sm100/*": "Blackwell's",
        "sgl_kernel/spatial_ops*": "streams by multiprocessors, which nothing here asks for",
    },
}
# Packages that engines of the probes never load, and why; with --lean they stay out. `imports.py` tries it.
SPARED = {
    "kernels that the probes' settings do not choose": """
        flash-attn-4 flashinfer-cubin flashinfer-python humming-kernels quack-kernels sgl-deep-gemm tilelang tokenspeed-mla
        tokenspeed-triton torchcodec""",
    "compilers and libraries for kernels that are made at run time": """
        cuda-python cuda-tile nvidia-cuda-cccl nvidia-cuda-crt nvidia-cuda-nvcc nvidia-cuda-tileiras nvidia-cudnn-frontend
        nvidia-cutlass-dsl nvidia-cutlass-dsl-libs-base nvidia-cutlass-dsl-libs-cu13 nvidia-mathdx nvidia-nvvm z3-solver""",
    "services, clouds and reports: the probes use the engine from Python, without a network": """
        anthropic blobfile cryptography fastapi-cli fastapi-cloud-cli googleapis-common-protos grpcio-health-checking
        grpcio-reflection modelscope modelscope-hub opentelemetry-api opentelemetry-exporter-http-transport
        opentelemetry-exporter-otlp opentelemetry-exporter-otlp-common opentelemetry-exporter-otlp-proto-common
        opentelemetry-exporter-otlp-proto-grpc opentelemetry-exporter-otlp-proto-http opentelemetry-proto opentelemetry-sdk
        opentelemetry-semantic-conventions opentelemetry-semantic-conventions-ai py-spy pycountry pycryptodomex pyjwt
        sentry-sdk smg-grpc-proto smg-grpc-servicer supervisor""",
    "loaders of weights: those of the probes are drawn at random": "fastsafetensors",
}
# Versions that are much smaller than the resolver's, with what they need, by the first package of a bundle.
SMALLER = {"vllm": {"xgrammar": "0.2.8", "apache-tvm-ffi": "0.1.11"}}
WINDOW = 128 * MIB
TAKE = f"""#!/bin/sh
set -e
mkdir -p "{STORE}/NAME"
cp "$(dirname "$0")"/part-* "$(dirname "$0")/join" "{STORE}/NAME/"
ls -la "{STORE}/NAME"
"""
JOIN = f"""#!/bin/sh
# Makes DIR/site of all parts: join DIR
set -e
cd "{STORE}/NAME"
set -- "$1" part-*
[ $# -eq $((COUNT + 1)) ] || {{ echo "join: $(($# - 1)) of COUNT parts of NAME are here" >&2; exit 1; }}
cat part-* | python3 -c 'import sys, tarfile
tarfile.open(fileobj=sys.stdin.buffer, mode="MODE").extractall()'
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$1/site" wheels/*.whl
rm -r wheels
# Else every process compiles what it imports.
python3 -m compileall -q -j 0 "$1/site" > /dev/null || true
"""


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pip(*arguments):
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"wheels: pip {arguments[0]}: {done.stderr.strip()[-2000:]}")


def platforms(python):
    tags = [f"manylinux_2_{minor}_x86_64" for minor in range(39, 4, -1)] + ["manylinux2014_x86_64",
                                                                            "manylinux1_x86_64"]
    given = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    for tag in tags:
        given += ["--platform", tag]
    return given


def lacking(packages, have, python):
    """Names and versions that `packages` need and `have` does not name."""
    with tempfile.TemporaryDirectory() as scratch:
        report = os.path.join(scratch, "report.json")
        # Resolves from the index's metadata: nothing large is fetched.
        pip("install", "--dry-run", "--quiet", "--ignore-installed", "--report", report, "--target", scratch,
            *platforms(python), *packages)
        with open(report, encoding="utf-8") as file:
            found = [one["metadata"] for one in json.load(file)["install"]]
    wanted = {plain(re.split(r"[=<>~!]", package)[0]) for package in packages}
    return [f"{one['name']}=={one['version']}" for one in found
            if plain(one["name"]) in wanted or plain(one["name"]) not in have]


def without(path, patterns):
    """Rewrites a wheel without the members that one of the patterns names, and with the others as they are, so that they are
    compressed together later. Its own list of files is made to agree. Bytes left out, by pattern."""
    spared = dict.fromkeys(patterns, 0)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(path + ".lean", "w", zipfile.ZIP_STORED) as new:
        kept = set()
        for member in old.infolist():
            pattern = next((one for one in patterns if fnmatch.fnmatchcase(member.filename, one)), None)
            if pattern:
                spared[pattern] += member.file_size
            elif not member.filename.endswith(".dist-info/RECORD"):
                kept.add(member.filename)
                copy = zipfile.ZipInfo(member.filename, member.date_time)
                copy.external_attr = member.external_attr
                with old.open(member) as source, new.open(copy, "w", force_zip64=True) as target:
                    shutil.copyfileobj(source, target, MIB)
        record = next(name for name in old.namelist() if name.endswith(".dist-info/RECORD"))
        rows = [row for row in csv.reader(io.TextIOWrapper(old.open(record), encoding="utf-8")) if row and row[0] in kept | {record}]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        new.writestr(record, text.getvalue())
    os.replace(path + ".lean", path)
    return spared


def lean(folder, more):
    """Leaves out of every wheel of a folder what is named for it, and says what that came to."""
    for name in sorted(os.listdir(folder)):
        table = LEFT_OUT.get(plain(name.split("-")[0]), {})
        for pattern, size in without(os.path.join(folder, name), [*table, *more]).items():
            if size or pattern in table:
                print(f"{size / MIB:6.0f} MiB left out of {name}: {pattern} ({table.get(pattern, 'as asked')})")
            if pattern in table and not size:
                sys.exit(f"wheels: {name} has nothing called {pattern} any more: look at LEFT_OUT")


def compressed(bundle):
    """The bundle with a window as long as the kernels of an engine; its file."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": WINDOW}]
    with open(bundle, "rb") as source, lzma.open(bundle + ".xz", "wb", format=lzma.FORMAT_XZ, filters=filters) as target:
        shutil.copyfileobj(source, target, MIB)
    os.remove(bundle)
    return bundle + ".xz"


def slices(bundle, out, name):
    """Cuts a file into parts, one a folder; how many."""
    count = -(-os.path.getsize(bundle) // SLICE)
    known = {"NAME": name, "COUNT": str(count), "MODE": "r|xz" if bundle.endswith(".xz") else "r|"}
    with open(bundle, "rb") as file:
        for number in range(count):
            folder = os.path.join(out, f"slice-{number:02}")
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, f"part-{number:02}"), "wb") as piece:
                piece.write(file.read(SLICE))
            for script, text in (("take", TAKE), ("join", JOIN)):
                for word, value in known.items():
                    text = text.replace(word, value)
                with open(os.path.join(folder, script), "w", encoding="utf-8") as file_of_it:
                    file_of_it.write(text)
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="+")
    parser.add_argument("--have", required=True, help="what `pip list --format=freeze` says there")
    parser.add_argument("--without", default="", help="names to leave out, joined by commas, where they are not needed")
    parser.add_argument("--instead", default="", help="versions other than the resolver's: name==version, joined by commas")
    parser.add_argument("--lean", action="store_true", help="leave out what SPARED and LEFT_OUT name, and compress what is left together")
    parser.add_argument("--drop", action="append", default=[], metavar="PATTERN", help="leave out this too, as --lean does")
    parser.add_argument("--python", default="3.12")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    options.lean = options.lean or bool(options.drop)
    with open(options.have, encoding="utf-8") as file:
        have = {plain(re.split(r"[=\s]", line)[0]) for line in file if line.strip()}
    have |= {plain(name) for name in options.without.split(",") if name}
    first = plain(re.split(r"[=<>~!]", options.packages[0])[0])
    if options.lean:
        have |= {name for names in SPARED.values() for name in names.split()}
    needed = lacking(options.packages, have, options.python)
    instead = dict(SMALLER.get(first, {})) if options.lean else {}
    instead |= dict(one.split("==") for one in options.instead.split(",") if one)
    needed = [f"{name}=={instead.get(plain(name), version)}" for name, version in (one.split("==") for one in needed)]
    print(f"{len(needed)} packages: {' '.join(needed)}")
    with tempfile.TemporaryDirectory() as scratch:
        wheels = os.path.join(scratch, "wheels")
        pip("download", "--quiet", "--no-deps", *platforms(options.python), "--dest", wheels, *needed)
        if options.lean:
            lean(wheels, options.drop)
        sizes = {name: os.path.getsize(os.path.join(wheels, name)) for name in os.listdir(wheels)}
        size = sum(sizes.values())
        print(f"{size / MIB:.0f} MiB of at most {MOST // MIB}")
        if size > MOST and not options.lean:
            for name in sorted(sizes, key=sizes.get, reverse=True)[:10]:
                print(f"{sizes[name] / MIB:6.0f} MiB  {name}")
            sys.exit(f"wheels: the bundle has {size / MIB:.0f} MiB, more than {MOST // MIB}: name what is not needed there "
                     "after --without, or bring a machine that has more")
        bundle = os.path.join(scratch, "bundle.tar")
        subprocess.run(["tar", "-C", scratch, "-cf", bundle, "wheels"], check=True)
        shutil.rmtree(wheels)
        if options.lean:
            bundle = compressed(bundle)
            print(f"{os.path.getsize(bundle) / MIB:.0f} MiB compressed together")
        print(f"{slices(bundle, options.out, first)} slices of {first} in {options.out}")


if __name__ == "__main__":
    main()
