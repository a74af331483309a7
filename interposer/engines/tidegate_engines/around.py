"""How a plugin stands around an engine's methods: each of them still runs, called by what stands around it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def of_instance(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Has ``owner.name``, of an instance, be a call of ``wrapper(original, ...)``."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(owner, name, method)


def of_class(owner: type[Any], name: str, wrapper: Callable[..., Any]) -> None:
    """Has ``owner.name`` of every instance be a call of ``wrapper(original, self, ...)``, once."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return wrapper(original, self, *args, **kwargs)

        return method

    once(owner, name, make)


def once(owner: type[Any], name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Has ``owner.name`` be what ``make`` makes of it, once: for what is called too often for ``of_class``."""
    original = getattr(owner, name)
    if getattr(original, "_tidegate", False):
        return
    method = functools.wraps(original)(make(original))
    method._tidegate = True  # type: ignore[attr-defined]
    setattr(owner, name, method)
