"""Measures the steps of an engine and its users' requests, and tells the library, which decides."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ...coserve_abi import ARRIVED, ENDED, FIRST, RETURNED, Ask, Coserve, Rides, Step

#: Steps that an engine has under way at most.
UNDER_WAY = 8
#: Requests whose times are kept.
LATELY = 1000


class User:
    """A user's request."""

    __slots__ = ("arrived", "first", "number", "request")

    def __init__(self, number: int, request: Any, arrived: int) -> None:
        self.number, self.request, self.arrived, self.first = number, request, arrived, 0


class Told:
    """The times of one scheduler's steps, in ns since the start."""

    def __init__(self, coserve: Coserve, clock: Callable[[], int]) -> None:
        self._coserve, self._clock, self._start = coserve, clock, clock()
        self.ask, self._step = Ask(), Step()
        self._users: dict[str, User] = {}
        #: Those of them without a first token.
        self._early: dict[str, User] = {}
        self._serial = 0
        #: Steps under way: the output, when it was scheduled, that less what was trained, what it holds, and who came back
        #: with it.
        self._flying: deque[tuple[Any, int, int, tuple[int, ...], tuple[int, int] | None]] = deque(maxlen=UNDER_WAY)
        self._ended = self._ended_own = 0
        #: What was trained so far, ns: the device does it while no step runs.
        self.trained = 0
        #: Since when no user has a request.
        self._idle_since = 0
        #: The last step without users: when it began and ended, 0 while it is under way.
        self._own = (0, 1)
        #: Since when users that came back have waited, and after how long.
        self._back: tuple[int, int] | None = None
        #: Of the last requests: to first token, and per further one if there was any, ns.
        self.lately: deque[tuple[int, int]] = deque(maxlen=LATELY)

    def now(self) -> int:
        return self._clock() - self._start

    def rides(self) -> Rides:
        """What rides in the step that ``ask`` describes."""
        self.ask.now_ns, self.ask.under_way = self.now(), len(self._flying)
        return self._coserve.rides(self.ask)

    def came(self, request: Any) -> None:
        """A user's request."""
        now = self.now()
        if not self._users and self._back is None:
            # A core takes requests in between two steps: what they waited for is told from when they were made.
            begun, ended = self._own
            made = now - max(int((time.time() - request.arrival_time) * 1e9), 0)
            waits = max(made, begun) if not ended or ended > made else now
            self._back = waits, now - self._idle_since
        self._serial += 1
        user = User(self._serial, request, now)
        self._users[request.request_id] = self._early[request.request_id] = user
        self._coserve.see(ARRIVED, user.number, 0, 0, now)

    def users(self) -> list[str]:
        """Users with requests."""
        return list(self._users)

    def went(self, name: str) -> None:
        """It ended, or was aborted."""
        user = self._users.pop(name, None)
        if user is None:
            return
        now = self.now()
        self._early.pop(name, None)
        if not user.first:
            self._coserve.see(FIRST, user.number, now - user.arrived, 0, now)
        first = user.first or now
        each = (now - first) // max(user.request.num_output_tokens - 1, 1)
        self._coserve.see(ENDED, user.number, first - user.arrived, each, now)
        self.lately.append((first - user.arrived, each))
        if not self._users:
            self._idle_since = now

    def scheduled(self, output: Any, rows: int, prompt: int) -> None:
        """A step begins, with so many background requests that decode and prompt tokens of theirs."""
        now, ask = self.now(), self.ask
        total = output.total_num_scheduled_tokens
        if total:
            users = min(ask.users, total)
            read = max(total - users - rows - prompt, 0)
            held = (users, read, rows, prompt, ask.users_cached, ask.background_cached * rows // max(ask.background, 1))
            back = None
            if (users or read) and self._back is not None:
                back, self._back = self._back, None
            self._flying.append((output, now, now - self.trained, held, back))
            if not users and not read:
                self._own = now, 0

    def ended(self, output: Any, outputs: Any) -> list[str]:
        """A step is over, and these are its tokens. Whose last ones they are."""
        now, last = self.now(), []
        for client in outputs.values():
            for one in client.outputs:
                name = one.request_id
                if self._early and one.new_token_ids and (user := self._early.pop(name, None)) is not None:
                    user.first = now
                    self._coserve.see(FIRST, user.number, now - user.arrived, 0, now)
                if one.finish_reason is not None:
                    last.append(name)
                    self.went(name)
        # An empty step was never under way.
        while self._flying and output.total_num_scheduled_tokens:
            of, begun, own, held, back = self._flying.popleft()
            if of is output:
                self._rode(now, max(begun, self._ended), max(own, self._ended_own), held, back)
                break
        return last

    def _rode(self, now: int, begun: int, own: int, held: tuple[int, ...], back: tuple[int, int] | None) -> None:
        step = self._step
        if back is not None:
            since, idle = back
            self._coserve.see(RETURNED, 0, idle, max(begun - since, 0), now)
        step.now_ns, step.took_ns = now, max(now - self.trained - own, 0)
        step.interval_ns = now - self._ended
        step.users, step.users_prompt, step.rows, step.prompt, step.users_cached, step.background_cached = held
        self._ended, self._ended_own = now, now - self.trained
        if not step.users and not step.users_prompt:
            self._own = begun, now
        self._coserve.rode(step)
