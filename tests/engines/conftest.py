"""Prints what each test measured, for RESULTS.md."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "interposer/engines")]
logging.disable(logging.CRITICAL)
_lines: list[str] = []


@pytest.fixture
def record():
    return _lines.append


def pytest_terminal_summary(terminalreporter):
    if _lines:
        terminalreporter.section("measured")
        for line in _lines:
            terminalreporter.line(line)
