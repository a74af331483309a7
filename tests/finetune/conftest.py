"""Puts the package and the tests' own modules where Python finds them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "interposer/engines")]

import torch

# One thread adds in one order: the same bytes every time.
torch.set_num_threads(1)
