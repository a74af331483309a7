"""What `scripts/h200 finetune` runs on a card, on the virtual GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import node

STEPS = 40


# P-EQUIPMENT-5: the probe of a training sees what was taken of it, and that it changed no byte.
def test_the_probe_of_a_training_that_is_robbed_passes(tmp_path):
    gpu, driver = tmp_path / "gpu", tmp_path / "driver"
    gpu.mkdir()
    driver.mkdir()
    (driver / "libcuda.so.1").symlink_to(node.BUILT / "libcuda.so")
    device = [node.BUILT / "vgpud", "--dir", gpu, "--set", "poison=0xa5"]
    with subprocess.Popen(device, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout.readline() == "ready\n"
            environment = {
                **os.environ,
                "TIDEGATE_HOME": str(node.BUILT),
                "TIDEGATE_PLUGIN": str(node.ROOT / "interposer/engines"),
                "TIDEGATE_RESULTS": str(tmp_path / "results"),
                "TIDEGATE_VGPU_DIR": str(gpu),
                "LD_LIBRARY_PATH": str(driver),
                "LD_PRELOAD": str(node.BUILT / "libvgpu_rm.so"),
            }
            probe = node.ROOT / "agent/probe/engines/finetune_probe.py"
            asks = ["--backend", "virtual", "--only", "P23", "--steps", str(STEPS), "--lost", "4", "--out", str(tmp_path)]
            subprocess.run([sys.executable, str(probe), *asks], env=environment, check=True, timeout=600)
        finally:
            running.kill()
    lines = [json.loads(line) for line in (tmp_path / "results").read_text().splitlines()]
    [verdict] = [line for line in lines if line["kind"] == "verdict"]
    assert (verdict["probe"], verdict["verdict"]) == ("P23", "PASS"), verdict
    figures = {line["name"]: line["value"] for line in lines if line["kind"] == "figure"}
    assert figures["undisturbed: steps"] == figures["robbed: steps"] == STEPS
    assert figures["undisturbed: blocks lost"] == 0 < figures["robbed: units redone"]
    assert figures["robbed: times that online had its memory"] > 0
    assert figures["adapter: farthest apart, of the largest number"] == 0
