# SPDX-License-Identifier: Apache-2.0
"""What every total grew by since it was stored last, and whose time that was. Pure.

The totals of calls and those of device time come from two processes, each with its own Totals here. They leave a
workload in two ways: into the device's departed total, when its series is retired, and back among those without a name,
when a restarted kubenpud has lost the name. The first must not lessen what the workload was charged, the second must,
because the same amounts come back with the name. The growth of the departed total tells them apart.
A name that was lost may come back as long as the counters live: whose counts left meanwhile is asked when it does.
What a device has and no workload explains is unattributed; so workloads and that add up to the device, always.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import add, sub
from typing import NamedTuple

from kubenpu.history.schema import DEPARTED, DEVICE, RETIRED, UNATTRIBUTED, UNEXPLAINED
from kubenpu.history.snapshot import Snapshot, Total, Values
from kubenpu.model.usage import (
    ACTIVE_MS,
    ALLOCATED_MS,
    BY_ACTIVITY_MS,
    BY_ALLOCATION_MS,
    BY_DEVICE_TIME_MS,
    PRESENT_MS,
    SHARE_MS,
    UNUSED_MS,
    UNWATCHED_MS,
)

STEP_S = 60.0
WATCHED_MS = 150_000
"""Of a longer interval nobody knows when in it the calls were made. A write that failed once does not make one."""

MOST_GONE = 1000
"""So many lost names are remembered. Above that the longest lost are forgotten, and charged again if they come back."""

Key = tuple[int, int]
"""Numbers of workload and device."""

Growth = dict[Key, Values]


class Last(NamedTuple):
    """What was stored last: of which counters, and when that was, of the boot and of the wall."""

    epoch: str
    boot_end_ms: int
    end_ms: int

    def is_of_boot(self, epoch: str) -> bool:
        return boot_of(self.epoch) == boot_of(epoch)


class Interval(NamedTuple):
    """Times without `boot` are the wall's."""

    start_ms: int
    end_ms: int
    boot_end_ms: int
    length_ms: int

    @property
    def watched(self) -> bool:
        return self.length_ms <= WATCHED_MS

    def counted_ms(self, counting_ns: int) -> int:
        """The part of it in which calls were counted, when they are counted since then."""
        return max(0, min(self.length_ms, self.boot_end_ms - counting_ns // 1_000_000))


@dataclass(slots=True)
class Totals:
    """The totals of an epoch by workload and device. Named workloads have a `first_ns`; `gone`: missing since."""

    values: dict[Key, Values] = field(default_factory=dict)
    first_ns: dict[Key, int] = field(default_factory=dict)
    gone: dict[Key, int] = field(default_factory=dict)

    def copy(self) -> Totals:
        return Totals(dict(self.values), dict(self.first_ns), dict(self.gone))

    def step(self, key: Key, values: Values) -> Values:
        """Takes the new values and gives the growth."""
        before = self.values.get(key)
        self.values[key] = values
        return values if before is None else tuple(map(sub, values, before))

    def retire(self, key: Key, left: Values) -> None:
        """So much of a workload is under no name any more."""
        place = (RETIRED, key[1])
        self.values[place] = _plus(self.values.get(place), left)
        self.values[key] = tuple(map(sub, self.values[key], left))

    def forget(self, key: Key) -> None:
        self.retire(key, self.values[key])
        del self.values[key], self.first_ns[key]
        self.gone.pop(key, None)


def boot_of(epoch: str) -> str:
    return epoch.partition("/")[0]


def is_base(snapshot: Snapshot, last: Last | None, seen: bool) -> bool:
    """Whether part of the totals may have been stored already, nobody knows which: nothing of them is stored now.

    `seen`: this epoch is in the history. It is not the one that goes on if there was another one meanwhile. A file
    without any is new beside counters that are not: it took the place of one that is gone.
    """
    if last is not None:
        return seen and last.epoch != snapshot.epoch
    begin_ns = min(snapshot.counting_ns.values(), default=0)
    return snapshot.taken_ns - begin_ns > WATCHED_MS * 1_000_000


def plan_interval(snapshot: Snapshot, last: Last | None) -> Interval:
    """From the last one's end. The first of an epoch begins with its counting, after the last one of the same boot."""
    end = snapshot.taken_ns // 1_000_000
    if last is not None and last.epoch == snapshot.epoch:
        start = last.boot_end_ms
    else:
        begin = min(snapshot.counting_ns.values(), default=0) // 1_000_000
        start = max(min(begin, end), last.boot_end_ms if last is not None and last.is_of_boot(snapshot.epoch) else 0)
    return Interval(snapshot.unix_ms - (end - start), snapshot.unix_ms, end, end - start)


def _plus(one: Values | None, other: Values) -> Values:
    return other if one is None else tuple(map(add, one, other))


def plan_growth(
    old: Totals,
    devices: Mapping[int, Values],
    departed: Mapping[int, Values],
    workloads: Mapping[Key, Total],
    now_ms: int,
) -> tuple[Totals, Growth]:
    """The totals as they are now, and what is to be stored as having happened.

    `devices`: the totals of every device; `departed`: the part of them that is under no workload's name any more.
    """
    new, growth = old.copy(), Growth()
    left = {number: new.step((DEPARTED, number), values) for number, values in departed.items()}
    _retire_gone(old, new, workloads, left, now_ms)
    for number, values in left.items():
        if old.values and any(values):  # of what departed before nobody here knew the name
            new.values[UNEXPLAINED, number] = _plus(new.values.get((UNEXPLAINED, number)), values)
    for key, total in workloads.items():
        growth[key] = new.step(key, total.values)
        new.first_ns[key] = total.first_ns
        new.gone.pop(key, None)
    for key in sorted(new.gone, key=new.gone.__getitem__)[:-MOST_GONE]:
        new.forget(key)
    _grow_devices(new, growth, devices)
    return new, growth


def _retire_gone(
    old: Totals, new: Totals, workloads: Mapping[Key, Total], departed: dict[int, Values], now_ms: int
) -> None:
    """Says of the workloads that are not there any more, or not with all they had, what part of them is departed.

    As a rule that is all of one. The largest come first, so that none is taken for another one's part.
    """
    here = [key for key in old.first_ns if key in workloads or key not in old.gone]
    less = sorted(
        (key for key in here if _has_less(old, key, workloads.get(key))), key=lambda key: (-sum(old.values[key]), key)
    )
    rest = [key for key in less if not _depart(new, key, departed, only_all=True)]
    for key in rest:
        if key in workloads:
            _depart(new, key, departed, only_all=False)
            if key in old.gone:
                _explain(new, key, workloads[key].values)
        else:
            new.gone[key] = now_ms
    for key in less:
        if key not in workloads and key not in rest:
            new.forget(key)


def _depart(new: Totals, key: Key, departed: dict[int, Values], only_all: bool) -> bool:
    """Takes as much of the departed total's growth for this workload's as it can be."""
    growth = departed.get(key[1], (0,) * len(new.values[key]))
    left = tuple(map(min, new.values[key], growth))
    if only_all and left != new.values[key]:
        return False
    departed[key[1]] = tuple(map(sub, growth, left))
    new.retire(key, left)
    return True


def _explain(new: Totals, key: Key, now: Values) -> None:
    """It is back, and so much of it at least is not: that departed while nobody knew whose it was, if anything did."""
    place = (UNEXPLAINED, key[1])
    if place in new.values:
        lacking = (max(0, had - has) for had, has in zip(new.values[key], now, strict=True))
        left = tuple(map(min, lacking, new.values[place]))
        new.values[place] = tuple(map(sub, new.values[place], left))
        new.retire(key, left)


def _has_less(old: Totals, key: Key, now: Total | None) -> bool:
    """Whether it lost something since: it is not there, its oldest part is not, or a number went down."""
    return now is None or now.first_ns > old.first_ns[key] or any(map(int.__lt__, now.values, old.values[key]))


def _grow_devices(new: Totals, growth: Growth, devices: Mapping[int, Values]) -> None:
    named: dict[int, Values] = {}
    for (workload, device), values in new.values.items():
        if workload not in (DEVICE, UNATTRIBUTED, DEPARTED, UNEXPLAINED):
            named[device] = _plus(named.get(device), values)
    for number, total in devices.items():
        growth[DEVICE, number] = new.step((DEVICE, number), total)
        rest = tuple(map(sub, total, named[number])) if number in named else total
        growth[UNATTRIBUTED, number] = new.step((UNATTRIBUTED, number), rest)


def find_late(old: Totals, first_ns: Mapping[Key, int], interval: Interval) -> set[Key]:
    """Who has a name now, had none when the interval began, and was there: it brings along what was nobody's before."""
    begin_ns = (interval.boot_end_ms - interval.length_ms) * 1_000_000
    nameless = (key for key in first_ns if key not in old.first_ns or key in old.gone)
    return {key for key in nameless if first_ns[key] < begin_ns}


def happened(growth: Mapping[Key, int], late: Collection[Key]) -> dict[Key, int]:
    """What was done in the interval itself, of one measure: by whom, and on the device as a whole.

    When a name comes or goes, workloads grow by more than their device: by what was nobody's before and is the late
    one's now, or was somebody's and is nobody's now. It is taken off them.
    """
    made = {key: amount for key, amount in growth.items() if amount > 0}
    excess: defaultdict[int, int] = defaultdict(int)
    for (workload, device), amount in made.items():
        excess[device] += -amount if workload == DEVICE else amount
    for device in [each for each, amount in excess.items() if amount > 0]:
        for group in ([UNATTRIBUTED], [workload for workload, place in late if place == device]):
            there = {workload: made[workload, device] for workload in group if (workload, device) in made}
            left = max(0, sum(there.values()) - excess[device])
            excess[device] -= sum(there.values()) - left
            made.update(((workload, device), part) for workload, part in _divide(left, there))
    return {key: amount for key, amount in made.items() if amount}


def plan_times(
    calls: Mapping[Key, int],
    interval: Interval,
    counted_ms: Mapping[int, int],
    present: Iterable[int],
    *,
    holders: Mapping[int, Collection[int]],
    worked: Mapping[Key, int],
) -> Iterator[tuple[Key, str, int]]:
    """Who was active, who held the device, and what part of its time is whose. The parts of one device add up exactly.

    `calls`, and `worked` in nanoseconds: of the interval itself. `counted_ms`: by device, the part of it in which its
    calls were counted, if there is one. `holders`: by device, whom it was given to.
    """
    active: defaultdict[int, list[int]] = defaultdict(list)
    spent: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for workload, device in calls:
        if workload != DEVICE:
            active[device].append(workload)
    for (workload, device), ns in worked.items():
        if workload != DEVICE:
            spent[device][workload] = ns
    for device in {*present, *active, *spent} & counted_ms.keys():
        length, users, held = counted_ms[device], active.get(device, []), holders.get(device, ())
        yield (DEVICE, device), PRESENT_MS, length
        if interval.watched:
            work = min(length, worked.get((DEVICE, device), 0) // 1_000_000) if device in spent else 0
            found = (*_active(users, held, length), *_shares(users, held, spent.get(device, {}), work, length))
            yield from (((workload, device), measure, ms) for workload, measure, ms in found)
        elif users or held or device in spent:
            yield (DEVICE, device), UNWATCHED_MS, length


Time = tuple[int, str, int]
"""Of one device: workload, measure, milliseconds."""


def _active(users: Collection[int], held: Collection[int], length: int) -> Iterator[Time]:
    active, allocated = [DEVICE, *users] if users else [], [DEVICE, *held] if held else []
    yield from ((workload, ACTIVE_MS, length) for workload in active)
    yield from ((workload, ALLOCATED_MS, length) for workload in allocated)
    yield from ((workload, UNUSED_MS, length) for workload in allocated if workload not in active)


def _shares(
    users: Iterable[int], held: Collection[int], spent: Mapping[int, int], worked: int, length: int
) -> Iterator[Time]:
    """By the first of RULES as long as the device `worked`, by the next of which something is known for the rest.

    `spent`: nanoseconds by workload, only their proportion matters. Engines that work side by side may have had more of
    them than there were.
    """
    rule, others = (BY_ALLOCATION_MS, held) if held else (BY_ACTIVITY_MS, users)
    shares: defaultdict[int, int] = defaultdict(int)
    for name, ms, weights in ((BY_DEVICE_TIME_MS, worked, spent), (rule, length - worked, dict.fromkeys(others, 1))):
        if ms and weights:
            yield DEVICE, name, ms
            for workload, part in _divide(ms, weights):
                shares[workload] += part
    yield from ((workload, SHARE_MS, ms) for workload, ms in shares.items())


def _divide(ms: int, weights: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Whole milliseconds that add up."""
    whole, end = sum(weights.values()), 0
    for workload, weight in sorted(weights.items()):
        begin, end = end, end + weight
        yield workload, ms * end // whole - ms * begin // whole
