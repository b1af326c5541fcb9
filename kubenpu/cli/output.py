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


def print_table(header: Sequence[str], rows: Iterable[Sequence[str | None]], fit: bool = False) -> None:
    """Columns as wide as their widest cell; a cell that is None or empty shows as `-`.

    `fit`: on a terminal, what would not fit into a line is cut off the widest columns.
    """
    limit = shutil.get_terminal_size().columns if fit and sys.stdout is not None and sys.stdout.isatty() else None
    print_text(render_table(header, rows, limit))


def print_json(document: object) -> None:
    """One document. Keys keep their order; text beyond ASCII is escaped, so any terminal and any encoding takes it."""
    print_text(json.dumps(document, indent=2) + "\n")


def print_text(text: str) -> None:
    """Text for standard output; the caller has escaped what is not to be trusted."""
    _write(sys.stdout, text)


def print_note(text: str) -> None:
    """One line about the answer, where it does not get into the answer."""
    _write(sys.stderr, f"kubenpuctl: {escape(text)}\n")


def render_table(header: Sequence[str], rows: Iterable[Sequence[str | None]], limit: int | None = None) -> str:
    """The text of a table, without blanks at the ends of lines, at most `limit` cells wide where that can be."""
    lines = [list(header), *([escape(cell) if cell else ABSENT for cell in row] for row in rows)]
    widths = [max(map(count_cells, column)) for column in zip(*lines, strict=True)]
    while limit is not None and sum(widths) + len(_GAP) * (len(widths) - 1) > limit and max(widths) > _LEAST_CELLS:
        widths[widths.index(max(widths))] -= 1
    return "".join(_GAP.join(map(fill, line, widths)).rstrip() + "\n" for line in lines)


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
