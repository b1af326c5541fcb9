# SPDX-License-Identifier: Apache-2.0
"""A report as one HTML page with charts, for a browser or a mail: nothing is loaded, nothing runs.

Pure. The page has no script and a policy that forbids any; every text from the node is escaped twice, for what a reader
cannot see and for HTML. Follows the reader's preference for light or dark.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from kubenpu.cli.output import escape
from kubenpu.cli.report_lines import (
    GROUPS,
    IDLE,
    UNATTRIBUTED,
    UNWATCHED,
    Line,
    Report,
    describe_split,
    group_of,
    idle_ms,
)
from kubenpu.cli.report_output import cells_of, header_of
from kubenpu.model.usage import PRESENT_MS, SHARE_MS, UNWATCHED_MS, Part, UsageRow

Span = tuple[int, int]
Shares = Mapping[str, float]
"""Milliseconds by what a chart shows: the colour of a group, or one of the names in parentheses."""

MOST_BARS = 62
WIDTHS_S = (900, 3600, 3 * 3600, 6 * 3600, 86400, 7 * 86400, 28 * 86400)
COLOURS = 8
OTHERS = "(others)"
_CLASSES = {OTHERS: "others", UNATTRIBUTED: "unattributed", UNWATCHED: "unwatched", IDLE: "idle"}
_UNITS = {"hours": 3_600_000, "minutes": 60_000, "seconds": 1000}
_WIDTH, _HEIGHT, _LEFT, _BELOW = 960, 220, 48, 22

STYLE = """
:root { color-scheme: light dark; --text: #1c1f23; --quiet: #667079; --ground: #ffffff; --rule: #dde1e5;
  --c0: #2f6fd0; --c1: #d9792b; --c2: #3c9a5f; --c3: #a04fc0; --c4: #c4455d; --c5: #1f9aa8; --c6: #8a7a1f;
  --c7: #7a5a44; --others: #8d97a1; --unattributed: #55606b; --unwatched: #e4c75a; --idle: #eceff2; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e7ea; --quiet: #98a2ac; --ground: #16191d; --rule: #333a41;
  --c0: #6ea3f2; --c1: #ef9e59; --c2: #67c38b; --c3: #c584e0; --c4: #ea7c90; --c5: #54c3d0; --c6: #c2b04a;
  --c7: #b8937a; --others: #75808b; --unattributed: #aab4be; --unwatched: #a8892a; --idle: #262c32; } }
body { margin: 2rem auto; max-width: 70rem; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif;
  color: var(--text); background: var(--ground); }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2.2rem 0 .6rem; }
p { margin: .3rem 0; max-width: 48rem; } .quiet { color: var(--quiet); }
.mark { display: inline-block; padding: .1rem .6rem; border: 1px solid currentColor; border-radius: 1rem; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--quiet); font-size: 12px; } svg .name { fill: var(--text); font-size: 13px; }
svg line { stroke: var(--rule); }
ul { list-style: none; padding: 0; margin: .6rem 0; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; }
li { overflow-wrap: anywhere; } .named { position: relative; padding-left: 1.3em; }
.swatch { position: absolute; left: 0; top: .4em; width: .8em; height: .8em; border-radius: 2px; }
td .swatch { top: .75em; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem .3rem 0; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { font-weight: 600; color: var(--quiet); font-size: .8rem; }
.text { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 9rem; }
tr.total td { font-weight: 600; border-bottom: 0; } tr.rest td { color: var(--quiet); }
""" + "".join(
    f".{name} {{ fill: var(--{name}); background: var(--{name}); }}\n"
    for name in (*(f"c{number}" for number in range(COLOURS)), *_CLASSES.values())
)


def plan_spans(rows: Sequence[UsageRow], asked: Span) -> list[Span]:
    """Adjacent spans of one width that cover what the rows do of the time that was asked for, for the chart over time.
    Their first minute may have begun before that."""
    if not rows:
        return []
    begin, end = min(row.since for row in rows), max(row.until for row in rows)
    width = next((w for w in WIDTHS_S if (end - begin) / w < MOST_BARS - 1), math.ceil((end - begin) / MOST_BARS))
    first = int(begin) // width * width
    spans = [(at, at + width) for at in range(first, math.ceil(end), width)]
    return [span for span in spans if span[1] > asked[0] and span[0] < asked[1]]


def render_page(
    report: Report,
    rows: Sequence[UsageRow],
    parts: Sequence[tuple[Span, list[UsageRow]]],
    node: str,
    simulated: bool | None,
) -> str:
    """`rows` are those of the report, `parts` the same by span."""
    colours = _choose_colours(report)
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    title = f"Accelerator use{f' of {node}' if node else ''}"
    notes = "".join(f"<p>{_text(note)}.</p>" for note in report.notes)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'sha256-{digest}'">
<meta name="referrer" content="no-referrer"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(title)}</title><style>{STYLE}</style></head><body>
<h1>{_text(title)}</h1>
<p class="quiet">{_span(report.asked)} UTC, by {_text(" ".join(report.columns))}; stored: {_span(report.stored)}</p>
{'<p class="mark">Simulated node: nobody used hardware.</p>' if simulated else ""}
<h2>Time of each device</h2>
{_device_chart(report, rows, colours)}
{_legend(colours)}
{_time_chart(report, parts, colours)}
<h2>Use</h2>
<div class="scroll">{_table(report, colours)}</div>
<h2>How this is split</h2>
<p>{_text(describe_split(report))}</p>{notes}
</body></html>
"""


def _choose_colours(report: Report) -> dict[tuple[str, ...], str]:
    """The groups with the most device time; they are the first lines."""
    groups = [line.names for line in report.lines if line.kind in GROUPS and line.amounts.get(SHARE_MS)]
    return {names: f"c{number}" for number, names in enumerate(groups[:COLOURS])}


def _shares(report: Report, rows: Iterable[UsageRow], colours: Mapping[tuple[str, ...], str]) -> dict[str, float]:
    """By class of colour, in the order in which they are drawn."""
    found = dict.fromkeys((*colours.values(), *_CLASSES.values()), 0.0)
    for row in rows:
        share = row.amounts.get(SHARE_MS, 0)
        match row.part:
            case Part.WORKLOAD:
                found[colours.get(group_of(report.by, row)[1], _CLASSES[OTHERS])] += share
            case Part.UNATTRIBUTED:
                found[_CLASSES[UNATTRIBUTED]] += share
            case Part.DEVICE:
                found[_CLASSES[UNWATCHED]] += row.amounts.get(UNWATCHED_MS, 0)
                found[_CLASSES[IDLE]] += idle_ms(row)
    return found


def _device_chart(report: Report, rows: Sequence[UsageRow], colours: Mapping[tuple[str, ...], str]) -> str:
    """One bar per device and driver that has time: all of it."""
    drawn = []
    timed = [device for device in report.devices if device.amounts.get(PRESENT_MS, 0)]
    for place, device in enumerate(timed):
        top = place * 44
        name = f"{device.device} {device.vendor or ''}"
        hours = device.amounts.get(PRESENT_MS, 0) / 3_600_000
        drawn.append(f'<text class="name" x="0" y="{top + 13}">{_text(name[:100])}</text>')
        drawn.append(f'<text x="{_WIDTH}" y="{top + 13}" text-anchor="end">{hours:.1f} h</text>')
        own = [row for row in rows if (row.device, row.vendor) == (device.device, device.vendor)]
        shares = _shares(report, own, colours)
        whole = sum(shares.values()) or 1
        ends = list(accumulate(shares.values()))
        for (name, share), end in zip(shares.items(), ends, strict=True):
            if share > 0:
                left, wide = (end - share) / whole * _WIDTH, share / whole * _WIDTH
                drawn.append(_bar(name, f"{share / 3_600_000:.2f} h", left, top + 18, wide, 16))
    return _svg(44 * max(1, len(timed)), drawn, "time of each device by group")


def _time_chart(
    report: Report, parts: Sequence[tuple[Span, list[UsageRow]]], colours: Mapping[tuple[str, ...], str]
) -> str:
    """A heading with the unit, and one column per span; idle time is what is left white."""
    columns = [(span, _shares(report, rows, colours)) for span, rows in parts]
    for _, shares in columns:
        del shares[_CLASSES[IDLE]]
    highest = max((sum(shares.values()) for _, shares in columns), default=0.0)
    unit = next((name for name, ms in _UNITS.items() if highest >= ms), "hours" if not highest else "seconds")
    top = _round_up(highest / _UNITS[unit])
    drawn = [*_scale(top)]
    step = (_WIDTH - _LEFT) / max(1, len(columns))
    for place, ((begin, _), shares) in enumerate(columns):
        left, base = _LEFT + place * step, float(_HEIGHT)
        for name, share in shares.items():
            high = share / _UNITS[unit] / top * (_HEIGHT - 12)
            if high > 0:
                base -= high
                shown = f"{_when(begin)}: {share / _UNITS[unit]:.3g} {unit}"
                drawn.append(_bar(name, shown, left, base, max(1.0, step - 2), high))
    drawn += _dates([span[0] for span, _ in columns], step)
    heading = f"<h2>Device time in {unit}</h2>\n"
    return heading + _svg(_HEIGHT + _BELOW, drawn, "device time over time by group")


def _dates(begins: Sequence[int], step: float) -> Iterator[str]:
    """As many as there is room for, each with the day and not the time where columns are days."""
    whole_days = len(begins) > 1 and begins[1] - begins[0] >= 86400
    every = math.ceil(100 / step)
    for place in range(0, len(begins), every):
        left = _LEFT + place * step
        if left < _WIDTH - 80:
            shown = _when(begins[place])[5 : 10 if whole_days else 16]
            yield f'<text x="{left:.1f}" y="{_HEIGHT + 16}">{shown}</text>'


def _scale(top: float) -> Iterator[str]:
    for part in (0.0, 0.5, 1.0):
        y = _HEIGHT - part * (_HEIGHT - 12)
        yield f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top * part:.3g}</text>'


def _round_up(amount: float) -> float:
    """The next even number of one digit; never 0."""
    if amount <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(amount))
    return next(step * power for step in (1, 2, 3, 4, 6, 8, 10) if step * power >= amount * 0.999)


def _bar(name: str, title: str, left: float, top: float, width: float, height: float) -> str:  # noqa: PLR0917
    return (
        f'<rect class="{name}" x="{left:.1f}" y="{top:.1f}" width="{width:.2f}" height="{height:.2f}">'
        f"<title>{title}</title></rect>"
    )


def _svg(height: int, drawn: Iterable[str], label: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">{"".join(drawn)}</svg>'


def _legend(colours: Mapping[tuple[str, ...], str]) -> str:
    entries = [(" / ".join(filter(None, names)), name) for names, name in colours.items()]
    entries += _CLASSES.items()
    items = (f'<li class="named"><span class="swatch {name}"></span>{_text(shown)}</li>' for shown, name in entries)
    return f"<ul>{''.join(items)}</ul>"


def _table(report: Report, colours: Mapping[tuple[str, ...], str]) -> str:
    header = header_of(report)
    width = len(report.columns)
    head = "".join(f"<th{_align(place, width)}>{_text(name)}</th>" for place, name in enumerate(header))
    body = "".join(_row(line, report, colours) for line in report.lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _row(line: Line, report: Report, colours: Mapping[tuple[str, ...], str]) -> str:
    grouped = line.kind in GROUPS
    style = "work" if grouped else "total" if line.kind == "total" else "rest"
    colour = colours.get(line.names) if grouped else _CLASSES.get(line.names[0])
    swatch = f'<span class="swatch {colour or "none"}"></span>'
    cells = []
    for place, cell in enumerate(cells_of(line, report)):
        shown = _text(cell) if cell else "" if place < len(report.columns) else "-"
        if place == 0:
            cells.append(f'<td class="text named">{swatch}{shown}</td>')
        else:
            cells.append(f"<td{_align(place, len(report.columns))}>{shown}</td>")
    return f'<tr class="{style}">{"".join(cells)}</tr>'


def _align(place: int, width: int) -> str:
    return ' class="text"' if place < width else ""


def _text(text: str) -> str:
    return html.escape(escape(text))


def _span(span: tuple[float, float] | None) -> str:
    return " to ".join(map(_when, span)) if span else "nothing"


def _when(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(unix_s))
