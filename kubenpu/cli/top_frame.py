# SPDX-License-Identifier: Apache-2.0
"""What `kubenpuctl top` shows at one moment, as lines of text with a style each. Pure: knows no terminal and no bus.

Lines are never wider than they are asked to be, in cells, and hold nothing that a terminal would obey.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kubenpu.cli.output import count_cells, cut, cut_middle, escape, fill, show_time
from kubenpu.cli.rates import Line, Rates, Sample, rate_devices, rate_workloads
from kubenpu.cli.workloads import name_of
from kubenpu.model.sample import OFF

NUMBER_CELLS = 6
LEAST_NAME_CELLS = LEAST_DEVICE_CELLS = 12
HELP = "q quit  p pause  / filter  r reverse  arrows scroll  sort by: its first letter"
_UNITS = "kMGTPE"


class Style(enum.Enum):
    PLAIN = enum.auto()
    TITLE = enum.auto()
    HEADER = enum.auto()
    FAILING = enum.auto()  # errors in the last interval
    GONE = enum.auto()  # no cgroup of the workload exists any more
    TROUBLE = enum.auto()
    HELP = enum.auto()


class Text(NamedTuple):
    text: str
    style: Style = Style.PLAIN


class Column(NamedTuple):
    """`name` begins with its key and is what --sort takes. `value` is sorted by; None comes last."""

    name: str
    header: str
    value: Callable[[Line], str | float | None]
    show: Callable[[Line], str]
    is_name: bool = False


def show_number(value: float | None) -> str:
    """In six cells at most."""
    if value is None:
        return "-"
    if 0 < value < 9.95 and not isinstance(value, int):
        return f"{value:.1f}" if value >= 0.1 else f"{value:.3f}"
    units, unit = iter(_UNITS), ""
    while value >= 99999.5:
        value, unit = value / 1000, next(units)
    return f"{value:.0f}{unit}"


def _rate(name: str, header: str, get: Callable[[Rates], float | None]) -> Column:
    def value(line: Line) -> float | None:
        return None if line.rates is None else get(line.rates)

    return Column(name, header, value, lambda line: show_number(value(line)))


def _total(name: str, header: str, get: Callable[[Line], int | None]) -> Column:
    return Column(name, header, get, lambda line: show_number(get(line)))


COLUMNS = (
    Column("name", "NAME", lambda line: name_of(line.row.owner), lambda line: name_of(line.row.owner), is_name=True),
    Column("device", "DEVICE", lambda line: line.row.device, lambda line: line.row.device, is_name=True),
    _rate("submits", "SUBMIT/S", lambda rates: rates.submits),
    _rate("calls", "CALLS/S", lambda rates: rates.calls),
    _rate("errors", "ERROR/S", lambda rates: rates.errors),
    _rate("waiting", "WAITING", lambda rates: rates.waiting),
    _total("total", "TOTAL", lambda line: sum(line.row.counts.calls.values())),
    _total("failed", "FAILED", lambda line: line.row.counts.failed),
)
BY_NAME = {column.name: column for column in COLUMNS}
_FIRST_TO_GO = ("failed", "total", "device", "waiting", "errors", "submits")
"""In a narrow terminal."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the person in front of it chose. `typing`: the filter is being written."""

    sort: str = "calls"
    reverse: bool = False
    needle: str = ""
    typing: bool = False
    paused: bool = False
    offset: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """What is known: two samples (no rates without `old`) and, if kubenpud does not answer now, why."""

    old: Sample | None
    new: Sample
    interval_s: float
    trouble: str = ""
    ascii_only: bool = False

    def safe(self, text: str) -> str:
        return escape(text, self.ascii_only)


def select(state: State, look: Look) -> list[Line]:
    """The lines that fit the filter, sorted: names from a to z, numbers from the highest down."""
    lines = rate_workloads(state.old, state.new)
    needle = look.needle.lower()
    found = [line for line in lines if needle in f"{name_of(line.row.owner)} {line.row.device}".lower()]
    column = BY_NAME[look.sort]
    known = [(value, line) for line in found if (value := column.value(line)) is not None]
    unknown = [line for line in found if column.value(line) is None]
    known.sort(key=lambda pair: pair[0], reverse=column.is_name == look.reverse)
    return [line for _, line in known] + unknown


def draw(state: State, look: Look, width: int, height: int) -> tuple[list[Text], Look]:
    """A screen full, and the look with an offset that shows something."""
    head = draw_head(state, look)
    lines = select(state, look)
    room = max(height - len(head) - 2, 0)
    offset = max(0, min(look.offset, len(lines) - room))
    table = draw_table(state, lines, width, slice(offset, offset + room))
    body = [*head, *table, *[Text("")] * (room + 1 - len(table)), draw_foot(state, look)]
    shown = [Text(cut(text, width), style) for text, style in body[: max(height - 1, 0)] + body[-1:]]
    return shown[:height], Look(look.sort, look.reverse, look.needle, look.typing, look.paused, offset)


def draw_head(state: State, look: Look) -> list[Text]:
    node = state.new.node
    hooks = ", ".join(f"{hook} {mechanism}" for hook, mechanism in node.hooks.items())
    since = "" if node.counting_since is None else f"counting since {show_time(node.counting_since)}"
    mark = "SIMULATED NODE" if node.simulated else ""
    title = "  ".join(filter(None, (mark, node.node, f"kubenpud {node.version}", hooks, since)))
    off = any(mechanism == OFF for mechanism in node.hooks.values())
    devices = "  ".join(
        f"{device.address} {device.vendor or '-'} {'-' if rates is None else show_number(rates.calls) + '/s'}"
        for device, rates in rate_devices(state.old, state.new)
    )
    return [
        Text(state.safe(title), Style.TROUBLE if off else Style.TITLE),
        Text(state.safe(f"Devices: {devices or 'none'}")),
        _draw_status(state, look),
    ]


def _draw_status(state: State, look: Look) -> Text:
    if state.trouble:
        return Text(state.safe(f"Reconnecting: {state.trouble}"), Style.TROUBLE)
    order = f"by {look.sort}{', reversed' if look.reverse else ''}"
    needle = f'only "{look.needle}"' if look.needle else ""
    paused = "PAUSED" if look.paused else f"every {state.interval_s:g} s"
    parts = (f"{len(state.new.rows)} workloads on devices", order, paused, needle)
    return Text(state.safe("  ".join(filter(None, parts))))


def draw_foot(state: State, look: Look) -> Text:
    return Text(state.safe(f"Filter: {look.needle}_  (Enter: done, Esc: none)") if look.typing else HELP, Style.HELP)


def draw_table(state: State, lines: Sequence[Line], width: int, part: slice = slice(None)) -> list[Text]:
    """Header and a part of the rows: names take what is left, and what has no room is left out."""
    columns = list(COLUMNS)
    device_cells = min(_longest(state, BY_NAME["device"], lines), max(LEAST_DEVICE_CELLS, width // 5))
    for name in _FIRST_TO_GO:
        if _name_cells(columns, device_cells, width) >= LEAST_NAME_CELLS:
            break
        columns.remove(BY_NAME[name])
    room = max(_name_cells(columns, device_cells, width), 1)
    widths = {"name": min(room, _longest(state, BY_NAME["name"], lines)), "device": device_cells}

    def row(cells: Sequence[str]) -> str:
        return " ".join(
            fill(cut_middle(cell, widths[column.name]), widths[column.name])
            if column.is_name
            else cell.rjust(_number_cells(column))
            for column, cell in zip(columns, cells, strict=True)
        )

    header = Text(row([column.header for column in columns]), Style.HEADER)
    return [header, *(Text(row([state.safe(c.show(line)) for c in columns]), _style(line)) for line in lines[part])]


def _longest(state: State, column: Column, lines: Iterable[Line]) -> int:
    return max([LEAST_DEVICE_CELLS, *(count_cells(state.safe(column.show(line))) for line in lines)])


def _name_cells(columns: Sequence[Column], device_cells: int, width: int) -> int:
    others = [device_cells if column.is_name else _number_cells(column) for column in columns if column.name != "name"]
    return width - sum(others) - len(others)


def _number_cells(column: Column) -> int:
    return max(NUMBER_CELLS, len(column.header))


def _style(line: Line) -> Style:
    if line.rates is not None and line.rates.errors:
        return Style.FAILING
    return Style.PLAIN if line.row.alive else Style.GONE
