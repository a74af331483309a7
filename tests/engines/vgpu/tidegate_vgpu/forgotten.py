"""Tokens that vLLM's scheduler forgot, as its own method does it, and for whose sake."""

import sys

from vllm.v1.core.sched.scheduler import Scheduler

#: Of requests that had lost a block, and of those that the scheduler preempted by itself.
tokens = {"lost": 0, "own": 0}


def _for_a_loss(frame):
    while frame is not None:
        if frame.f_globals.get("__name__") == "tidegate_engines.vllm.lost":
            return True
        frame = frame.f_back
    return False


def install():
    """Counts, in a process that has both scheduler and worker."""
    original = Scheduler._preempt_request

    def preempt(scheduler, request, *arguments, **named):
        why = "lost" if _for_a_loss(sys._getframe(1)) else "own"
        tokens[why] += request.num_computed_tokens
        return original(scheduler, request, *arguments, **named)

    Scheduler._preempt_request = preempt
