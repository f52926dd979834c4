# SPDX-License-Identifier: Apache-2.0
"""What `busy --timeline` tells: when the GPU was done with each piece of a tenant's work. Pure arithmetic."""

import bisect
import dataclasses
import statistics


@dataclasses.dataclass
class Timeline:
    """Pieces in the order in which the GPU did them; times are those of CLOCK_MONOTONIC, in ns."""

    begin_ns: int
    end_ns: list
    work_ns: list

    @classmethod
    def of(cls, report):
        return cls(report["begin_ns"], report["piece_end_ns"], report["piece_work_ns"])

    def done_ns(self, since_ns, until_ns):
        """GPU time received between the two: pieces that ended, and of those cut by either time their part."""
        first = bisect.bisect_right(self.end_ns, since_ns)
        done = 0
        for end, work in zip(self.end_ns[first:], self.work_ns[first:]):
            begin = end - work
            if begin >= until_ns:
                break
            done += min(end, until_ns) - max(begin, since_ns)
        return done

    def longest_gap_ns(self, since_ns, until_ns):
        """The longest time without a piece of it on the GPU, between those that ended in that time."""
        first, last = bisect.bisect_left(self.end_ns, since_ns), bisect.bisect_right(self.end_ns, until_ns)
        gaps = [self.end_ns[i] - self.work_ns[i] - self.end_ns[i - 1] for i in range(max(first, 1), last)]
        return max(gaps, default=until_ns - since_ns)


def shares(timelines, since_ns, until_ns):
    """Of the GPU time that all received together in that time."""
    done = [timeline.done_ns(since_ns, until_ns) for timeline in timelines]
    return [part / max(1, sum(done)) for part in done]


def share_over_time(timelines, begin_ns, end_ns, step_ns):
    """Points (seconds since `begin_ns`, GPU time received / wall time of each) for steps of that length."""
    points = []
    for at in range(begin_ns, end_ns - step_ns + 1, step_ns):
        received = [timeline.done_ns(at, at + step_ns) / step_ns for timeline in timelines]
        points.append(((at + step_ns / 2 - begin_ns) * 1e-9, received))
    return points


def hand_over_gaps_ns(one, other):
    """From the end of one tenant's last piece to the begin of the other's first, at each change of hands.

    Each program matches the GPU's clock to the host's by itself, so the two timelines are apart by a constant. It makes
    the changes in one direction longer by what it makes those in the other shorter, and is taken off again.
    """
    pieces = sorted(
        (end, end - work, which)
        for which, timeline in enumerate((one, other))
        for end, work in zip(timeline.end_ns, timeline.work_ns)
    )
    gaps = ([], [])
    for (end, _, before), (_, begin, after) in zip(pieces, pieces[1:]):
        if before != after:
            gaps[after].append(begin - end)
    if not gaps[0] or not gaps[1]:
        return []
    apart = (statistics.median(gaps[1]) - statistics.median(gaps[0])) / 2
    return [gap + apart for gap in gaps[0]] + [gap - apart for gap in gaps[1]]


def quantile(values, part):
    """The smallest value that is not below that part of all."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def jain(values):
    """Jain's fairness index: 1 if all are the same, 1/n if one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))
