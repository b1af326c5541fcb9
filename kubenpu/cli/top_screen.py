# SPDX-License-Identifier: Apache-2.0
"""The terminal of `kubenpuctl top`: keys in, frames out. top_frame.py says what a frame is.

Owns the terminal inside _screen(), and gives it back as it was however that ends: a key, an error, SIGTERM or SIGHUP;
for Ctrl-Z and its return curses does. One other thread asks kubenpud, so that keys are answered while it is slow.
"""

from __future__ import annotations

import contextlib
import curses
import locale
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import FrameType

from kubenpu.cli.bus import Feed
from kubenpu.cli.rates import Sample
from kubenpu.cli.top_frame import COLUMNS, Look, State, Style, Text, draw
from kubenpu.model.errors import SourceError

KEY_WAIT_MS = 200
ESCAPE_WAIT_MS = 25
MAX_NEEDLE = 64
ESCAPE, ENTER, ERASE = "\x1b", ("\n", "\r"), ("\x7f", "\b")
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_SORT_KEYS = {column.name[0]: column.name for column in COLUMNS}
_SCROLL = {curses.KEY_UP: -1, curses.KEY_DOWN: 1, curses.KEY_PPAGE: -10, curses.KEY_NPAGE: 10}
_ATTRIBUTES = {
    Style.PLAIN: curses.A_NORMAL,
    Style.TITLE: curses.A_BOLD,
    Style.HEADER: curses.A_REVERSE,
    Style.FAILING: curses.A_BOLD,
    Style.GONE: curses.A_DIM,
    Style.TROUBLE: curses.A_BOLD,
    Style.HELP: curses.A_REVERSE,
}
_RED = 1
_RED_ONES = (Style.FAILING, Style.TROUBLE)


def show(feed: Feed, state: State, look: Look) -> int:
    """Until somebody ends it."""
    locale.setlocale(locale.LC_ALL, "")  # for curses to write what is not ASCII
    with ThreadPoolExecutor(1, "feed") as asking, _screen() as window:
        colours = _has_colours()
        poll = Poll(feed, asking, state)
        drawn: tuple[State, Look] | None = None
        while True:
            state = poll.state(look.paused)
            if drawn is None or drawn[0] is not state or drawn[1] != look:
                height, width = window.getmaxyx()
                texts, look = draw(state, look, width, height)
                _paint(window, texts, colours)
                drawn = state, look
            key = _read_key(window)
            if key == curses.KEY_RESIZE:
                drawn = None
            elif key in ("q", "Q") and not look.typing:
                return 0
            else:
                look = press(look, key)


class Poll:
    """The latest two samples. A new one is asked for an interval after the last one came."""

    def __init__(self, feed: Feed, asking: ThreadPoolExecutor, state: State) -> None:
        self._feed = feed
        self._asking = asking
        self._state = state
        self._pending: Future[Sample] | None = None
        self._next_at = time.monotonic() + state.interval_s

    def state(self, paused: bool) -> State:
        if paused:
            return self._state
        if self._pending is not None and self._pending.done():
            try:
                self._state = replace(self._state, old=self._state.new, new=self._pending.result(), trouble="")
            except SourceError as error:
                self._state = replace(self._state, trouble=str(error))
            self._pending = None
            self._next_at = time.monotonic() + self._state.interval_s
        if self._pending is None and time.monotonic() >= self._next_at:
            self._pending = self._asking.submit(self._feed.read)
        return self._state


def press(look: Look, key: str | int | None) -> Look:
    """The look after a key."""
    if look.typing:
        return _type(look, key)
    if isinstance(key, int):
        last = {curses.KEY_HOME: 0, curses.KEY_END: 1 << 30}.get(key)
        return replace(look, offset=max(0, look.offset + _SCROLL.get(key, 0)) if last is None else last)
    match key:
        case "p" | " ":
            return replace(look, paused=not look.paused)
        case "/":
            return replace(look, typing=True, needle="", offset=0)
        case "r":
            return replace(look, reverse=not look.reverse)
        case str() if key in _SORT_KEYS:
            return replace(look, sort=_SORT_KEYS[key], reverse=False, offset=0)
        case _:
            return look


def _type(look: Look, key: str | int | None) -> Look:
    if key in ENTER or key == curses.KEY_ENTER:
        return replace(look, typing=False)
    if key == ESCAPE:
        return replace(look, typing=False, needle="")
    if key in ERASE or key == curses.KEY_BACKSPACE:
        return replace(look, needle=look.needle[:-1])
    if isinstance(key, str) and key.isprintable() and len(look.needle) < MAX_NEEDLE:
        return replace(look, needle=look.needle + key)
    return look


@contextlib.contextmanager
def _screen() -> Iterator[curses.window]:
    before = [(number, signal.signal(number, _end)) for number in _SIGNALS]
    try:
        window = curses.initscr()
        try:
            curses.noecho()
            curses.cbreak()
            window.keypad(True)
            window.timeout(KEY_WAIT_MS)
            curses.set_escdelay(ESCAPE_WAIT_MS)
            with contextlib.suppress(curses.error):  # some terminals cannot hide it
                curses.curs_set(0)
            yield window
        finally:
            _ignore_signals()
            with contextlib.suppress(curses.error):
                curses.curs_set(1)
            curses.endwin()
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _ignore_signals() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _end(number: int, _frame: FrameType | None) -> None:
    _ignore_signals()  # nothing may come between this and the terminal's restoration
    raise SystemExit(128 + number)


def _has_colours() -> bool:
    """Whether red is there to be used. NO_COLOR: see no-color.org."""
    if os.environ.get("NO_COLOR") or not curses.has_colors():
        return False
    curses.start_color()
    curses.use_default_colors()
    curses.init_pair(_RED, curses.COLOR_RED, -1)
    return True


def _paint(window: curses.window, texts: list[Text], colours: bool) -> None:
    window.erase()
    for y, (text, style) in enumerate(texts):
        red = curses.color_pair(_RED) if colours and style in _RED_ONES else 0
        with contextlib.suppress(curses.error):  # the last cell was written, or the terminal has just shrunk
            window.addstr(y, 0, text, _ATTRIBUTES[style] | red)
    window.refresh()


def _read_key(window: curses.window) -> str | int | None:
    """None: no key in time."""
    try:
        key = window.get_wch()
    except curses.error:
        return None
    if key == curses.KEY_RESIZE:
        curses.update_lines_cols()
        window.clear()
    return key
