# SPDX-License-Identifier: Apache-2.0
"""`kubenpuctl top`: live, what each workload does; or one frame of it as text.

Without a terminal that can move its cursor it is refused, and says what to use instead.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time

from kubenpu.cli.bus import Feed, add_bus_argument, add_filter_arguments
from kubenpu.cli.output import print_json, print_note, print_text
from kubenpu.cli.top_frame import COLUMNS, Look, State, draw_head, draw_table, select
from kubenpu.cli.watch import add_interval_argument, line_to_json
from kubenpu.cli.workloads import find_notes

TIMEOUT_S = 3.0
USAGE = 2
PIPE_CELLS = 160  # of a line that nobody's screen limits


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show what each workload does: submits, calls and errors per second, how many threads wait on average (the "
        "time of a wait counts when it ends), and totals. A workload that is gone stays for as long as kubenpud keeps "
        "it. Keys are shown at the bottom; the first letter of a column sorts by it."
    )
    add_interval_argument(parser)
    names = [column.name for column in COLUMNS]
    parser.add_argument("--sort", choices=names, default="calls", help="column to begin with (default: calls)")
    parser.add_argument("--once", action="store_true", help="print one frame as text and end")
    parser.add_argument("--json", action="store_true", help="with --once: print one JSON document")
    add_filter_arguments(parser)
    add_bus_argument(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    if args.json and not args.once:
        print_note("--json needs --once. A document per line and interval: kubenpuctl watch --json.")
        return USAGE
    refusal = None if args.once else _refusal()
    if refusal is not None:
        print_note(f"{refusal}. Use: kubenpuctl top --once, or kubenpuctl watch.")
        return USAGE
    with Feed(args, TIMEOUT_S) as feed:
        state = State(None, feed.read(), args.interval, ascii_only=_is_ascii_only())
        if args.once:
            time.sleep(args.interval)
            return _print_once(State(state.new, feed.read(), args.interval, "", state.ascii_only), args)
        from kubenpu.cli.top_screen import show  # noqa: PLC0415 - Python can be built without curses

        return show(feed, state, Look(args.sort))


def _refusal() -> str | None:
    """Why this terminal will not do."""
    if sys.stdin is None or sys.stdout is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return "top needs a terminal"
    try:
        import curses  # noqa: PLC0415 - Python can be built without
    except ModuleNotFoundError:
        return "this Python has no curses"
    kind = os.environ.get("TERM", "")
    try:
        curses.setupterm(kind or "unknown", sys.stdout.fileno())
    except curses.error:
        return f"nothing is known of terminals of the kind {kind!r} (TERM)"
    return None if curses.tigetstr("cup") else f"a terminal of the kind {kind!r} (TERM) cannot show a screen"


def _is_ascii_only() -> bool:
    encoding = (sys.stdout.encoding if sys.stdout is not None else "") or ""
    return encoding.lower().replace("-", "") != "utf8"


def _print_once(state: State, args: argparse.Namespace) -> int:
    terminal = sys.stdout is not None and sys.stdout.isatty()
    look = Look(args.sort)
    if args.json and state.old is not None:
        print_json([line_to_json(line, state.old, state.new) for line in select(state, look)])
        return 0
    width = shutil.get_terminal_size().columns if terminal else PIPE_CELLS
    lines = [*draw_head(state, look), *draw_table(state, select(state, look), width)]
    print_text("".join(line.text.rstrip() + "\n" for line in lines))
    for text in find_notes(state.new.node, state.new.rows):
        print_note(text)
    return 0
