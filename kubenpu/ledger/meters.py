# SPDX-License-Identifier: Apache-2.0
"""From what drivers say to time that can be believed: Meter for one number of a client, Clock for a cycle counter.

Pure; times are CLOCK_BOOTTIME. Drivers err: a number may go back for a while (the kernel's text says so) or for good,
it may wrap, and it may jump. Refuses growth that the engines cannot have done since the number was new the last time,
and waits: what stays so is the new base, and only what grew since it first showed is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

LATE_NS = 10_000_000_000
"""So much later may a driver say what was used: some do when a job has ended."""
PATIENCE = 4
"""Readings until a number that cannot be is the new base."""
MINUTE_NS = 60_000_000_000
SPAN_NS = 1_000_000_000
"""A cycle counter is timed over at least so long, so that the time one reading takes is a small error."""
SPANS = 5
SUSPENDED_NS = 10_000_000


class Speed(NamedTuple):
    """Counts in so many nanoseconds. Neither is 0."""

    counts: int
    ns: int


NANOSECONDS = Speed(1, 1)


@dataclass(slots=True)
class Meter:
    """`value` is accounted for and was new at `grew_ns`; of what was used until `booked_ns` it is told when that was.
    `odd`: the first of the last `times` readings, which cannot be, at `odd_ns`."""

    grew_ns: int
    booked_ns: int
    value: int = 0
    odd: int = 0
    odd_ns: int = 0
    times: int = 0

    def read(self, value: int, now_ns: int, engines: int, speed: Speed = NANOSECONDS) -> tuple[int, int]:
        """Nanoseconds that are new, and how many of them were used in the minute before."""
        grown = self._grown(value, now_ns, engines, speed) * speed.ns // speed.counts
        begin = max(self.booked_ns, now_ns - MINUTE_NS)
        recent = min(grown, engines * max(now_ns - begin, 0))
        self.booked_ns = begin - -recent // engines
        return grown, recent

    def _grown(self, value: int, now_ns: int, engines: int, speed: Speed) -> int:
        def can_be(grown: int, since_ns: int) -> bool:
            return 0 <= grown * speed.ns <= engines * (now_ns - since_ns + LATE_NS) * speed.counts

        if can_be(value - self.value, self.grew_ns):
            return self._take(value, now_ns, value - self.value)
        if not self.times or not can_be(value - self.odd, self.odd_ns):
            self.odd, self.odd_ns = value, now_ns
        self.times += 1
        return 0 if self.times < PATIENCE else self._take(value, now_ns, value - self.odd)

    def _take(self, value: int, now_ns: int, grown: int) -> int:
        if value != self.value:
            self.value, self.grew_ns = value, now_ns
        self.times = 0
        return grown

    @property
    def runs_ahead(self) -> bool:
        """It grew by more than can be."""
        return self.times > 0 and self.odd > self.value


@dataclass(slots=True)
class Clock:
    """How fast the cycle counter behind an engine runs: `speed`, None while that is not known.

    It is what two of the last `spans` agree on, so that one wrong reading, or a machine that stood still, teaches
    nothing, and what was wrong is forgotten. Each span is from before its first reading to after its second, so that
    the faster of the two is the nearer to the truth. The counter stands while the device sleeps: that is no part of a
    span. One in which the machine was suspended is none.
    """

    last: int = 0
    last_ns: int = 0
    slept_ms: int = 0
    suspended_ns: int = 0
    spans: list[Speed] = field(default_factory=list)
    speed: Speed | None = None

    def read(self, value: int, begin_ns: int, end_ns: int, slept_ms: int, suspended_ns: int) -> None:
        """`value` as of a time between the two; `slept_ms` and `suspended_ns`: of device and machine in their lives."""
        slept_ns = (slept_ms - self.slept_ms) * 1_000_000
        span = end_ns - self.last_ns - slept_ns
        suspended = abs(suspended_ns - self.suspended_ns) > SUSPENDED_NS
        if self.last_ns and value >= self.last and slept_ns >= 0 and not suspended:
            if span < max(SPAN_NS, 100 * (end_ns - begin_ns)):
                return
            if value > self.last:
                self._learn(Speed(value - self.last, span))
        self.last, self.last_ns, self.slept_ms, self.suspended_ns = value, begin_ns, slept_ms, suspended_ns

    def _learn(self, span: Speed) -> None:
        self.spans = [*self.spans, span][-SPANS:]
        fastest = sorted(self.spans, key=lambda each: each.counts / each.ns, reverse=True)
        agreed = (fast for fast, slow in pairwise(fastest) if _agree(fast, slow))
        self.speed = next(agreed, self.speed)


def _agree(fast: Speed, slow: Speed) -> bool:
    """But for 2 %."""
    return slow.counts * fast.ns * 50 >= fast.counts * slow.ns * 49
