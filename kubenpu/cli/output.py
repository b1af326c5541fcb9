# SPDX-License-Identifier: Apache-2.0
"""How kubenpuctl prints: tables for people, JSON for programs, notes on standard error.

Text that comes from the node (names of cgroups, drivers, pods) is not trusted: what a terminal would obey, what a
reader cannot see and what joins the character before it is shown as an escape. Every character that is left has a place
of its own, of one or two cells, so that columns stay columns. Prints no colour, so pipes and NO_COLOR need nothing
special. Knows nothing of what it prints.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TextIO

ABSENT = "-"
CUT = "+"  # what was cut off stood here
_GAP = "  "
_Lines = list[list[str]]
_LEAST_CELLS = 12  # a column is cut down to this and no further: a PCI address
# Printable for Python; yet Hangul vowels and finals join what stands before them, as do flags and skin tones, and
# fillers and the empty Braille pattern show nothing.
_JOINING = ((0x1160, 0x11FF), (0xD7B0, 0xD7FF), (0x1F1E6, 0x1F1FF), (0x1F3FB, 0x1F3FF))
_BLANK = "\u115f\u2800\u3164\uffa0"


def add_format_arguments(parser: argparse.ArgumentParser) -> None:
    """The two options that every listing has; they become args.json and args.wide."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_wide_argument(parser, "columns")


def add_wide_argument(parser: argparse.ArgumentParser, more: str) -> None:
    parser.add_argument("-o", "--output", choices=["wide"], help=f"wide: print more {more}")


def is_wide(args: argparse.Namespace) -> bool:
    return bool(args.output == "wide")


def print_table(
    header: Sequence[str], rows: Iterable[Sequence[str | None]], first_to_go: Sequence[str] = ()
) -> Sequence[str]:
    """Columns as wide as their widest cell; a cell that is None or empty shows as `-`.

    `first_to_go`: on a terminal that is too narrow the widest columns are cut, then these are left out one by one, then
    all others but numbers are cut further. Returns what was left out.
    """
    lines = _make_lines(header, rows)
    gone: Sequence[str] = ()
    if first_to_go and sys.stdout is not None and sys.stdout.isatty():
        lines, gone = _fit(lines, shutil.get_terminal_size().columns, first_to_go)
    print_text(_join(lines))
    return gone


def print_json(document: object) -> None:
    """One document. Keys keep their order; text beyond ASCII is escaped, so any terminal and any encoding takes it."""
    print_text(json.dumps(document, indent=2) + "\n")


def print_text(text: str) -> None:
    """Text for standard output; the caller has escaped what is not to be trusted."""
    _write(sys.stdout, text)


def print_note(text: str) -> None:
    """One line about the answer, where it does not get into the answer."""
    _write(sys.stderr, f"kubenpuctl: {escape(text)}\n")


def render_table(header: Sequence[str], rows: Iterable[Sequence[str | None]]) -> str:
    """The text of a table, without blanks at the ends of lines."""
    return _join(_make_lines(header, rows))


def _make_lines(header: Sequence[str], rows: Iterable[Sequence[str | None]]) -> _Lines:
    return [list(header), *([escape(cell) if cell else ABSENT for cell in row] for row in rows)]


def _join(lines: _Lines) -> str:
    widths = _widths(lines)
    return "".join(_GAP.join(map(fill, line, widths)).rstrip() + "\n" for line in lines)


def _widths(lines: _Lines) -> list[int]:
    return [max(map(count_cells, column)) for column in zip(*lines, strict=True)]


def _fit(lines: _Lines, limit: int, first_to_go: Sequence[str]) -> tuple[_Lines, Sequence[str]]:
    """The table in at most `limit` cells, where numbers leave that room, and the columns that it lacks."""
    for count in range(len(first_to_go) + 1):
        gone = first_to_go[:count]
        kept = [index for index, title in enumerate(lines[0]) if title not in gone]
        fewer = [[line[index] for index in kept] for line in lines]
        widths = _cut_widths(fewer, limit, _LEAST_CELLS if count < len(first_to_go) else 1)
        if _line_cells(widths) <= limit:
            break
    return [list(map(cut, line, widths)) for line in fewer], gone


def _cut_widths(lines: _Lines, limit: int, least: int) -> list[int]:
    """Taken from the widest columns first, and never from numbers: a part of one is another number."""
    widths = _widths(lines)
    names = [index for index, cells in enumerate(zip(*lines[1:], strict=True)) if not all(map(_is_number, cells))]
    while _line_cells(widths) > limit and any(widths[index] > least for index in names):
        widths[max(names, key=widths.__getitem__)] -= 1
    return widths


def _line_cells(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _is_number(cell: str) -> bool:
    return cell == ABSENT or cell.isdigit()


def escape(text: str, ascii_only: bool = False) -> str:
    """The text with everything that is not one visible character of its own as `\\x1b`. Line ends too."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if _is_plain(char) and (char.isascii() or not ascii_only) else ascii(char)[1:-1] for char in text
    )


def _is_plain(char: str) -> bool:
    if not char.isprintable() or unicodedata.category(char)[0] == "M" or char in _BLANK:
        return False
    return not any(first <= ord(char) <= last for first, last in _JOINING)


def count_cells(escaped: str) -> int:
    """How many cells of a terminal the text takes: East Asian characters take two."""
    return len(escaped) if escaped.isascii() else sum(map(_cells_of, escaped))


def _cells_of(char: str) -> int:
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(escaped: str, cells: int) -> str:
    """The text, or as much of it as fits, with a mark at its end."""
    return escaped if count_cells(escaped) <= cells else (_begin(escaped, cells - len(CUT)) + CUT)[: max(cells, 0)]


def cut_middle(escaped: str, cells: int) -> str:
    """The same with begin and end kept: what a name begins with is often shared."""
    if count_cells(escaped) <= cells:
        return escaped
    end = _begin(escaped[::-1], (cells - len(CUT)) // 2)[::-1]
    return cut(escaped, cells - count_cells(end)) + end


def fill(escaped: str, cells: int) -> str:
    """The text in exactly so many cells."""
    text = cut(escaped, cells)
    return text + " " * (cells - count_cells(text))


def _begin(escaped: str, cells: int) -> str:
    """As many characters as have room."""
    for index, char in enumerate(escaped):
        cells -= _cells_of(char)
        if cells < 0:
            return escaped[:index]
    return escaped


def show_time(unix_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_s))


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:  # closed by the caller: it does not want to know
        return
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
