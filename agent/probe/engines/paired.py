"""Judges conditions that were blocks inside one pair of engines: each request beside the same one under another condition.

    paired.py blocks.jsonl

A line is a block: `name`, `stamps` (of each request its offset, sent, queued, scheduled, first token in the engine's core,
first token in the front end; seconds) and `stops`, edges at which offline was found on the GPU and was off it. The nth block
of one condition is compared with the nth of the other, so that in the order A B B A what changes with time cancels out.

Requests of one burst are not independent: one that comes late makes those behind it late. So a burst of a block counts
once for the width of the interval, which is Student's of as many bursts.
"""

import json
import math
import sys

#: Where a request's time goes, by the stamps on both sides.
SEGMENTS = [("sent to queued", 1, 2), ("queued to scheduled", 2, 3), ("scheduled to first token", 3, 4),
            ("core to front end", 4, 5)]
#: From sending to the first token in the front end.
WHOLE = ("first token", 1, 5)
#: Seconds from the beginning of one burst to the next (serve.schedule).
BURST = 7.0
#: What counts as nothing, in seconds.
SAME = 0.001
#: Student's t that 97.5 % of draws are below, by degrees of freedom.
STUDENT = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
           2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042]
#: Condition, and what it is compared with; what of a request's time would then be whose.
COMPARISONS = [
    ("gated", "paused", "edges: offline runs between requests"),
    ("paused", "frozen", "processors that a stopped offline engine takes"),
    ("paused", "pinned", "processors that both share"),
    ("frozen", "watched", "an offline engine that does nothing at all"),
    ("watched", "bare", "the agent"),
    ("bare", "native", "the library"),
    ("gated", "native", "Tidegate in all"),
]


class Difference:
    """How much later requests are, in seconds: the mean, and what it lies between by 95 in 100 such runs."""

    def __init__(self, clusters):
        each = [value for cluster in clusters for value in cluster]
        self.requests, self.bursts = len(each), len(clusters)
        self.mean = sum(each) / len(each)
        self.low, self.high = -math.inf, math.inf
        if self.bursts > 1:
            spread = sum(sum(value - self.mean for value in cluster) ** 2 for cluster in clusters)
            error = math.sqrt(spread * self.bursts / (self.bursts - 1)) / len(each)
            half = STUDENT[min(self.bursts - 1, len(STUDENT)) - 1] * error
            self.low, self.high = self.mean - half, self.mean + half

    def word(self):
        """`same`: less than a millisecond, if there is a difference. `later`, `sooner`: by what cannot be chance.
        `undecided`: either may be."""
        if -SAME < self.low and self.high < SAME:
            return "same"
        if self.low > 0:
            return "later"
        return "sooner" if self.high < 0 else "undecided"

    def text(self):
        return (f"{1e3 * self.mean:+.2f} ms ({1e3 * self.low:+.2f} to {1e3 * self.high:+.2f}; {self.requests} requests in "
                f"{self.bursts} bursts): {self.word()}")


def span(stamps, first, last):
    """Seconds between two of a request's stamps; None: one was not told."""
    if stamps[first] is None or stamps[last] is None:
        return None
    return stamps[last] - stamps[first]


def requests(block):
    """Of a block: stamps by the request's offset in it."""
    return {round(stamps[0], 6): stamps for stamps in block["stamps"]}


def stopped_offline(stamps, stops):
    """Whether the request met offline on the GPU."""
    return any(stamps[1] <= edge < stamps[5] for edge, _ in stops)


def compare(blocks, one, other, segment=WHOLE, met=None):
    """How much later requests were in blocks called `one` than in those called `other`; None: nothing can be compared.
    `met`: only those of `one` for which offline had to be stopped, or only the others."""
    ones, others = ([block for block in blocks if block["name"] == name] for name in (one, other))
    clusters = {}
    for nth, block in enumerate(ones if others else []):
        truth = requests(others[min(nth, len(others) - 1)])
        for offset, stamps in requests(block).items():
            if met is not None and stopped_offline(stamps, block["stops"]) != met or offset not in truth:
                continue
            took, would = span(stamps, *segment[1:]), span(truth[offset], *segment[1:])
            if took is not None and would is not None:
                clusters.setdefault((nth, offset // BURST), []).append(took - would)
    return Difference(list(clusters.values())) if clusters else None


def report(blocks, say):
    """Every comparison, by `say(name, difference)`."""
    for one, other, whose in COMPARISONS:
        for segment in [WHOLE, *SEGMENTS]:
            difference = compare(blocks, one, other, segment)
            if difference:
                say(f"{one} beside {other} ({whose}), {segment[0]}", difference)
    for met, which in ((True, "that had offline stopped"), (False, "that found it stopped")):
        difference = compare(blocks, "gated", "paused", met=met)
        if difference:
            say(f"gated beside paused, requests {which}", difference)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        report([json.loads(line) for line in file], lambda name, difference: print(f"{name}: {difference.text()}"))


if __name__ == "__main__":
    main()
