"""An offline SGLang loses KV slots in mid-step: no wrong token, no lost request, no slot leaked, no poison in its cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sglang")
import sglang_rig

sglang_rig.stand_in()
import sglang_ablations
import sglang_offline

SEEDS = int(os.environ.get("SEEDS", "30"))
MODES = ("overlap", "normal")
RIG = str(Path(sglang_offline.__file__))


def said(mode: str, kind: str, seeds: int, *clauses: str) -> list[dict]:
    """What the rig says of one engine: the plugin whole (""), and less one clause each time."""
    done = subprocess.run(
        [sys.executable, RIG, mode, kind, str(seeds), *clauses],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=7200,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0 and len(rows) == len(clauses) + 1, done.stderr[-3000:]
    return rows


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", sglang_offline.KINDS)
def test_losing_slots_in_mid_step_changes_no_output(kind, mode, record):
    made, row = said(mode, kind, SEEDS, "")
    record(
        f"SGLang offline, {kind} ({made['tree']}), {mode} loop: {row['requests']} requests, {row['aborted']} aborts, "
        f"{row['reclaims']} reclaims, {row['steps']} steps, {row['slots']} cached slots compared, {row['wrong']} wrong, "
        f"{row['never_came'] + row['lost_requests']} lost"
    )
    assert made["scopes"] >= 1, "the KV cache is not in memory that can be taken"
    assert not row["crashed"], row["crashed"]
    assert not sum(row[name] for name in sglang_offline.BROKEN), row
    assert row["requests"] == row["ended"] == 10 * SEEDS
    assert row["reclaims"] >= 2 * SEEDS and row["back"], "the run is empty"
    assert row["logprobs"] or SEEDS < 3


@pytest.fixture(scope="module", params=MODES)
def ablated(request):
    """What the rig says of the plugin less one clause each time."""
    names = [name for name, a in sglang_ablations.ABLATIONS.items() if request.param in a.modes]
    rows = said(request.param, "pages of 1", sglang_ablations.RUNS, *names)
    return request.param, {row["clause"]: row for row in rows[1:]}


@pytest.mark.parametrize("clause", sglang_ablations.ABLATIONS)
def test_every_clause_is_needed(ablated, clause, record):
    mode, rows = ablated
    ablation = sglang_ablations.ABLATIONS[clause]
    if mode not in ablation.modes:
        pytest.skip("SGLang itself stands in for it")
    row = rows[clause]
    broken = row["crashed"] or sum(row[name] for name in sglang_offline.BROKEN)
    how = "the engine ended" if row["crashed"] else f"broken in run {row['runs']}"
    record(f"without: {ablation.plugin.__doc__} SGLang, {mode} loop: {how if broken else 'none'} of {sglang_ablations.RUNS}")
    assert broken, "nothing broke: the clause, or this test, has to go"
