# SPDX-License-Identifier: Apache-2.0
"""The arithmetic behind the figures about GPU time, and the plots, on data whose answers are known."""

import unittest
import xml.etree.ElementTree

from report import svg
from verify.timelines import Timeline, hand_over_gaps_ns, jain, quantile, share_over_time, shares

MS = 1_000_000


def alternating(turns, lengths_ms, gap_ns, clocks_apart_ns=0):
    """Timelines of two tenants that take turns with pieces of 1 ms; the second's clock is that much ahead."""
    ends, now = ([], []), 0
    for turn in range(turns):
        which = turn % 2
        now += gap_ns
        for _ in range(lengths_ms[which]):
            now += MS
            ends[which].append(now + clocks_apart_ns * which)
    return [Timeline(0, end, [MS] * len(end)) for end in ends]


class Timelines(unittest.TestCase):
    def test_pieces_that_are_cut_count_in_part(self):
        timeline = Timeline(0, [10 * MS, 20 * MS], [4 * MS, 10 * MS])
        self.assertEqual(timeline.done_ns(0, 20 * MS), 14 * MS)
        self.assertEqual(timeline.done_ns(8 * MS, 12 * MS), 4 * MS)
        self.assertEqual(timeline.done_ns(0, 6 * MS), 0)
        self.assertEqual(timeline.done_ns(15 * MS, 30 * MS), 5 * MS)

    def test_shares_are_of_what_all_received(self):
        one, other = alternating(200, (3, 1), 100_000)
        self.assertAlmostEqual(shares((one, other), 0, one.end_ns[-1])[0], 0.75, delta=0.01)

    def test_share_over_time_has_a_point_for_each_step(self):
        points = share_over_time(alternating(100, (5, 5), 0), 0, 400 * MS, 50 * MS)
        self.assertEqual(len(points), 8)
        for at, received in points:
            self.assertAlmostEqual(sum(received), 1, delta=1e-6, msg=at)

    def test_longest_gap_is_between_pieces(self):
        one, _ = alternating(100, (5, 7), 0)
        self.assertEqual(one.longest_gap_ns(20 * MS, 400 * MS), 7 * MS)
        self.assertEqual(Timeline(0, [MS], [MS]).longest_gap_ns(5 * MS, 9 * MS), 4 * MS)

    def test_hand_over_does_not_see_that_clocks_differ(self):
        for apart in (0, 400_000, -400_000):
            gaps = hand_over_gaps_ns(*alternating(50, (5, 5), 150_000, apart))
            self.assertEqual(len(gaps), 49)
            self.assertEqual({round(gap) for gap in gaps}, {150_000})

    def test_no_change_of_hands_has_no_hand_over(self):
        self.assertEqual(hand_over_gaps_ns(Timeline(0, [1, 2], [1, 1]), Timeline(0, [], [])), [])

    def test_quantile_and_jain(self):
        self.assertEqual(quantile(range(100), 0.99), 99)
        self.assertEqual(quantile([7], 0.5), 7)
        self.assertEqual(jain([3, 3, 3]), 1)
        self.assertEqual(jain([1, 0, 0, 0]), 0.25)


class Plots(unittest.TestCase):
    def test_a_plot_is_well_formed_and_in_its_frame(self):
        text = svg.lines("a < b", "x", "y", {"one & two": [(0, 0), (5, 50), (10, 100)]}, levels=[("30 %", 30)])
        root = xml.etree.ElementTree.fromstring(text)
        line = root.find("{http://www.w3.org/2000/svg}polyline")
        for point in line.get("points").split():
            x, y = map(float, point.split(","))
            self.assertTrue(0 <= x <= svg.WIDTH and 0 <= y <= svg.HEIGHT, point)

    def test_ticks_are_round_and_inside(self):
        self.assertEqual(svg.ticks(0, 100), [0, 20, 40, 60, 80, 100])
        self.assertTrue(all(0.13 <= tick <= 0.87 for tick in svg.ticks(0.13, 0.87)))

    def test_a_distribution_ends_at_one_and_is_thinned(self):
        points = svg.distribution(range(10_000))
        self.assertLessEqual(len(points), 500)
        self.assertEqual(points[-1], (9999, 1.0))

    def test_nothing_to_plot_is_said(self):
        with self.assertRaises(ValueError):
            svg.lines("empty", "x", "y", {"one": []})


if __name__ == "__main__":
    unittest.main()
