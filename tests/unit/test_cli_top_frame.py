# SPDX-License-Identifier: Apache-2.0
"""Frames of `kubenpuctl top`: they keep to the screen, are sorted and filtered as asked, and obey nobody's names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubenpu.cli.output import count_cells
from kubenpu.cli.rates import Sample
from kubenpu.cli.top_frame import COLUMNS, HELP, Look, State, Style, draw, select, show_number
from kubenpu.exporters.dbus_client import CounterRow, NodeRow
from kubenpu.model.identity import Owner, OwnerKind
from tests.fakes.fake_client import IGPU, NODE, OFF, SIMULATED, SSH, WEB, counts, device, row

HOSTILE = Owner(OwnerKind.POD, "n\x1b[2J", "p\nq\u202e", "日本" * 1000)


def state(rows: Sequence[CounterRow], before: Sequence[CounterRow] = (), node: NodeRow = NODE) -> State:
    old = Sample(0, 5000, node, (device(counts(10)),), tuple(before))
    return State(old, Sample(2, 5002, node, (device(counts(50)),), tuple(rows)), 2.0)


def busy(number: int) -> State:
    """Workload i submits i times in two seconds."""
    owners = [replace(WEB, pod=f"web-{i:03}") for i in range(number)]
    return state([row(o, counts(i)) for i, o in enumerate(owners)], [row(o, counts(0)) for o in owners])


def texts(state: State, look: Look, width: int = 80, height: int = 24) -> list[str]:
    return [text for text, _ in draw(state, look, width, height)[0]]


def test_a_frame() -> None:
    shown = texts(busy(2), Look())
    assert shown[0] == "node-1  kubenpud 1.2.3  drm_ioctl fentry  counting since 1970-01-01T00:16:40Z"
    assert shown[1] == f"Devices: {IGPU} i915 20/s"
    assert shown[2] == "2 workloads on devices  by calls  every 2 s"
    assert shown[3].split() == ["NAME", "DEVICE", "SUBMIT/S", "CALLS/S", "ERROR/S", "WAITING", "TOTAL", "FAILED"]
    assert shown[4].split() == ["shop/web-001/main", IGPU, "0.5", "0.5", "0", "0", "1", "0"]
    assert shown[5].split()[0] == "shop/web-000/main"
    assert shown[-1] == HELP
    assert len(shown) == 24


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (200, len(COLUMNS)),
        (80, len(COLUMNS)),
        (60, 6),
        (40, 4),
        (20, 2),
    ],
)
def test_narrow_screens_leave_columns_out(width: int, columns: int) -> None:
    header = texts(busy(1), Look(), width)[3]
    names = [column.header for column in COLUMNS if column.header in header.split()]
    assert len(names) == columns
    assert count_cells(header) <= width


NAMES = st.text(max_size=30) | st.just("日" * 300) | st.just("\x1b]0;owned\x07\n\x9b2J")
OWNERS = st.builds(Owner, st.sampled_from(OwnerKind), NAMES, NAMES, NAMES, NAMES, NAMES, NAMES)
ROWS = st.lists(st.builds(row, OWNERS, st.builds(counts, st.integers(0, 2**64 - 1)), NAMES, st.booleans()), max_size=8)
LOOKS = st.builds(
    Look,
    st.sampled_from([column.name for column in COLUMNS]),
    st.booleans(),
    st.text(max_size=9),
    st.booleans(),
    st.booleans(),
    st.integers(0, 20),
)


@settings(deadline=None)
@given(ROWS, LOOKS, st.integers(1, 220), st.integers(1, 60), st.booleans())
def test_a_frame_is_never_larger_than_the_screen_and_plain_text(
    rows: list[CounterRow], look: Look, width: int, height: int, ascii_only: bool
) -> None:
    node = replace(NODE, node="\x1b[31m\n", version="日\x9b")
    shown = texts(replace(state(rows, rows, node), ascii_only=ascii_only, trouble="no\nbus\x1b"), look, width, height)
    assert len(shown) <= height
    assert all(text.isprintable() and count_cells(text) <= width for text in shown)
    assert not ascii_only or all(text.isascii() for text in shown)


@settings(deadline=None)
@given(st.floats(0, 1e22) | st.integers(0, 7 * 2**64))
def test_numbers_have_six_cells_at_most(value: float) -> None:
    assert len(show_number(value)) <= 6


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0, "0"),
        (0.0, "0"),
        (3, "3"),
        (0.004, "0.004"),
        (0.5, "0.5"),
        (9.96, "10"),
        (99999, "99999"),
        (123456, "123k"),
        (2**64, "18447P"),
    ],
)
def test_numbers(value: float | None, shown: str) -> None:
    assert show_number(value) == shown


def names(state: State, look: Look) -> Iterator[str]:
    return (line.row.owner.pod or line.row.owner.unit for line in select(state, look))


def test_sorting() -> None:
    fast, slow, new = (replace(WEB, pod=pod) for pod in ("fast", "slow", "new"))
    before = [row(fast, counts(0)), row(slow, counts(0, 0))]
    after = [row(new, counts(900)), row(slow, counts(2, 1)), row(fast, counts(50))]
    shown = state(after, before)
    assert list(names(shown, Look("calls"))) == ["fast", "slow", "new"]
    assert list(names(shown, Look("calls", reverse=True))) == ["slow", "fast", "new"]  # unknown stays last
    assert list(names(shown, Look("errors"))) == ["slow", "fast", "new"]
    assert list(names(shown, Look("total"))) == ["new", "fast", "slow"]
    assert list(names(shown, Look("name"))) == ["fast", "new", "slow"]
    assert list(names(shown, Look("name", reverse=True))) == ["slow", "new", "fast"]


def test_every_column_has_a_key_of_its_own_that_its_header_shows() -> None:
    assert len({column.name[0] for column in COLUMNS}) == len(COLUMNS)
    assert [column.header[0].lower() for column in COLUMNS] == [column.name[0] for column in COLUMNS]
    assert not {column.name[0] for column in COLUMNS} & set("qpr/ ")


def test_filter_looks_at_names_and_devices() -> None:
    shown = state([row(WEB), row(SSH, device="npu.0")])
    assert list(names(shown, Look(needle="WEB-"))) == ["web-0"]
    assert list(names(shown, Look(needle="npu"))) == ["ssh.service"]
    assert list(names(shown, Look(needle="nothing"))) == []
    assert 'only "WEB-"' in texts(shown, Look(needle="WEB-"))[2]
    assert "Filter: we_" in texts(shown, Look(needle="we", typing=True))[-1]


def test_scrolling_ends_at_the_last_line() -> None:
    texts_, look = draw(busy(50), Look(offset=10**6), 80, 24)
    assert look.offset == 50 - 19
    assert "web-000" in texts_[-2].text
    assert draw(busy(3), Look(offset=7), 80, 24)[1].offset == 0


def style_of(state: State, word: str) -> Style:
    (found,) = (style for text, style in draw(state, Look(), 160, 24)[0] if word in text)
    return found


def test_styles() -> None:
    shown = state([row(SSH, alive=False), row(WEB, counts(9, 1))], [row(SSH, alive=False), row(WEB, counts(5))])
    assert style_of(shown, "ssh.service") is Style.GONE
    assert style_of(shown, "web-0") is Style.FAILING
    assert style_of(shown, "drm_ioctl fentry") is Style.TITLE
    assert style_of(state([], node=OFF), "drm_ioctl off") is Style.TROUBLE
    assert style_of(replace(shown, trouble="gone"), "Reconnecting: gone") is Style.TROUBLE


def test_a_simulated_node_says_so() -> None:
    assert texts(state([], node=SIMULATED), Look(), 40)[0].startswith("SIMULATED NODE")
    assert "SIMULATED" not in "".join(texts(state([]), Look()))


def test_paused_says_so() -> None:
    assert "PAUSED" in texts(busy(1), Look(paused=True))[2]


def test_hostile_names_are_shown_as_escapes_and_keep_their_columns() -> None:
    shown = texts(state([row(HOSTILE), row(WEB)]), Look("name", reverse=True), 160)[4:6]
    assert shown[0].startswith("shop/web-0/main ")
    assert shown[1].startswith(r"n\x1b[2J/p\nq\u202e/日")
    before = [text.partition(IGPU)[0] for text in shown]
    assert count_cells(before[0]) == count_cells(before[1])
