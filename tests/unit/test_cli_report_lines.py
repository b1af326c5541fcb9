# SPDX-License-Identifier: Apache-2.0
"""Lines of a report: they and their costs add up, are called like nothing else, and notes tell what they lack."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.cli.output import show_time
from kubenpu.cli.prices import Prices
from kubenpu.cli.report_lines import make_report
from kubenpu.cli.report_output import render_csv, render_text, report_to_json
from kubenpu.cli.report_page import render_page
from kubenpu.model.usage import (
    PRESENT_MS,
    SHARE_MS,
    Part,
    UsageRow,
)
from tests.fakes.history_rig import GPU, NPU
from tests.fakes.report_rows import HOUR, PRICES, ROWS, Page, device, nobody, report, work


def test_lines_of_a_report() -> None:
    made = report(prices=PRICES)
    assert [(line.names, line.amounts.get(SHARE_MS), line.cost) for line in made.lines] == [
        (("shop",), HOUR // 2 + HOUR // 3, 82),
        (("ml",), HOUR // 4, 22),
        (("(unattributed)",), HOUR // 4, 23),
        (("(unwatched)",), HOUR // 4, 22),
        (("(idle)",), 3 * HOUR // 4 + 5 * HOUR // 3, 251),
        (("total",), 4 * HOUR, 400),
    ]
    assert made.stored == (1000.0, 8200.0)
    assert made.lines[0].amounts["calls.submit"] == 10


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from([GPU, NPU]), st.integers(0, 10 * HOUR)), max_size=8
    ),
    st.decimals(0, 1000, places=5),
    st.decimals(0, 1000, places=2),
)
def test_costs_add_up_to_the_cent(shares: list[tuple[str, str, int]], one: Decimal, other: Decimal) -> None:
    rows = [work(namespace, address, ms) for namespace, address, ms in shares]
    used = {address: sum(ms for _, a, ms in shares if a == address) for address in (GPU, NPU)}
    rows += [device(address, used[address] + 7 * HOUR, used[address]) for address in (GPU, NPU)]
    made = report(rows, prices=Prices("EUR", one, {}, {NPU: other}))
    *lines, total = made.lines
    assert sum(line.cost or 0 for line in lines) == total.cost
    exact = (one * (used[GPU] + 7 * HOUR) + other * (used[NPU] + 7 * HOUR)) / HOUR
    assert abs(Decimal(total.cost or 0) / 100 - exact) <= Decimal("0.01")
    assert sum(line.amounts.get(SHARE_MS, 0) for line in lines) == total.amounts[SHARE_MS]


def test_a_device_without_a_price_has_no_cost_and_is_named() -> None:
    made = report(prices=Prices("EUR", None, {"i915": Decimal(1)}, {}))
    costs = {line.names[0]: line.cost for line in made.lines}
    assert (costs["shop"], costs["ml"], costs["total"]) == (None, 25, None)
    assert "no price for 0000:03:00.0" in made.notes


def test_a_device_that_had_two_drivers_is_two() -> None:
    """Each with its price, its time and what is known of it; only together they were there all the time."""
    begin, end = 1000.0, 1000.0 + 2 * HOUR / 1000
    rows = [
        replace(row, since=begin, until=end)
        for row in (
            device(GPU, HOUR, HOUR, vendor="i915"),
            work("shop", GPU, HOUR, vendor="i915"),
            device(GPU, HOUR, HOUR // 2, vendor=None),
            work("shop", GPU, HOUR // 2, vendor=None),
        )
    ]
    rows[2] = replace(rows[2], amounts={k: v for k, v in rows[2].amounts.items() if k != "calls.submit"})
    prices = Prices("EUR", None, {"i915": Decimal(2)}, {})
    made = make_report("device", rows, (1000, int(end)), prices)
    assert [(line.names, line.cost) for line in made.lines[:2]] == [((GPU, "i915"), 200), ((GPU, ""), None)]
    assert made.notes == (
        f"submits are not known of {GPU} (-): the driver does not show them",
        f"no price for {GPU} (-)",
    )
    split = f"{GPU} (i915): 1.00 h by activity; {GPU} (-): 0.50 h by activity"
    assert split in render_text(made).replace("\n", " ")
    page = Page(render_page(made, rows, [], "", None))
    assert [text for text in page.texts if text.endswith(" h")] == ["1.0 h", "1.00 h", "1.0 h", "0.50 h", "0.50 h"]


def test_prices_that_are_for_nothing_are_named() -> None:
    """A mistyped key would else be a wrong bill that nobody sees."""
    prices = Prices(
        "EUR", Decimal(1), {"i951": Decimal(2), "xe": Decimal(2)}, {"0000:00:02.O": Decimal(3), GPU: Decimal(3)}
    )
    notes = [note.partition(":")[0] for note in report(prices=prices).notes if "price" in note]
    assert notes == ["the price of driver.i951 is not used", 'the price of device."0000']
    assert not any("price" in note for note in report([], prices=prices).notes)
    unused = UsageRow(Part.DEVICE, "nvidiactl", "nvidia", 1000.0, 8200.0, {"calls.submit": 5, "errors.other": 0})
    prices = Prices("EUR", Decimal(1), {}, {"nvidiactl": Decimal(3)})
    assert 'the price of device."nvidiactl" is not used' in " ".join(report([*ROWS, unused], prices=prices).notes)


def test_a_device_without_time_costs_nothing_and_needs_no_price() -> None:
    other = UsageRow(Part.DEVICE, "nvidiactl", "nvidia", 1000.0, 8200.0, {"calls.submit": 5, "errors.other": 0})
    user = UsageRow(Part.WORKLOAD, "nvidiactl", "nvidia", 1000.0, 8200.0, {"calls.submit": 5}, "shop")
    rows, prices = [*ROWS[:4], other, user], Prices("EUR", None, {"i915": Decimal(1)}, {})
    made = report(rows, prices=prices)
    assert [line.cost for line in made.lines] == [line.cost for line in report(ROWS[:4], prices=prices).lines]
    assert made.lines[-1].sum_of("calls.submit") == 15
    assert not any("price" in note for note in made.notes)
    page = Page(render_page(made, rows, [], "n", False))
    assert "nvidiactl nvidia" not in page.texts
    assert f"{GPU} i915" in page.texts


def test_notes_tell_what_is_not_known() -> None:
    blind = UsageRow(Part.DEVICE, NPU, None, 1000.0, 8200.0, {"calls.other": 1, PRESENT_MS: HOUR})
    assert f"errors and waits are not known of {NPU}" in " ".join(report([blind]).notes)
    blind = replace(blind, amounts={**blind.amounts, "errors.other": 0})
    made = report([blind, nobody(GPU, -3, 0)])
    assert [note.partition(":")[0] for note in made.notes] == [
        f"submits are not known of {NPU}",
        "less than 0 unattributed",
        "calls were not counted, or the history was not kept, for part of the time",
    ]
    assert made.lines[-1].sum_of("calls.submit") is None
    assert "nothing was stored" in " ".join(report().notes)


@pytest.mark.parametrize(
    ("asked", "part"), [((1000, 8200), False), ((0, 9200), False), ((-100, 8200), True), ((1000, 9300), True)]
)
def test_a_span_that_is_stored_in_part_is_told_with_the_one_that_was_asked_for(
    asked: tuple[int, int], part: bool
) -> None:
    made = make_report("namespace", ROWS, asked, None)
    assert any(note.startswith("only a part of the time is stored") for note in made.notes) == part
    document = report_to_json(made, "n", False)
    assert [document[key] for key in ("asked_since", "asked_until", "since", "until")] == [*asked, 1000.0, 8200.0]
    (row, *_) = csv.DictReader(io.StringIO(render_csv(made)))
    assert [row[key] for key in ("asked_since", "since", "until")] == [
        show_time(asked[0]),
        "1970-01-01T00:16:40Z",
        "1970-01-01T02:16:40Z",
    ]
    text = render_text(made).replace("\n", " ")
    assert f"Asked for {show_time(asked[0])} to {show_time(asked[1])}, stored 1970-01-01T00:16:40Z to" in text
    page = " ".join(Page(render_page(made, ROWS, [], "n", False)).texts)
    assert "stored: 1970-01-01 00:16 to 1970-01-01 02:16" in page


def test_of_a_time_without_history_nothing_is_claimed() -> None:
    made = make_report("namespace", [], (1000, 8200), None)
    assert made.notes == (
        "nothing is stored of this time, which ends with the last whole quarter of an hour before --until",
    )
    assert report_to_json(made, "n", False)["since"] is None
    assert "stored nothing." in render_text(made)
    assert next(csv.DictReader(io.StringIO(render_csv(made))))["since"] == ""


def labelled(value: str, share: int = HOUR // 2) -> UsageRow:
    return replace(work("", GPU, share), label=value)


def test_a_label_that_nobody_has_is_told() -> None:
    rows = [device(GPU, HOUR, HOUR), labelled("")]
    assert any("nobody here has the label nope" in note for note in report(rows, by="label:nope").notes)
    assert not any("label" in note for note in report([*rows, labelled("blue")], by="label:team").notes)
    assert not any("label" in note for note in report(rows[:1], by="label:team").notes)


OURS = (
    "(none)",
    "(host)",
    "(pods)",
    "(unattributed)",
    "(unwatched)",
    "(idle)",
    "(others)",
    "total",
    "Total",
    "-",
    " total",
)


def test_nobody_can_be_taken_for_a_line_of_ours() -> None:
    """Labels are free text, and so is much else that names come from."""
    rows = [device(GPU, 20 * HOUR, 20 * HOUR), labelled(""), *map(labelled, OURS), labelled('"(none)"')]
    made = report(rows, by="label:team")
    kinds = {line.names[0]: line.kind for line in made.lines}
    assert len(kinds) == len(made.lines)
    assert {name for name, kind in kinds.items() if kind == "workload"} == {f'"{each}"' for each in (*OURS, '"(none)"')}
    assert kinds["(none)"] == "none"
    text, page = render_text(made), Page(render_page(made, rows, [], "n", False)).texts
    document = report_to_json(made, "n", False)
    assert isinstance(document["lines"], list)
    assert len(re.findall(r"^(?:\(none\)|\(unattributed\)|total) ", text, re.M)) == 3
    assert [page.count(name) for name in ("(none)", "total")] == [1, 1]
    in_json = [line["names"]["team"] for line in document["lines"]]
    in_csv = [row["label:team"] for row in csv.DictReader(io.StringIO(render_csv(made)))]
    assert in_csv == in_json == list(kinds)


@pytest.mark.parametrize(
    ("by", "of", "kind", "names"),
    [
        ("namespace", ("(host)", "", ""), "workload", ('"(host)"',)),
        ("namespace", ("", "", ""), "host", ("(host)",)),
        ("pod", ("(host)", "x", ""), "workload", ('"(host)"', "x")),
        ("pod", ("", "", "total"), "host", ("(host)", '"total"')),
        ("container", ("", "", "x"), "host", ("(host)", "x", "")),
        ("unit", ("", "", "(pods)"), "workload", ('"(pods)"',)),
        ("unit", ("", "", ""), "pods", ("(pods)",)),
        ("label:team", ("", "", ""), "none", ("(none)",)),
    ],
)
def test_kinds_of_lines(by: str, of: tuple[str, str, str], kind: str, names: tuple[str, ...]) -> None:
    namespace, pod, unit = of
    row = replace(work(namespace, GPU, HOUR), pod=pod, unit=unit)
    made = report([device(GPU, HOUR, HOUR), row], by=by)
    assert (made.lines[0].kind, made.lines[0].names) == (kind, names)


def test_a_label_called_like_a_number_has_a_column_of_its_own() -> None:
    made = report([device(GPU, HOUR, HOUR), labelled("x")], by="label:cost", prices=PRICES)
    header = next(csv.reader(io.StringIO(render_csv(made))))
    assert len(set(header)) == len(header)
    assert {"label:cost", "cost"} <= set(header)
