# SPDX-License-Identifier: Apache-2.0
"""Text on a terminal: hostile text stays in its cell, and cells are counted as a terminal does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wcwidth import wcswidth

from kubenpu.cli.output import count_cells, cut, cut_middle, escape, fill, print_table, render_table

# Wide since Unicode 16 only, so that Python and terminals of different age disagree.
NEWLY_WIDE = ((0x2630, 0x2637), (0x268A, 0x268F), (0x4DC0, 0x4DFF), (0x1D300, 0x1D376))
TEXT = st.text(max_size=60).filter(lambda text: not any(a <= ord(c) <= b for c in text for a, b in NEWLY_WIDE))


@settings(deadline=None)
@given(TEXT)
def test_cells_are_those_of_a_terminal(text: str) -> None:
    shown = escape(text)
    assert shown.isprintable()
    assert count_cells(shown) == wcswidth(shown)


@settings(deadline=None)
@given(TEXT, st.booleans())
def test_what_is_escaped_stays_as_it_is(text: str, ascii_only: bool) -> None:
    once = escape(text, ascii_only)
    assert escape(once, ascii_only) == once
    assert once.isascii() or not ascii_only


@settings(deadline=None)
@given(TEXT, st.integers(0, 40))
def test_cut_and_fill_keep_to_their_cells(text: str, cells: int) -> None:
    shown = escape(text)
    assert count_cells(cut(shown, cells)) <= cells
    assert count_cells(cut_middle(shown, cells)) <= cells
    assert count_cells(fill(shown, cells)) == cells
    if count_cells(shown) <= cells:
        assert cut(shown, cells) == cut_middle(shown, cells) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("e\u0301", r"e\u0301"),  # joins the letter before it
        ("a" + "\u0300" * 3, r"a\u0300\u0300\u0300"),
        ("日本", "日本"),
        ("\u3164", r"\u3164"),  # a letter that shows nothing
        ("\U0001f1e9\U0001f1ea", r"\U0001f1e9\U0001f1ea"),  # one flag or two letters
        ("\u1100\u1161", "\u1100" + r"\u1161"),
    ],
)
def test_what_has_no_cell_of_its_own_is_shown_as_escape(text: str, shown: str) -> None:
    assert escape(text) == shown


def test_columns_stay_columns_with_wide_characters() -> None:
    text = render_table(("NAME", "N"), [("日本", "1"), ("abc", "2")])
    assert text == "NAME  N\n日本  1\nabc   2\n"


def test_cut_marks_what_is_missing_and_never_halves_a_character() -> None:
    assert cut("abcdef", 4) == "abc+"
    assert cut("日本語", 4) == "日+"
    assert cut("abc", 0) == ""
    assert cut_middle("abcdefgh", 5) == "ab+gh"
    assert cut_middle("日本語日本語", 6) == "日+語"


WIDE = ("NAME", "DEVICE", "CALLS", "ERRORS")
ROWS = [("n" * 300, "0000:00:02.0", "7", None), ("short", "npu.0", "123456", "98765432101")]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def set_columns(columns: int) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    return set_columns


@pytest.mark.parametrize(
    ("columns", "gone", "begin"),
    [
        (60, [], "n" * 24 + "+  0000:00:02.0  7 "),
        (45, ["ERRORS"], "n" * 22 + "+  0000:00:02.0  7"),
        (30, ["ERRORS"], "nnnnnnnnn+  0000:00:0+  7"),
        (24, ["ERRORS"], "nnnnnn+  0000:0+  7"),
    ],
)
def test_a_table_is_cut_to_the_terminal(
    terminal: Callable[[int], None], capsys: pytest.CaptureFixture[str], columns: int, gone: list[str], begin: str
) -> None:
    """Names first, then columns, then names further; a part of a number would be another number."""
    terminal(columns)
    assert list(print_table(WIDE, ROWS, ["ERRORS"])) == gone
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= columns
    assert "123456" in text and "123456+" not in text
    assert ("98765432101" in text) == (not gone)
    assert text.splitlines()[1].startswith(begin)


def test_pipes_get_all_of_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert list(print_table(WIDE, ROWS, ["ERRORS"])) == []
    assert "n" * 300 in capsys.readouterr().out


def test_a_table_that_cannot_be_narrow_keeps_its_numbers(
    terminal: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(4)
    print_table(WIDE, ROWS, ["ERRORS"])
    assert capsys.readouterr().out.splitlines()[1:] == ["+  +  7", "+  +  123456"]
