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
    original = getattr(owner, name)
    if getattr(original, "_tidegate", False):
        return

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(original, self, *args, **kwargs)

    method._tidegate = True  # type: ignore[attr-defined]
    setattr(owner, name, method)
