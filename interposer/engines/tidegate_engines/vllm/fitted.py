"""The part of a prompt that there is memory for is read while memory for the rest of it is mapped.

vLLM admits a prompt when there are blocks for all of it (``scheduler_reserve_full_isl``), and one that it has begun to read
it sends back, all that was read lost, when there are none for the next part. In a growing cache what lacks is there a few
milliseconds later. So a step that lacks blocks gets a smaller budget of tokens: what the requests before the first that
lacks some take, and of that one as much as fits. The next step reads on.

Invariants: who decodes gets a token in each step, as without this; what vLLM is told for one step it is told for no other;
where no memory has come for ``PATIENCE_S``, or who decodes needs the blocks, vLLM does as it would until some comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request

#: Tokens of a part, at least, but for the last: below a few hundred an iteration takes as long for fewer, as it reads all
#: weights.
LEAST = 512
#: Seconds without new memory after which none is waited for: as long as the agent takes a demand to stand
#: (``promise_lasts``). A reclaim takes 20 ms.
PATIENCE_S = 1.0


class Fitted:
    """The budget of one scheduler's next step."""

    def __init__(
        self,
        scheduler: Scheduler,
        block_size: int,
        waiting: Callable[[], Iterable[Request]],
        coming: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self._scheduler: Any = scheduler
        self._block_size = block_size
        self._waiting = waiting
        #: Blocks that have no memory yet.
        self._coming = coming
        self._clock = clock
        self._knows = reads_parts(scheduler)
        #: Since when no memory has come for a step that lacks some.
        self._since: float | None = None
        #: What the scheduler had before it was told otherwise.
        self._usual: tuple[int, bool] | None = None
        #: The request that this step reads a part of, and those of which one was read, and not yet all. A prompt that
        #: vLLM admitted whole is vLLM's to send back.
        self._part: Request | None = None
        self._begun: set[str] = set()

    def fit(self, lacking: bool, came: bool) -> None:
        """Fits the next step to the blocks that are there: it is lacking some, or memory came for it."""
        self._part = None
        now = self._clock()
        if not lacking or came or self._since is None:
            self._since = now if lacking else None
        if self._sent_back() and self._since is not None:
            self._since = now - PATIENCE_S
        if self._since is None or not self._knows or now - self._since >= PATIENCE_S:
            return
        fitting = self._fitting()
        if fitting is not None:
            scheduler = self._scheduler
            self._usual = scheduler.max_num_scheduled_tokens, scheduler.scheduler_reserve_full_isl
            scheduler.max_num_scheduled_tokens, self._part = fitting
            scheduler.scheduler_reserve_full_isl = False

    def undo(self) -> None:
        """The step is put together, or could not be."""
        if self._usual is not None:
            scheduler = self._scheduler
            scheduler.max_num_scheduled_tokens, scheduler.scheduler_reserve_full_isl = self._usual
            self._usual = None

    def read(self, output: SchedulerOutput) -> bool:
        """Whether that step reads a part of a prompt for want of blocks for more."""
        if self._part is None or self._part.request_id not in output.num_scheduled_tokens:
            return False
        self._begun.add(self._part.request_id)
        return True

    def _sent_back(self) -> bool:
        """Whether one of which a part was read has had to give its blocks up. Forgets those, and those that are read."""
        running = {request.request_id: request for request in self._scheduler.running} if self._begun else {}
        gone = self._begun - running.keys()
        self._begun = {name for name in self._begun - gone if running[name].num_computed_tokens < running[name].num_tokens}
        return any(name in self._scheduler.requests for name in gone)

    def _fitting(self) -> tuple[int, Request] | None:
        """The first request that lacks blocks, and the tokens of all before it with as many of its own as fit.

        None where no part is to be read: vLLM does what it does.
        """
        scheduler, size = self._scheduler, self._block_size
        manager = scheduler.kv_cache_manager
        left = scheduler.max_num_scheduled_tokens
        running = scheduler.running
        part: Request | None = None
        # A part leaves a block to each of the others: they may need one more, or take a token less than it seems.
        others = len(running)
        free = manager.block_pool.get_num_free_blocks() - getattr(manager, "watermark_blocks", 0)
        budget = 0
        for request in running:
            ahead = request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens
            if part is not None and ahead == 1:
                return None  # it would go without its token
            new = min(ahead, left)
            if part is not None or new <= 0:
                continue
            held = len(manager.get_block_ids(request.request_id)[0])
            fits = (held + free) * size - request.num_computed_tokens
            if new > fits:
                if request.request_id not in self._begun:
                    return None
                part = request
                new = _part(fits - (others - 1) * size)
            free -= max(-(-(request.num_computed_tokens + new) // size) - held, 0)
            budget += new
            left -= new
        if part is not None:
            return budget, part
        places = scheduler.max_num_running_reqs - others
        for request in self._waiting():
            if places <= 0 or left <= 0:
                return None
            whole = -(-request.num_tokens // size)
            new = min(request.num_tokens - request.num_computed_tokens, left)
            if whole > free:
                if whole > free + self._coming():
                    return None  # not even with all memory that there is
                new = min(new, _part((free - others) * size))
                return (budget + new, request) if new else None
            free -= whole
            budget += new
            left -= new
            places -= 1
        return None


def _part(fits: int) -> int:
    return fits if fits >= LEAST else 0


def reads_parts(scheduler: Any) -> bool:
    """Whether it can read a prompt in parts of any length, and tells how many blocks each takes."""
    config = scheduler.vllm_config
    known = all(hasattr(scheduler, name) for name in ("max_num_scheduled_tokens", "scheduler_reserve_full_isl"))
    return (
        known
        and config.scheduler_config.enable_chunked_prefill
        # A threshold, a draft or a load from elsewhere changes what a request takes of the budget.
        and not config.scheduler_config.long_prefill_token_threshold
        and not scheduler.num_lookahead_tokens
        and getattr(config, "speculative_config", None) is None
        and getattr(scheduler, "connector", None) is None
        and len(scheduler.kv_cache_config.kv_cache_groups) == 1
        and not getattr(scheduler, "has_mamba_layers", False)
    )
