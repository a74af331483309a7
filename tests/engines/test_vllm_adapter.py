"""An adapter that a training saved, in vLLM's own loader."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
TUNER = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "finetune/venv/bin/python"


def loader():
    try:
        from vllm.lora.lora_model import LoRAModel
    except ImportError:
        from vllm.lora.models import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper

    return LoRAModel, PEFTHelper


# P-TRAINER-4: what is saved is what vLLM adds to each matrix.
@pytest.mark.skipif(not TUNER.exists(), reason=f"SKIPPED: no PEFT at {TUNER} (scripts/finetune installs it)")
@pytest.mark.parametrize("seed", [1, 2])
def test_vllm_loads_what_a_training_saved(tmp_path, seed, monkeypatch):
    adapter, deltas = tmp_path / "adapter", tmp_path / "deltas.safetensors"
    command = [str(TUNER), str(ROOT / "tests/finetune/saves.py"), str(adapter), str(deltas), str(seed)]
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, check=True, env={**plain, "PYTHONPATH": str(ROOT / "interposer/engines")})
    wanted = load_file(str(deltas))
    assert len(wanted) >= 7

    model, helper = loader()
    # Asks a driver, which is not here.
    monkeypatch.setattr(sys.modules[model.__module__], "PIN_MEMORY", False, raising=False)
    monkeypatch.setattr(sys.modules[model.__module__], "is_pin_memory_available", lambda: False, raising=False)
    config = helper.from_local_dir(str(adapter), max_position_embeddings=256)
    asks = {"expected_lora_modules": {name.rsplit(".", 1)[1] for name in wanted}, "peft_helper": config, "device": "cpu"}
    asks |= {"dtype": torch.float32, "lora_model_id": 1}
    known = inspect.signature(model.from_local_checkpoint).parameters
    loaded = model.from_local_checkpoint(str(adapter), **{n: v for n, v in asks.items() if n in known})
    assert set(loaded.loras) == set(wanted)
    for name, lora in loaded.loras.items():
        a, b = lora.lora_a, lora.lora_b
        # Of old, vLLM kept both transposed.
        added = b @ a if b.shape[0] == wanted[name].shape[0] and a.shape[0] == b.shape[1] else (a @ b).T
        torch.testing.assert_close(added * lora.scaling, wanted[name], rtol=1e-5, atol=1e-6)
