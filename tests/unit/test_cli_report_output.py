# SPDX-License-Identifier: Apache-2.0
"""A report as table, CSV, JSON and page: hostile names, what is known and what is not."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.cli.report_lines import SPLIT
from kubenpu.cli.report_output import render_csv, render_text, report_to_json
from kubenpu.cli.report_page import MOST_BARS, plan_spans, render_page
from kubenpu.model.usage import (
    ALLOCATED_MS,
    DEVICE_NS,
    MEMORY_KIB_S,
    SHARE_MS,
    UNUSED_MS,
    Part,
    UsageRow,
)
from tests.fakes.history_rig import GPU
from tests.fakes.report_rows import HOUR, PRICES, ROWS, Page, device, report, work

HOSTILE = '=HYPERLINK("http://x")\x1b[31m<script>alert(1)</script>\u202e\n"\''


def test_a_table_for_people() -> None:
    text = render_text(report(prices=PRICES))
    assert re.search(r"^shop +10 +12 +2 +2\.0 +0\.83 +- +- +0\.83 +- +- +0\.82$", text, re.M)
    assert re.search(r"^\(idle\) +- +- +- +- +- +- +- +2\.42 +- +- +2\.51$", text, re.M)
    assert f"{SPLIT} Divided here: {GPU}: 1.00 h by activity; 0000:03:00.0: 0.33 h by activity." in text.replace(
        "\n", " "
    )


def held() -> list[UsageRow]:
    """A device that was given to one and used by another, who pays nothing."""
    rows = [device(GPU, 4 * HOUR, 2 * HOUR, given=HOUR), work("shop", GPU, HOUR), work("ml", GPU, 0)]
    (_, shop, ml) = (replace(row, amounts=dict(row.amounts)) for row in rows)
    return [
        rows[0],
        replace(shop, amounts={**shop.amounts, ALLOCATED_MS: 0, UNUSED_MS: 0}),
        replace(ml, amounts={**ml.amounts, SHARE_MS: HOUR, ALLOCATED_MS: HOUR, UNUSED_MS: HOUR // 4}),
    ]


def test_what_was_given_and_how_time_was_divided_is_told_in_every_form() -> None:
    made = report(held(), prices=PRICES)
    text = render_text(made)
    assert re.search(r"^shop +5 +6 +1 +1\.0 +1\.00 +0\.00 +- +1\.00 +- +- +0\.90$", text, re.M)
    assert re.search(r"^ml +5 +6 +1 +1\.0 +0\.00 +1\.00 +25 +1\.00 +- +- +0\.90$", text, re.M)
    assert re.search(r"^\(idle\) .* 2\.00 +- +- +1\.80$", text, re.M)
    told = f"Divided here: {GPU}: 1.00 h by allocation, 1.00 h by activity."
    assert told in text.replace("\n", " ")
    assert told in render_page(made, held(), [], "n", False)
    document = report_to_json(made, "n", False)
    assert json.loads(json.dumps(document))["devices"][0]["split_seconds"] == {"allocation": 3600, "activity": 3600}
    rows = {row["namespace"]: row for row in csv.DictReader(io.StringIO(render_csv(made)))}
    assert [rows["ml"][f"{name}_seconds"] for name in ("allocated", "allocated_unused", "share")] == [
        "3600.0",
        "900.0",
        "3600.0",
    ]
    assert rows["(idle)"]["allocated_seconds"] == ""


def test_device_time_and_memory_where_they_are_known() -> None:
    shop, ml = work("shop", GPU, HOUR // 2), work("ml", GPU, HOUR // 4)
    told = replace(shop, amounts={**shop.amounts, DEVICE_NS: 90 * 10**9, MEMORY_KIB_S: 2 * 3600 << 20})
    made = report([device(GPU, 2 * HOUR, HOUR), told, ml])
    text = render_text(made)
    assert re.search(r"^shop .* 0\.50 +90\.0 +2\.00$", text, re.M)
    assert re.search(r"^ml .* 0\.25 +- +-$", text, re.M)
    lines = report_to_json(made, "n", False)["lines"]
    assert isinstance(lines, list)
    assert [(each["device_seconds"], each["memory_gib_hours"]) for each in lines[:2]] == [(90.0, 2.0), (None, None)]
    rows = list(csv.DictReader(io.StringIO(render_csv(made))))
    assert [(row["device_seconds"], row["memory_gib_hours"]) for row in rows[:2]] == [("90.0", "2.0"), ("", "")]


def test_no_prices_no_cost() -> None:
    assert "COST" not in render_text(report())
    lines = report_to_json(report(), "n", False)["lines"]
    assert isinstance(lines, list)
    assert {line["cost"] for line in lines} == {None}


def test_hostile_names_are_escaped_in_the_table() -> None:
    text = render_text(report([device(GPU, HOUR, HOUR), work(HOSTILE, GPU, HOUR)]))
    assert r"\x1b[31m" in text
    assert all(char.isprintable() or char == "\n" for char in text)


def test_csv_for_spreadsheets() -> None:
    made = report([device(GPU, HOUR, HOUR), work(HOSTILE, GPU, HOUR)], prices=PRICES)
    rows = list(csv.DictReader(io.StringIO(render_csv(made))))
    assert rows[0]["namespace"].startswith("'=HYPERLINK")
    assert (rows[0]["calls"], rows[0]["calls_submit"], rows[0]["calls_alloc"]) == ("6", "5", "")
    assert (rows[0]["share_seconds"], rows[0]["cost"], rows[0]["currency"]) == ("3600.0", "0.9", "EUR")
    assert rows[-1]["kind"] == "total"
    assert len({len(row) for row in csv.reader(io.StringIO(render_csv(made)))}) == 1


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
def test_no_cell_begins_like_a_formula(sign: str) -> None:
    """Annotations may be any text, also in full width, which some spreadsheets read as the same."""
    name = f"{sign}1+1"
    made = report([device(GPU, HOUR, HOUR), work(name, GPU, HOUR)])
    assert next(csv.DictReader(io.StringIO(render_csv(made))))["namespace"] == f"'{name}"


def test_json_for_programs() -> None:
    document = json.loads(json.dumps(report_to_json(report(prices=PRICES), "node-1", True)))
    assert (document["split"], document["node"], document["simulated"]) == (SPLIT, "node-1", True)
    assert document["lines"][0]["names"] == {"namespace": "shop"}
    assert document["lines"][0]["calls"]["alloc"] is None
    assert document["devices"][0]["idle_seconds"] == 2700


@pytest.mark.parametrize("by", ["namespace", "container", "device", f"label:{HOSTILE}"])
def test_the_page_loads_nothing_and_runs_nothing(by: str) -> None:
    rows = [
        device(HOSTILE, HOUR, HOUR, vendor=HOSTILE),
        UsageRow(Part.WORKLOAD, HOSTILE, HOSTILE, 1.0, 2.0, {SHARE_MS: HOUR}, *[HOSTILE] * 5),
    ]
    page = Page(render_page(report(rows, by), rows, [((0, 3600), rows)], HOSTILE, True))
    assert set(page.tags).isdisjoint({"script", "img", "link", "iframe", "a", "object", "form"})
    names = {name for name, _ in page.attributes}
    assert not any(name.startswith("on") or name in {"href", "src", "style"} for name in names)
    assert all(char.isprintable() or char == "\n" for text in page.texts for char in text)
    assert any("<script>alert(1)</script>" in text for text in page.texts)
    policy = dict(page.attributes)
    assert any((value or "").startswith("default-src 'none'; style-src 'sha256-") for _, value in page.attributes), (
        policy
    )


def test_the_page_draws_what_the_table_says() -> None:
    rows = list(ROWS)
    text = render_page(report(rows, prices=PRICES), rows, [((0, 3600), rows), ((3600, 7200), [])], "node-1", False)
    widths = [float(width) for width in re.findall(r'<rect class="\w+" x="[^"]+" y="18.0" width="([0-9.]+)"', text)]
    assert sum(widths) == pytest.approx(960, abs=0.1)
    assert widths[0] == pytest.approx(960 * (HOUR // 2) / (2 * HOUR), abs=0.1)
    assert "Simulated" not in text


@pytest.mark.parametrize(
    ("share", "unit", "labels"),
    [
        (40 * HOUR, "hours", ["0", "20", "40"]),
        (HOUR, "hours", ["0", "0.5", "1"]),
        (HOUR // 4, "minutes", ["0", "10", "20"]),
        (45_000, "seconds", ["0", "30", "60"]),
        (1, "seconds", ["0", "0.0005", "0.001"]),
        (0, "hours", ["0", "0.5", "1"]),
    ],
)
def test_the_scale_has_a_unit_in_which_its_numbers_are_short(share: int, unit: str, labels: list[str]) -> None:
    """They stand left of the chart, where there is room for six digits."""
    rows = [device(GPU, 90 * HOUR, share), work("shop", GPU, share)]
    text = render_page(report(rows), rows, [((0, 3600), rows)], "node-1", False)
    assert f"<h2>Device time in {unit}</h2>" in text
    assert re.findall(r'<text x="42" y="[0-9.]+" text-anchor="end">([^<]*)</text>', text) == labels


def test_columns_are_no_narrower_than_what_old_usage_is_kept_in() -> None:
    """Else one column has the time of all that were summed up to it, and the others nothing."""
    for length in (60, 3600, 6 * 3600, 86400):
        spans = plan_spans([UsageRow(Part.DEVICE, GPU, None, 7200.0, 7200.0 + length, {})], (0, 10**6))
        assert {until - since for since, until in spans} <= {*range(900, 10**6, 900)}
        assert all(since % 900 == 0 for since, _ in spans)


def test_a_minute_that_began_before_what_was_asked_for_makes_no_column() -> None:
    """It belongs to the quarter in which it ended; a column before the begin has nothing that could be asked for."""
    row = UsageRow(Part.DEVICE, GPU, None, 9000.0 - 30.0, 9000.0 + 3600.0, {})
    for since in (9000, 9000 + 420):
        spans = plan_spans([row], (since, 9000 + 3600))
        assert (spans[0], spans[-1]) == ((9000, 9900), (11700, 12600))
    assert plan_spans([row], (9000, 9900)) == [(9000, 9900)]


@given(st.floats(0, 4e9), st.floats(1, 4e8))
def test_spans_follow_each_other(begin: float, length: float) -> None:
    row = UsageRow(Part.DEVICE, GPU, None, begin, begin + length, {})
    spans = plan_spans([row], (0, 10**10))
    assert spans[0][0] <= begin <= begin + length <= spans[-1][1]
    assert len(spans) <= MOST_BARS + 1
    assert all(one[1] == other[0] for one, other in itertools.pairwise(spans))
