# SPDX-License-Identifier: Apache-2.0
"""How kubenpuctl prints: tables for people, one JSON document for programs, notes on standard error.

Text that comes from the node (names of cgroups, drivers, pods) is not trusted: what a terminal would obey is shown
as an escape instead. Prints no colour, so pipes and NO_COLOR need nothing special. Knows nothing of what it prints.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

ABSENT = "-"
_GAP = "  "


def add_format_arguments(parser: argparse.ArgumentParser) -> None:
    """The two options that every listing has; they become args.json and args.wide."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("-o", "--output", choices=["wide"], help="wide: print more columns")


def is_wide(args: argparse.Namespace) -> bool:
    return bool(args.output == "wide")


def print_table(header: Sequence[str], rows: Iterable[Sequence[str | None]]) -> None:
    """Columns as wide as their widest cell; a cell that is None or empty shows as `-`."""
    _write(sys.stdout, render_table(header, rows))


def print_json(document: object) -> None:
    """One document. Keys keep their order; text beyond ASCII is escaped, so any terminal and any encoding takes it."""
    _write(sys.stdout, json.dumps(document, indent=2) + "\n")


def print_note(text: str) -> None:
    """One line about the answer, where it does not get into the answer."""
    _write(sys.stderr, f"kubenpuctl: {escape(text)}\n")


def render_table(header: Sequence[str], rows: Iterable[Sequence[str | None]]) -> str:
    """The text of a table, without blanks at the ends of lines."""
    lines = [list(header), *([escape(cell) if cell else ABSENT for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(_GAP.join(map(str.ljust, line, widths)).rstrip() + "\n" for line in lines)


def escape(text: str) -> str:
    """The text with everything a terminal acts on, or a reader cannot see, as `\\x1b`. Line ends too."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:  # closed by the caller: it does not want to know
        return
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
