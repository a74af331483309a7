"""An offline SGLang loses slots in mid-step: no wrong token, no lost request, no slot leaked, no poison in its cache."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("sglang")
import sglang_rig

sglang_rig.stand_in()
import sglang_ablations
import sglang_memory
import sglang_offline
import torch
from tax import words
from sglang.srt.mem_cache import allocator as allocators
from sglang.srt.mem_cache import memory_pool, radix_cache, unified_radix_cache
from tidegate_engines import abi
from tidegate_engines import sglang as plugin
from tidegate_engines.sglang import aside, lost, memory, slots, why_not

SEEDS = int(os.environ.get("SEEDS", "30"))
MODES = ("overlap", "normal")
RIG = str(Path(sglang_offline.__file__))


def needed(mode: str) -> list[str]:
    """The clauses that SGLang itself does not stand in for."""
    new = sglang_offline.RECORDS
    return [name for name, a in sglang_ablations.ABLATIONS.items() if mode in a.modes and (a.new or not new)]


@pytest.fixture(scope="module")
def rows():
    """What the rig says of each engine, of the plugin whole, with an error in it, and less one clause each time."""
    first, *others = sglang_offline.KINDS
    jobs = [f"{mode}/{first}/{','.join(['', sglang_offline.FAULT, *sglang_offline.UNDER, *needed(mode)])}" for mode in MODES]
    jobs += [f"{mode}/{kind}/" for mode in MODES for kind in others]
    done = subprocess.run(
        [sys.executable, RIG, str(SEEDS), *jobs],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=14400,
    )
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0 and said, done.stderr[-3000:]
    return {(row["mode"], row["kind"], row["clause"]): row for row in said}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", sglang_offline.KINDS)
def test_losing_slots_in_mid_step_changes_no_output(rows, kind, mode, record):
    row = rows[mode, kind, ""]
    assert not row["crashed"], row["crashed"]
    record(
        f"SGLang offline, {kind} ({row['tree']}), {mode} loop: {row['requests']} requests, {row['aborted']} aborts, "
        f"{row['reclaims']} reclaims, {row['steps']} steps, {row['slots']} cached slots compared, {row['wrong']} wrong, "
        f"{row['never_came'] + row['lost_requests']} lost, {words(row['again'], row['produced'], row['computed'])}"
    )
    assert row["scopes"] >= 1, "the KV cache is not in memory that can be taken"
    assert not sum(row[name] for name in sglang_offline.BROKEN), row
    assert not row["miscounted"] and 0 < row["again"] < row["computed"], "what was computed does not add up"
    assert row["requests"] == row["ended"] == 10 * SEEDS
    assert row["reclaims"] >= 2 * SEEDS and row["back"], "the run is empty"
    assert row["logprobs"] or SEEDS < 3
    assert not row["gone"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("traffic", sglang_offline.UNDER)
def test_traffic_that_shows_a_clause_is_served_right_with_it(rows, traffic, mode):
    row = rows[mode, next(iter(sglang_offline.KINDS)), traffic]
    assert not row["crashed"] and not row["gone"] and not sum(row[name] for name in sglang_offline.BROKEN), row
    assert row["reclaims"] >= SEEDS, "the run is empty"


@pytest.mark.parametrize("mode", MODES)
def test_after_an_error_in_the_plugin_nothing_is_wrong_and_nothing_more_is_taken(rows, mode):
    row = rows[mode, next(iter(sglang_offline.KINDS)), sglang_offline.FAULT]
    assert not row["crashed"] and not sum(row[name] for name in sglang_offline.BROKEN), row
    assert row["gone"]


@pytest.mark.parametrize("mode,clause", [(mode, clause) for mode in MODES for clause in needed(mode)])
def test_every_clause_is_needed(rows, mode, clause, record):
    row = rows[mode, next(iter(sglang_offline.KINDS)), clause]
    shows = sglang_ablations.ABLATIONS[clause].shows
    # Whoever has nothing more be taken has met what must not be.
    broken = row["crashed"] or row["gone"] or sum(row[name] for name in ([shows] if shows else sglang_offline.BROKEN))
    how = "the plugin gives up" if row.get("gone") else "broken"
    how = "the engine ends" if row["crashed"] else f"{how} in run {row['runs']} of {sglang_ablations.RUNS}"
    what = sglang_ablations.ABLATIONS[clause].plugin.__doc__
    record(f"without: {what} SGLang, {mode} loop: {how if broken else 'none broken'}")
    assert broken, "nothing broke: the clause, or this test, has to go"


#: What an earlier and a later step have: the slots each reads, and where in them those begin that it writes. Slot 1 is lost.
STEPS = {
    "what was read of it": ([([1, 2, 3], 2)], [([4, 5], 1)], {3}),
    "what another wrote there afterwards": ([([1, 2, 3], 2)], [([4, 3], 1)], set()),
    "what was written from that": ([([1, 2, 3], 2)], [([3, 4, 5], 1)], {3, 4, 5}),
    "what was written there from it": ([([1, 2, 3], 2)], [([1, 3, 4], 1)], {3, 4}),
}


@pytest.mark.parametrize("earlier,later,garbage", STEPS.values(), ids=STEPS)
def test_steps_that_are_under_way_leave_garbage_in_the_order_of_their_launches(earlier, later, garbage):
    """Of the rig: a step may write to a slot that one before it had, but not the other way round."""
    buffers = [torch.zeros(6, 1, 1) for _ in range(4)]
    pool = SimpleNamespace(k_buffer=buffers[:2], v_buffer=buffers[2:], set_kv_buffer=None, get_key_buffer=None)
    memory = sglang_memory.Memory(pool, 1, 6, lambda: None)
    memory.lost = {1}
    memory.follow(map(sglang_memory.Late, (earlier, later)), random.Random(0))
    for first, second in (buffers[:2], buffers[2:]):
        assert not first.any(), "what a first layer writes depends upon no slot"
        assert set(second.flatten().nonzero().flatten().tolist()) == garbage


@pytest.mark.parametrize("page", (1, 8))
def test_slots_behind_the_last_whole_block_go_with_it(page):
    """They lie in the same handles, and no block of their own is ever said to be lost."""
    total = 32 + 8
    free = torch.arange(1, total // page)
    allocator = SimpleNamespace(
        page_size=page, free_pages=free, release_pages=free[:0], available_size=lambda: 0, clear=lambda: None
    )
    held = slots.Slots(allocator, total)
    assert held.blocks == 2
    assert held.slots_of([0]).nonzero()[0].tolist() == list(range(16))
    assert held.slots_of([1]).nonzero()[0].tolist() == list(range(16, total))
    assert held.blocks_of(torch.tensor([15, 16, total - 1]).numpy()).tolist() == [0, 1, 1]
    held.withhold([1])
    assert allocator.free_pages.tolist() == [each for each in free.tolist() if each * page < 16]
    held.allow([1])
    assert sorted(allocator.free_pages.tolist()) == free.tolist()


def bare(kind: type, **parts):
    """An instance that nothing was done to."""
    made = object.__new__(kind)
    for name, value in parts.items():
        object.__setattr__(made, name, value)
    return made


def engine():
    """The parts of a scheduler that nothing is against."""
    pool = bare(memory_pool.MHATokenToKVPool, k_scale_buffer=None, kv_cache_layout="nhd", page_size=1)
    free = torch.arange(1, 65)
    allocator = bare(
        allocators.TokenToKVPoolAllocator, _kvcache=pool, page_size=1, free_pages=free, release_pages=free[:0]
    )
    kind = unified_radix_cache.UnifiedRadixCache if sglang_offline.RECORDS else radix_cache.RadixCache
    scheduler = SimpleNamespace(
        tree_cache=bare(kind),
        token_to_kv_pool_allocator=allocator,
        req_to_token_pool=SimpleNamespace(free=None, req_to_token=None),
        model_config=SimpleNamespace(),
    )
    for name in why_not.PARTS[""]:
        setattr(scheduler, name, None)
    return scheduler


def pool_of(scheduler):
    return scheduler.token_to_kv_pool_allocator._kvcache


def test_an_engine_that_was_run_is_not_refused():
    assert why_not.parts(engine()) is None
    assert why_not.arguments(SimpleNamespace(tp_size=1, enable_lora=None, disaggregation_mode="null")) is None


#: Of SGLang's arguments those with which its slots are not one rank's alone, or lie elsewhere, or are kept by others.
NOT_RUN = {
    **dict.fromkeys(("tp_size", "pp_size", "dp_size", "attn_cp_size", "ep_size"), 2),
    **dict.fromkeys(
        (
            "enable_dp_attention enable_hierarchical_cache enable_lmcache enable_hisparse enable_memory_saver enable_lora "
            "enable_mixed_chunk enable_priority_scheduling enable_streaming_session enable_pdmux is_embedding "
            "enable_return_routed_experts enable_unified_memory"
        ).split(),
        True,
    ),
    "disaggregation_mode": "prefill",
    "speculative_algorithm": "EAGLE",
    "dllm_algorithm": "LowConfidence",
}


@pytest.mark.parametrize("name,value", NOT_RUN.items())
def test_what_was_not_run_is_refused_by_name(name, value):
    why = why_not.arguments(SimpleNamespace(**{name: value}))
    assert why and "\n" not in why


def test_a_scheduler_without_a_part_is_refused_by_its_name_and_goes_on(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(plugin.log, "warning", lambda text, *args: said.append(text % args))
    monkeypatch.setenv("TIDEGATE_ROLE", "offline")
    monkeypatch.setattr(abi, "library", sglang_offline.Library)
    for owner, names in why_not.PARTS.items():
        for name in names:
            scheduler = engine()
            part = getattr(scheduler, owner) if owner else scheduler
            if name in vars(part):
                delattr(part, name)
            else:
                kind = type(f"Less{name}", (type(part),), {name: property(lambda self: self.nothing)})
                object.__setattr__(part, "__class__", kind)
            plugin.watch(scheduler)
            assert len(said) == 1 and name in said.pop(), (owner, name)


@pytest.mark.parametrize(
    "change,words",
    [
        (lambda s: setattr(s, "is_hybrid_swa", True), "sliding window"),
        (lambda s: setattr(s, "is_generation", False), "embeddings"),
        (lambda s: setattr(s.model_config, "is_multimodal", True), "multimodal"),
        (lambda s: setattr(pool_of(s), "kv_cache_layout", "hnd"), "laid out as hnd"),
        (lambda s: setattr(pool_of(s), "k_scale_buffer", []), "scales"),
        (
            lambda s: setattr(s.token_to_kv_pool_allocator, "_kvcache", bare(memory_pool.MLATokenToKVPool)),
            "MLATokenToKVPool",
        ),
        (
            lambda s: setattr(s, "tree_cache", SimpleNamespace(evictable_size=None, protected_size=None)),
            "prefix cache is a",
        ),
    ],
)
def test_another_make_of_a_part_is_refused_by_name(change, words):
    scheduler = engine()
    change(scheduler)
    assert words in why_not.parts(scheduler)


def test_pages_of_a_length_that_was_not_run_are_refused():
    run = {kind.page for kind in (sglang_offline.KINDS | sglang_offline.BY_HAND).values()}
    for page in range(1, 257):
        scheduler = engine()
        scheduler.token_to_kv_pool_allocator.page_size = page
        assert why_not.parts(scheduler) == (None if page in run else f"its pages are of {page} slots")


def test_whoever_others_went_past_stands_where_it_stood():
    everybody = "abcdefgh"
    places = {id(name): at for at, name in enumerate(everybody)}
    passed = list("acdh")
    # "b" and "f" run now; "x" did, and was retracted.
    assert "".join(aside.put_back(passed, list("xeg"), places)) == "xacdegh"
    assert "".join(aside.put_back(passed, [], places)) == "acdh"


@pytest.mark.parametrize("page,run", [(1, 16), (8, 16), (16, 16), (64, 64), (24, 24)])
def test_a_block_is_whole_pages(page, run):
    assert slots.run_of(page) == run


@pytest.mark.parametrize("fused", [False, True])
def test_a_blocks_bytes_are_those_of_its_slots(fused):
    """0.5.23 has keys and values as halves of one tensor."""
    both = [torch.zeros(2, 70, 2, 8) for _ in range(3)]
    k = [each[0] if fused else torch.zeros(70, 2, 8) for each in both]
    v = [each[1] if fused else torch.zeros(70, 2, 8) for each in both]
    pool = SimpleNamespace(k_buffer=k, v_buffer=v, page_size=1)
    regions = memory.pool_regions(pool)
    for region, tensor in zip(regions, (*k, *v), strict=True):
        assert (region.first_block, region.blocks) == (0, 4)
        for block in range(4):
            part = tensor[16 * block : 16 * block + 16]
            assert region.base + block * region.stride == part.data_ptr()
            assert region.block_bytes == part.numel() * part.element_size()


@pytest.mark.parametrize(
    "asked,named",
    [
        ({}, None),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"presence_penalty": -1.0}, "presence_penalty"),
        ({"repetition_penalty": 1.2}, "repetition_penalty"),
        ({"min_new_tokens": 4}, "min_new_tokens"),
    ],
)
def test_what_sglang_forgets_of_a_retracted_request_is_taken_last_and_named_once(asked, named, monkeypatch):
    from sglang.srt.sampling.sampling_params import SamplingParams

    said: list[str] = []
    monkeypatch.setattr(lost.log, "warning", lambda text, *args: said.append(text % args))
    params = SamplingParams(max_new_tokens=8, **asked)
    if named != "min_new_tokens":  # 0.5.23 wants a tokenizer for it
        params.normalize(None)
    state = bare(lost.LostSlots, _named=set())
    costs = [state._cost(SimpleNamespace(sampling_params=params), 40) for _ in range(3)]
    assert costs == [40 if named is None else lost.UNTAKEABLE] * 3
    assert len(said) == (named is not None) and all(named in line for line in said)
