"""Requests that SGLang would not admit even alone with the memory that is there: the others go past them.

SGLang goes through its queue and stops at the first request that finds no room. That ends when enough of those that run
have ended. But while memory is away, a request may need more than there is at all, and an offline engine would do nothing
until it is back. Such requests are taken from the queue while a step is put together, and are in it again right after, where
they stood.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from .slots import Slots


class Aside:
    """Those of one scheduler."""

    def __init__(self, scheduler: Any, slots: Slots) -> None:
        from sglang.srt.managers import schedule_policy

        self._scheduler = scheduler
        self._slots = slots
        #: Tokens of an answer that SGLang counts on at the most. Without that, on none.
        self._most: int = getattr(schedule_policy, "CLIP_MAX_NEW_TOKENS", 0)
        #: Whether the other way of admission counts a page more, too: in later versions.
        way = getattr(schedule_policy.PrefillAdder, "add_one_req_ignore_eos", None)
        names = way.__code__.co_names if way is not None else ()
        self._margin = slots.page if "per_req_token_overhead" in names else 0

    def among(self, waiting: list[Any]) -> list[Any]:
        """Those of the waiting ones, in their order. Nobody, while nothing is withheld."""
        if not self._slots.any():
            return []
        room = self._slots.room()
        return [request for request in waiting if self._needs(request) >= room]

    def _needs(self, request: Any) -> int:
        """Slots of which there have to be more (``PrefillAdder.add_one_req``); no more than SGLang asks for in any case."""
        known = len(request.output_ids)
        tokens = len(request.origin_input_ids) + known
        params, page = request.sampling_params, self._slots.page
        left = max(params.max_new_tokens - known, 0)
        if params.ignore_eos and getattr(self._scheduler.tree_cache, "disable", True):
            return -(-tokens // page) * page + self._margin + left + 1  # add_one_req_ignore_eos
        return tokens + min(left, self._most) + page


def put_back(aside: list[Any], waiting: list[Any], places: dict[int, int]) -> Iterator[Any]:
    """Those that wait with those that were put aside: each of these before who stood behind it, by ``id``."""
    left = deque(aside)
    for request in waiting:
        place = places.get(id(request), -1)  # who came meanwhile was retracted: it is before all
        while left and places[id(left[0])] < place:
            yield left.popleft()
        yield request
    yield from left
