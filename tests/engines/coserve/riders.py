"""The plugin for background requests with one clause left out, by name: each must make ``coserve schedule`` fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate_engines.vllm.background.scheduler import Background
from tidegate_engines.vllm.background.told import Told


def users_last() -> None:
    """Who rides is before users in a step."""
    original = Background._show

    def show(self: Background, users: list[Any], riding: list[Any], fresh: list[Any], budget: int) -> None:
        original(self, users, riding, fresh, budget)
        self.scheduler.running = [*riding, *users]

    Background._show = show  # type: ignore[method-assign]


def beside_prompts() -> None:
    """The library does not hear that a user's prompt waits."""
    original = Told.rides

    def rides(self: Told) -> Any:
        self.ask.prompts = 0
        return original(self)

    Told.rides = rides  # type: ignore[method-assign]


def keeps_blocks() -> None:
    """No background request is put back for a user's blocks."""
    Background._youngest = lambda self, request: None  # type: ignore[method-assign]


def keeps_places() -> None:
    """No background request is put back for a user's place."""
    Background._make_place = lambda self, request: None  # type: ignore[method-assign]


def any_victim() -> None:
    """A background request that lacks blocks takes those of any other, also of one that is in the step already."""

    def behind(self: Background, request: Any) -> Any:
        return next((one for one in self.admitted.values() if one is not request), None)

    Background._behind = behind  # type: ignore[method-assign]


def no_budget() -> None:
    """vLLM's own budget of tokens stays."""
    original = Background._show

    def show(self: Background, users: list[Any], riding: list[Any], fresh: list[Any], budget: int) -> None:
        original(self, users, riding, fresh, self.scheduler.max_num_scheduled_tokens)

    Background._show = show  # type: ignore[method-assign]


def any_adapters() -> None:
    """Slots of adapters are not counted."""
    Background._with_slots = lambda self, users, among: list(among)  # type: ignore[method-assign]


def not_counted() -> None:
    """vLLM's core does not hear of requests that are held."""
    Background._unfinished = lambda self, original: original()  # type: ignore[method-assign]


def not_collected() -> None:
    """Whom vLLM preempted is left in its queue."""

    def collect(self: Background) -> None:
        for name, request in list(self.admitted.items()):
            if request.is_finished():
                del self.admitted[name]

    Background._collect = collect  # type: ignore[method-assign]


def left_in_queue() -> None:
    """A background request that comes waits in vLLM's queue."""
    Background._unqueue = lambda self, request: None  # type: ignore[method-assign]


def raises() -> None:
    """A fault of the plugin's reaches vLLM."""
    Background._kept = lambda self, call, *args: call(*args)  # type: ignore[method-assign]


def lost_at_fault() -> None:
    """Requests that are held at a fault stay there."""

    def give_up(self: Background, error: Exception) -> None:
        self.on = False

    Background._give_up = give_up  # type: ignore[method-assign]


def last_missed() -> None:
    """Who was put back while its last token was under way stays held."""

    def ended(self: Background, output: Any, outputs: Any) -> None:
        self.told.ended(output, outputs)

    Background._ended = ended  # type: ignore[method-assign]


def untold() -> None:
    """Workers of 0.24's second runner do not hear who was put back."""

    def schedule(self: Background, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._ways.tell_preempted = lambda output, names: None
        return before(self, original, *args, **kwargs)

    before = Background._schedule
    Background._schedule = schedule  # type: ignore[method-assign]


CLAUSES: dict[str, Callable[[], None]] = {
    "adapters": any_adapters,
    "blocks": keeps_blocks,
    "budget": no_budget,
    "collect": not_collected,
    "count": not_counted,
    "fault": lost_at_fault,
    "kept": raises,
    "last": last_missed,
    "order": users_last,
    "places": keeps_places,
    "prompts": beside_prompts,
    "queue": left_in_queue,
    "told": untold,
    "victim": any_victim,
}
