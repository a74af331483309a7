"""The judge of paired blocks finds what was put into made-up blocks, and nothing where nothing was."""

import random
import types
import unittest

import paired
import vllm_engine

#: Of the base: when requests come, and where their time goes (seconds).
TIMES = (0.001, 0.004, 0.030, 0.001)


def offsets():
    draw, at = random.Random(7), []
    for burst in range(3):
        at += sorted(burst * paired.BURST + draw.uniform(0, 3) for _ in range(15))
    return at


def block(name, seed, later=(0, 0, 0, 0), drift=0.0, noise=0.002, clustered=0.0, start=100.0, stops=(), met_later=0.0):
    """A block in which each segment of every request takes so much longer. `clustered`: the spread of what a whole burst has
    in common; `met_later`: what requests that meet an edge have more."""
    draw, stamps = random.Random(seed), []
    common = [draw.gauss(0, clustered) for _ in range(3)]
    for at in offsets():
        own = [start + at]
        for nth, (base, more) in enumerate(zip(TIMES, later, strict=True)):
            extra = drift + common[int(at // paired.BURST)] if nth == 1 else 0
            own.append(own[-1] + base + more + extra + draw.gauss(0, noise) / 4)
        met = any(own[0] <= edge < own[-1] for edge, _ in stops)
        own[3:] = [stamp + met * met_later for stamp in own[3:]]
        stamps.append([at, *own])
    return {"name": name, "stamps": stamps, "stops": list(stops)}


class Paired(unittest.TestCase):
    def test_a_known_difference_is_found_in_its_segment(self):
        blocks = [block("gated", 1, (0, 0.0056, 0, 0)), block("paused", 2), block("paused", 3),
                  block("gated", 4, (0, 0.0056, 0, 0))]
        whole = paired.compare(blocks, "gated", "paused")
        self.assertEqual(whole.word(), "later")
        self.assertLess(whole.low, 0.0056)
        self.assertGreater(whole.high, 0.0056)
        self.assertEqual((whole.requests, whole.bursts), (90, 6))
        found = {segment[0]: paired.compare(blocks, "gated", "paused", segment).word() for segment in paired.SEGMENTS}
        self.assertEqual(found, {"sent to queued": "same", "queued to scheduled": "later", "scheduled to first token": "same",
                                 "core to front end": "same"})

    def test_nothing_is_found_where_nothing_is(self):
        words = []
        for seed in range(100):
            blocks = [block(name, 4 * seed + nth) for nth, name in enumerate(["paused", "frozen", "frozen", "paused"])]
            words.append(paired.compare(blocks, "paused", "frozen").word())
        self.assertGreater(words.count("same"), 85)
        self.assertLess(words.count("later") + words.count("sooner"), 12)

    def test_what_grows_with_time_cancels_out_in_the_order_a_b_b_a(self):
        order = ["gated", "paused", "paused", "gated"]
        blocks = [block(name, nth, drift=0.004 * nth, noise=0.0001) for nth, name in enumerate(order)]
        difference = paired.compare(blocks, "gated", "paused")
        self.assertAlmostEqual(difference.mean, 0, delta=0.0002)
        self.assertEqual(difference.word(), "undecided")

    def test_bursts_that_are_late_as_a_whole_are_no_proof(self):
        covered, decided = 0, 0
        for seed in range(200):
            blocks = [block(name, 4 * seed + nth, clustered=0.006) for nth, name in enumerate(["a", "b", "b", "a"])]
            difference = paired.compare(blocks, "a", "b")
            covered += difference.low <= 0 <= difference.high
            decided += difference.word() in ("later", "sooner")
        # By 95 in 100; were requests taken as independent, a half would be missed.
        self.assertGreater(covered, 180)
        self.assertLess(decided, 20)

    def test_requests_that_met_an_edge_are_judged_apart(self):
        # From before each burst's first request until just after it has its token.
        edges = [(100 + at + 0.001, 100 + at + 0.002) for at in offsets()[::15]]
        blocks = [block("gated", 1, stops=edges, met_later=0.003, noise=0.0001), block("paused", 2, noise=0.0001),
                  block("paused", 3, noise=0.0001), block("gated", 4, stops=edges, met_later=0.003, noise=0.0001)]
        met = paired.compare(blocks, "gated", "paused", met=True)
        others = paired.compare(blocks, "gated", "paused", met=False)
        self.assertEqual((met.word(), others.word()), ("later", "same"))
        self.assertAlmostEqual(met.mean, 0.003, delta=0.0005)

    def test_a_stamp_that_the_engine_does_not_tell_costs_its_segments_only(self):
        blocks = [block("gated", 1), block("paused", 2)]
        for stamps in blocks[0]["stamps"]:
            stamps[2] = None
        self.assertIsNone(paired.compare(blocks, "gated", "paused", paired.SEGMENTS[0]))
        self.assertIsNone(paired.compare(blocks, "gated", "paused", paired.SEGMENTS[1]))
        self.assertEqual(paired.compare(blocks, "gated", "paused").requests, 45)

    def test_what_vllm_says_of_a_request_becomes_its_stamps(self):
        said = types.SimpleNamespace(queued_ts=100.3, scheduled_ts=100.4, first_token_ts=100.5)
        self.assertEqual(vllm_engine.stamps(0.25, 100.0, [100.6, 100.7], said), [0.25, 100.25, 100.3, 100.4, 100.5, 100.6])
        # It says 0 of what has not been, and nothing where it keeps no statistics.
        said.scheduled_ts = 0.0
        self.assertEqual(vllm_engine.stamps(0.25, 100.0, [100.6], said)[3], None)
        self.assertEqual(vllm_engine.stamps(0.25, 100.0, [100.6], None)[2:5], [None] * 3)

    def test_one_burst_decides_nothing_and_a_condition_that_did_not_run_is_left_out(self):
        blocks = [block("gated", 1, (0.1, 0, 0, 0)), block("paused", 2)]
        for one in blocks:
            one["stamps"] = one["stamps"][:10]
        self.assertEqual(paired.compare(blocks, "gated", "paused").word(), "undecided")
        self.assertIsNone(paired.compare(blocks, "gated", "native"))
        said = []
        paired.report(blocks, lambda name, _: said.append(name))
        self.assertTrue(all("paused" in name for name in said))


if __name__ == "__main__":
    unittest.main()
