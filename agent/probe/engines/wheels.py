"""Gathers the wheels that a machine without a network lacks for some packages, in slices that can be carried one by one.

    wheels.py vllm==0.24.0 peft --have pip-list.txt --python 3.12 --out DIR

`pip-list.txt` is what `pip list --format=freeze` says there. Prints the size of the bundle, and refuses it above 768 MiB.
DIR/slice-NN/ holds a part each and `take`, which keeps it on that machine; `join` in the last one unpacks the wheels.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

MIB = 1 << 20
MOST = 768 * MIB
# What can be carried at a time is 64 MiB, with the tree.
SLICE = 46 * MIB
STORE = "${TIDEGATE_WHEELS:-/tmp/tidegate-wheels}"
TAKE = f"""#!/bin/sh
set -e
mkdir -p "{STORE}"
cp "$(dirname "$0")"/part-* "{STORE}/"
ls -la "{STORE}"
"""
JOIN = f"""#!/bin/sh
# Makes DIR/site of all parts: join DIR
set -e
cat "{STORE}"/part-* | tar -x -C "{STORE}"
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$1/site" "{STORE}"/wheels/*.whl
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


def slices(bundle, out):
    """Cuts a file into parts, one a folder."""
    number = 0
    with open(bundle, "rb") as file:
        while part := file.read(SLICE):
            folder = os.path.join(out, f"slice-{number:02}")
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, f"part-{number:02}"), "wb") as piece:
                piece.write(part)
            for name, text in (("take", TAKE), ("join", JOIN)):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as script:
                    script.write(text)
            number += 1
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="+")
    parser.add_argument("--have", required=True, help="what `pip list --format=freeze` says there")
    parser.add_argument("--without", default="", help="names to leave out, joined by commas, where they are not needed")
    parser.add_argument("--instead", default="", help="versions other than the resolver's: name==version, joined by commas")
    parser.add_argument("--python", default="3.12")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    with open(options.have, encoding="utf-8") as file:
        have = {plain(re.split(r"[=\s]", line)[0]) for line in file if line.strip()}
    have |= {plain(name) for name in options.without.split(",") if name}
    needed = lacking(options.packages, have, options.python)
    instead = dict(one.split("==") for one in options.instead.split(",") if one)
    needed = [f"{name}=={instead.get(plain(name), version)}" for name, version in (one.split("==") for one in needed)]
    print(f"{len(needed)} packages: {' '.join(needed)}")
    with tempfile.TemporaryDirectory() as scratch:
        wheels = os.path.join(scratch, "wheels")
        pip("download", "--quiet", "--no-deps", *platforms(options.python), "--dest", wheels, *needed)
        sizes = {name: os.path.getsize(os.path.join(wheels, name)) for name in os.listdir(wheels)}
        size = sum(sizes.values())
        print(f"{size / MIB:.0f} MiB of at most {MOST // MIB}")
        if size > MOST:
            for name in sorted(sizes, key=sizes.get, reverse=True)[:10]:
                print(f"{sizes[name] / MIB:6.0f} MiB  {name}")
            sys.exit(f"wheels: the bundle has {size / MIB:.0f} MiB, more than {MOST // MIB}: name what is not needed there "
                     "after --without, or bring a machine that has more")
        bundle = os.path.join(scratch, "bundle.tar")
        subprocess.run(["tar", "-C", scratch, "-cf", bundle, "wheels"], check=True)
        shutil.rmtree(wheels)
        print(f"{slices(bundle, options.out)} slices in {options.out}")


if __name__ == "__main__":
    main()
