"""How many tokens an engine computes again, told from nothing but what its worker is handed.

Each step hands the worker places of requests: "of this one, the tokens from here to there". A place that was reached
before, because the worker was handed it or was told that the prefix cache holds it, is computed *again*. Whose fault that
is, is not asked: a loss, a lack of blocks, a step that was dropped, a cache that has forgotten. So of requests that ended

    computed = prompts + produced - one for each request - found + again

because the last token of an answer is never read; ``found`` are places that the prefix cache held when they were first
reached. The *tax* is ``again`` over what was produced, the tokens that clients got.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Handed:
    """What one worker was handed."""

    computed: int = 0
    again: int = 0
    found: int = 0
    #: By request: how far it ever came, in tokens.
    reached: dict[str, int] = field(default_factory=dict)

    def part(self, name: str, begin: int, count: int) -> None:
        """A step computes so many tokens of a request from a place on."""
        before = self.reached.get(name, 0)
        end = begin + count
        self.computed += count
        self.found += max(0, begin - before)
        self.again += max(0, min(end, before) - begin)
        self.reached[name] = max(before, end)

    def step(self, output) -> None:
        """A step of vLLM's, as its scheduler hands it over."""
        cached = output.scheduled_cached_reqs
        begins = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        begins.update((new.req_id, new.num_computed_tokens) for new in output.scheduled_new_reqs)
        for name, count in output.num_scheduled_tokens.items():
            self.part(name, begins[name], count)

    def adds_up(self, ended: dict[str, int]) -> bool:
        """Whether that is what requests took that ended; ``ended`` has their prompts and answers, in tokens."""
        needed = sum(ended.get(name, reached + 1) - 1 for name, reached in self.reached.items())
        return self.computed == needed - self.found + self.again


def words(again: int, produced: int, computed: int) -> str:
    """A tax, as lines of measured results have it."""
    return (
        f"{again / max(produced, 1):.3f} tokens computed again per token produced"
        f" ({100 * again / max(computed, 1):.1f} % of all that was computed)"
    )
