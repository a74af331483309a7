"""What differs between the versions of SGLang, told by what a scheduler's parts have."""

from __future__ import annotations

from typing import Any

from .tree import NoTree, PlainTree, UnifiedTree

#: Prefix caches that were tested, by module and name.
TREES = {
    "sglang.srt.mem_cache.chunk_cache.ChunkCache": NoTree,
    "sglang.srt.mem_cache.radix_cache.RadixCache": PlainTree,
    "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache": UnifiedTree,
}


def name_of(thing: Any) -> str:
    """Module and name of a thing's class."""
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


class Ways:
    """How one version, up to 0.5.22 or so, does it: a request holds its row itself."""

    #: Methods of a prefix cache that change a request's row, or give it up.
    PARTING = ("cache_unfinished_req", "cache_finished_req")

    def row(self, request: Any) -> int | None:
        """Which row of ``req_to_token`` a request holds."""
        return request.req_pool_idx

    def held(self, request: Any) -> int:
        """How many slots it holds."""
        return request.kv_allocated_len

    def release(self, request: Any, cache: Any) -> None:
        """Has it give its slots up, and nothing of it enter the prefix cache."""
        from sglang.srt.mem_cache.common import release_kv_cache

        # SGLang gives up the slots of known tokens. The token of the step before one under way is not known yet.
        known = len(request.origin_input_ids) + len(request.output_ids)
        if known < request.kv_allocated_len:
            pages = -(-known // cache.page_size) * cache.page_size
            row = cache.req_to_token_pool.req_to_token[request.req_pool_idx, pages : request.kv_allocated_len]
            cache.token_to_kv_pool_allocator.free(row)
            request.kv_allocated_len = request.kv_committed_len = known
        release_kv_cache(request, cache, is_insert=False)


class RecordWays(Ways):
    """A request has a record of the slots that it holds."""

    PARTING = ("checkpoint",)

    def row(self, request: Any) -> int | None:
        return request.kv.req_pool_idx

    def held(self, request: Any) -> int:
        return request.kv.kv_allocated_len

    def release(self, request: Any, cache: Any) -> None:
        from sglang.srt.mem_cache.common import release_kv_cache

        release_kv_cache(request, cache, checkpoint=False)


def ways_of(cache: Any) -> Ways | None:
    """The ways of the version that a prefix cache is of."""
    return next((ways() for ways in (RecordWays, Ways) if all(hasattr(cache, name) for name in ways.PARTING)), None)


def tree_of(cache: Any) -> NoTree:
    """What a prefix cache is looked at through."""
    return NoTree(cache) if getattr(cache, "disable", False) else TREES[name_of(cache)](cache)
