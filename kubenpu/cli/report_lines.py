# SPDX-License-Identifier: Apache-2.0
"""From usage per group and device to the lines of a report, which add up: workloads, unattributed, unwatched, idle.

Pure. Owns the rule by which a device's time, and with it its cost, is divided; SPLIT says it in words, and every report
shows it. Refuses to guess: what is known of no device of a line is None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from kubenpu.cli.output import ABSENT, show_time
from kubenpu.cli.prices import Prices
from kubenpu.model.usage import (
    ALLOCATED_MS,
    BY_ACTIVITY_MS,
    BY_ALLOCATION_MS,
    BY_DEVICE_TIME_MS,
    BY_LABEL,
    DEVICE_NS,
    MEMORY_KIB_S,
    PRESENT_MS,
    RULES,
    SHARE_MS,
    UNUSED_MS,
    UNWATCHED_MS,
    WAIT_NS,
    Part,
    UsageRow,
)

SPLIT = (
    "Each stored interval (a minute) of a device is divided by device time for as long as the device worked in it, "
    "where its driver tells that of all work. The rest, or all of it where that is not known, is divided by "
    "allocation: evenly among the containers that the kubelet has given the device to, used or not. Where it has "
    "given it to none, or does not tell, by activity: evenly among those who made calls to it. What is neither given "
    "nor used is idle; time in which nobody looked for more than 150 seconds is unwatched, if the device was used in "
    "it or is given to somebody at its end. Neither is charged to anybody. IDLE % is the part of allocated time "
    "without a call; where kubenpuctl drivers does not say that submissions are always seen, there may have been work "
    "in it. Device seconds and memory are what the driver tells of its clients, - where it does not."
)
RULE_NAMES: Mapping[str, str] = {
    BY_DEVICE_TIME_MS: "device time",
    BY_ALLOCATION_MS: "allocation",
    BY_ACTIVITY_MS: "activity",
}
UNATTRIBUTED, UNWATCHED, IDLE, TOTAL = "(unattributed)", "(unwatched)", "(idle)", "total"
NAMES: Mapping[str, tuple[str, ...]] = {
    "namespace": ("namespace",),
    "pod": ("namespace", "pod"),
    "container": ("namespace", "pod", "container"),
    "unit": ("unit",),
    "device": ("device", "vendor"),
}
GROUPS = ("workload", "host", "pods", "none")
"""Kinds of lines that are groups of workloads: with a name, and those without one by what they are instead."""

SLACK_S = 15 * 60 + 120
"""So much may be lacking of what was asked for: part of a quarter of an hour, and the last minute is not stored yet."""

_CENTS = 100


@dataclass(frozen=True, slots=True)
class Line:
    """`names` as they are shown, in the order of the report's columns. Amounts as in model/usage.py.

    `cost` in hundredths of the currency, rounded so that lines add up; None: a device of it has no price.
    """

    kind: str
    names: tuple[str, ...]
    amounts: Mapping[str, int]
    cost: int | None = None

    def sum_of(self, prefix: str) -> int | None:
        found = [value for name, value in self.amounts.items() if name.startswith(prefix)]
        return sum(found) if found else None


@dataclass(frozen=True, slots=True)
class Report:
    """`asked` is the span that was asked for, `stored` that of the intervals there are of it, both in Unix time; None:
    there is none. The last line is the total of all others."""

    by: str
    columns: tuple[str, ...]
    asked: tuple[int, int]
    stored: tuple[float, float] | None
    lines: tuple[Line, ...]
    devices: tuple[UsageRow, ...]
    currency: str
    notes: tuple[str, ...]


def columns_of(by: str) -> tuple[str, ...]:
    return (by.removeprefix(BY_LABEL),) if by.startswith(BY_LABEL) else NAMES[by]


def make_report(by: str, rows: Sequence[UsageRow], asked: tuple[int, int], prices: Prices | None) -> Report:
    devices = tuple(row for row in rows if row.part is Part.DEVICE)
    columns = columns_of(by)
    groups: dict[tuple[str, tuple[str, ...]], list[UsageRow]] = {}
    for row in rows:
        if row.part is Part.WORKLOAD:
            groups.setdefault(group_of(by, row), []).append(row)
    last = [row for row in rows if row.part is Part.UNATTRIBUTED]
    found = [_Sum.of(kind, names, members, prices) for (kind, names), members in groups.items()]
    found.sort(key=lambda each: (-each.amounts.get(SHARE_MS, 0), -each.calls, each.names))
    width = len(columns)
    found.append(_Sum.of("unattributed", _pad(UNATTRIBUTED, width), last, prices))
    found += (_Sum.of_time(kind, _pad(name, width), devices, prices) for kind, name in _TIMES)
    total = _Sum.of("total", _pad(TOTAL, width), devices, prices, PRESENT_MS)
    stored = (min(row.since for row in rows), max(row.until for row in rows)) if rows else None
    return Report(
        by=by,
        columns=columns,
        asked=asked,
        stored=stored,
        lines=(*_priced(found), *_priced([total])),
        devices=devices,
        currency=prices.currency if prices else "",
        notes=(*_notes_of_span(asked, stored), *_notes_of_label(by, rows), *_notes(rows, devices, prices)),
    )


_TIMES = (("unwatched", UNWATCHED), ("idle", IDLE))


def group_of(by: str, row: UsageRow) -> tuple[str, tuple[str, ...]]:
    """Kind and names of the line that a row is a part of; what has no such name says in parentheses why."""
    if by.startswith(BY_LABEL):
        return _named((row.label,)) if row.label else ("none", ("(none)",))
    match by:
        case "namespace":
            return _named((row.namespace,)) if row.namespace else _HOST
        case "pod":
            return _named((row.namespace, row.pod)) if row.pod else _of_host(row.unit)
        case "container":
            return _named((row.namespace, row.pod, row.container)) if row.pod else _of_host(row.unit, "")
        case "unit":
            return _named((row.unit,)) if row.unit else ("pods", ("(pods)",))
        case _:
            return _named((row.device, row.vendor or ""))


_HOST = ("host", ("(host)",))


def _of_host(*names: str) -> tuple[str, tuple[str, ...]]:
    kind, host = _HOST
    return kind, (*host, *map(quote, names))


def _named(names: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    return "workload", tuple(map(quote, names))


def quote(name: str) -> str:
    """In quotation marks what could be taken for a name of ours: a tenant may call itself (unattributed)."""
    ours = name.startswith(("(", '"')) or name != name.strip() or name.casefold() in {TOTAL, ABSENT}
    return f'"{name}"' if ours else name


def _pad(name: str, width: int) -> tuple[str, ...]:
    return (name, *[""] * (width - 1))


@dataclass(frozen=True, slots=True)
class _Sum:
    """A line whose cost is exact yet."""

    kind: str
    names: tuple[str, ...]
    amounts: Mapping[str, int]
    cost: Fraction | None

    @property
    def calls(self) -> int:
        return sum(value for name, value in self.amounts.items() if name.startswith("calls."))

    @classmethod
    def of(
        cls, kind: str, names: tuple[str, ...], rows: Sequence[UsageRow], prices: Prices | None, time: str = SHARE_MS
    ) -> _Sum:
        amounts: dict[str, int] = {}
        for row in rows:
            for measure, value in row.amounts.items():
                amounts[measure] = amounts.get(measure, 0) + value
        if time != SHARE_MS:
            amounts[SHARE_MS] = amounts.pop(time, 0)
        return cls(kind, names, amounts, _cost([(row, row.amounts.get(time, 0)) for row in rows], prices))

    @classmethod
    def of_time(cls, kind: str, names: tuple[str, ...], devices: Sequence[UsageRow], prices: Prices | None) -> _Sum:
        """Time of devices that is nobody's."""
        times = [(row, row.amounts.get(UNWATCHED_MS, 0) if kind == "unwatched" else idle_ms(row)) for row in devices]
        return cls(kind, names, {SHARE_MS: sum(ms for _, ms in times)}, _cost(times, prices))


def idle_ms(device: UsageRow) -> int:
    """What nobody had of the time in which calls were counted."""
    get = device.amounts.get
    return get(PRESENT_MS, 0) - sum(get(rule, 0) for rule in RULES) - get(UNWATCHED_MS, 0)


def split_of(device: UsageRow) -> dict[str, int]:
    """Milliseconds of the device's time by the name of the rule that divided them."""
    return {RULE_NAMES[rule]: device.amounts[rule] for rule in RULES if device.amounts.get(rule)}


def name_of(device: UsageRow, devices: Sequence[UsageRow]) -> str:
    """Its address; with the driver where it had several, as each of them is a device of its own."""
    several = sum(each.device == device.device for each in devices) > 1
    return f"{device.device} ({device.vendor or ABSENT})" if several else device.device


def describe_split(report: Report) -> str:
    """SPLIT, and which device's time was divided how."""
    parts = []
    for device in report.devices:
        hours = [f"{ms / 3_600_000:.2f} h by {name}" for name, ms in split_of(device).items()]
        parts += [f"{name_of(device, report.devices)}: {', '.join(hours)}"] if hours else []
    return f"{SPLIT} Divided here: {'; '.join(parts)}." if parts else SPLIT


def _cost(times: Iterable[tuple[UsageRow, int]], prices: Prices | None) -> Fraction | None:
    total = Fraction(0)
    for row, ms in times:
        price = prices.of(row.device, row.vendor) if prices else None
        if price is None and ms:
            return None
        total += Fraction(price or Decimal(0)) * ms / 3_600_000
    return total if prices else None


def _priced(found: Iterable[_Sum]) -> Iterable[Line]:
    """Each line gets what the sum up to it, rounded, is more than the one before."""
    exact, rounded = Fraction(0), 0
    for each in found:
        cost = None
        if each.cost is not None:
            exact += each.cost
            cost = round(exact * _CENTS) - rounded
            rounded += cost
        yield Line(each.kind, each.names, each.amounts, cost)


def _notes_of_span(asked: tuple[int, int], stored: tuple[float, float] | None) -> Iterable[str]:
    if stored is None:
        yield "nothing is stored of this time, which ends with the last whole quarter of an hour before --until"
    elif stored[0] > asked[0] + SLACK_S or stored[1] < asked[1] - SLACK_S:
        wanted, found = (" to ".join(map(show_time, span)) for span in (asked, stored))
        yield f"only a part of the time is stored that was asked for: {found} of {wanted}"


def _notes_of_label(by: str, rows: Iterable[UsageRow]) -> Iterable[str]:
    labels = {row.label for row in rows if row.part is Part.WORKLOAD}
    if by.startswith(BY_LABEL) and labels == {""}:
        key = by.removeprefix(BY_LABEL)
        yield f"nobody here has the label {key}: kubenpud stores those that identity.pod_labels names, from then on"


def _notes(rows: Sequence[UsageRow], devices: Sequence[UsageRow], prices: Prices | None) -> Iterable[str]:
    blind = [name_of(row, devices) for row in devices if "calls.submit" not in row.amounts]
    if blind:
        yield f"submits are not known of {', '.join(blind)}: the driver does not show them"
    silent = [name_of(row, devices) for row in devices if "errors.other" not in row.amounts]
    if silent:
        yield f"errors and waits are not known of {', '.join(silent)}: only the beginning of a call is seen there"
    if any(value < 0 for row in rows if row.part is Part.UNATTRIBUTED for value in row.amounts.values()):
        yield "less than 0 unattributed: calls from before this time got their name in it"
    timed = [row for row in devices if row.amounts.get(PRESENT_MS, 0)]
    unpriced = [name_of(row, devices) for row in timed if prices and prices.of(row.device, row.vendor) is None]
    if unpriced:
        yield f"no price for {', '.join(unpriced)}"
    if prices and timed:
        for key in prices.find_unused([(row.device, row.vendor) for row in timed]):
            yield f"the price of {key} is not used: nothing so called has time of its own here"
    if any(row.amounts.get(UNWATCHED_MS, 0) for row in devices):
        yield "for part of the time nothing was stored: who was active when is not known of it, calls are complete"
    known = Counter[str]()
    for row in devices:
        known[row.device] += row.amounts.get(PRESENT_MS, 0)
    most = max(known.values(), default=0)
    if rows and most < (max(row.until for row in rows) - min(row.since for row in rows)) * 990:
        yield "calls were not counted, or the history was not kept, for part of the time"


def wait_seconds(line: Line) -> float | None:
    return _scaled(line, WAIT_NS, 1e9)


def device_seconds(line: Line) -> float | None:
    return _scaled(line, DEVICE_NS, 1e9)


def memory_gib_hours(line: Line) -> float | None:
    return _scaled(line, MEMORY_KIB_S, 3600 << 20)


def _scaled(line: Line, measure: str, unit: float) -> float | None:
    value = line.amounts.get(measure)
    return None if value is None else value / unit


def idle_share(line: Line) -> float | None:
    """The part without calls of the time that devices were given to it; None where none was, or that is not known."""
    allocated = line.amounts.get(ALLOCATED_MS)
    return line.amounts.get(UNUSED_MS, 0) / allocated if allocated else None
