# SPDX-License-Identifier: Apache-2.0
"""`kubenpuctl report`: lines that add up, costs that add up, hostile names in all forms of output, its arguments."""

from __future__ import annotations

import csv
import html.parser
import io
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.cli import main as cli
from kubenpu.cli.prices import Prices
from kubenpu.cli.report import parse_time
from kubenpu.cli.report_lines import SPLIT, Report, make_report
from kubenpu.cli.report_output import render_csv, render_text, report_to_json
from kubenpu.cli.report_page import MOST_BARS, plan_spans, render_page
from kubenpu.model.errors import ConfigError
from kubenpu.model.usage import (
    ACTIVE_MS,
    ALLOCATED_MS,
    BY_ACTIVITY_MS,
    BY_ALLOCATION_MS,
    DEVICE_NS,
    MEMORY_KIB_S,
    PRESENT_MS,
    SHARE_MS,
    UNUSED_MS,
    UNWATCHED_MS,
    WAIT_NS,
    Part,
    UsageRow,
)
from tests.fakes.history_rig import GPU, HOUR_MS, JOB, NPU, SSH, WEB, Rig

HOUR = HOUR_MS
PRICES = Prices("EUR", Decimal("1.10"), {"i915": Decimal("0.90")}, {})


def device(
    address: str, present: int, active: int, unwatched: int = 0, *, vendor: str | None = "i915", given: int = 0
) -> UsageRow:
    """Its time was divided by activity, but for `given`, part of which was idle."""
    amounts = {
        "calls.submit": 10,
        "calls.wait": 2,
        "errors.other": 0,
        PRESENT_MS: present,
        ACTIVE_MS: active,
        UNWATCHED_MS: unwatched,
        BY_ACTIVITY_MS: active - given,
    }
    if given:
        amounts |= {BY_ALLOCATION_MS: given, ALLOCATED_MS: given, UNUSED_MS: given // 4}
    return UsageRow(Part.DEVICE, address, vendor, 1000.0, 8200.0, amounts)


def work(namespace: str, address: str, share: int, calls: int = 5, vendor: str | None = "i915") -> UsageRow:
    amounts = {"calls.submit": calls, "calls.wait": 1, "errors.submit": 1, WAIT_NS: 10**9}
    times = {ACTIVE_MS: share, SHARE_MS: share}
    return UsageRow(Part.WORKLOAD, address, vendor, 1000.0, 8200.0, amounts | times, namespace)


def nobody(address: str, calls: int, share: int) -> UsageRow:
    amounts = {"calls.submit": calls, "calls.wait": 0, ACTIVE_MS: share, SHARE_MS: share}
    return UsageRow(Part.UNATTRIBUTED, address, "i915", 1000.0, 8200.0, amounts)


ROWS = [
    device(GPU, 2 * HOUR, HOUR, HOUR // 4),
    nobody(GPU, 0, HOUR // 4),
    work("shop", GPU, HOUR // 2),
    work("ml", GPU, HOUR // 4),
    device("0000:03:00.0", 2 * HOUR, HOUR // 3, vendor="xe"),
    work("shop", "0000:03:00.0", HOUR // 3, vendor="xe"),
]


def report(rows: list[UsageRow] | None = None, by: str = "namespace", prices: Prices | None = None) -> Report:
    return make_report(by, ROWS if rows is None else rows, (0, 10), prices)


# ---- adding up ----


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
    assert (made.since, made.until) == (1000.0, 8200.0)
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


# ---- times ----


@pytest.mark.parametrize(
    ("text", "unix"),
    [
        ("0m", 1_000_001),
        ("90m", 994_601),
        ("24h", 913_601),
        ("7d", 395_201),
        ("2w", 0),
        ("@12", 12),
        ("1970-01-02T00:00:00Z", 86400),
        ("1970-01-02T00:00:00+01:00", 82800),
    ],
)
def test_times(text: str, unix: int) -> None:
    assert parse_time(text, 1_000_000.5) == unix


@pytest.mark.parametrize("option", ["--since", "--until", "--by"])
def test_a_wrong_argument_is_misuse(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["report", option, "xx"])
    assert caught.value.code == 2
    assert option in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "1y", "yesterday", "9999999d", "@-1", "2026-13-01", "7d "])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no time"):
        parse_time(text, 1e6)


# ---- what is printed ----

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


def test_json_for_programs() -> None:
    document = json.loads(json.dumps(report_to_json(report(prices=PRICES), "node-1", True)))
    assert (document["split"], document["node"], document["simulated"]) == (SPLIT, "node-1", True)
    assert document["lines"][0]["names"] == {"namespace": "shop"}
    assert document["lines"][0]["calls"]["alloc"] is None
    assert document["devices"][0]["idle_seconds"] == 2700


class Page(html.parser.HTMLParser):
    """What a browser would make of it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


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


@given(st.floats(0, 4e9), st.floats(1, 4e8))
def test_spans_follow_each_other(begin: float, length: float) -> None:
    row = UsageRow(Part.DEVICE, GPU, None, begin, begin + length, {})
    spans = plan_spans([row])
    assert spans[0][0] <= begin <= begin + length <= spans[-1][1]
    assert len(spans) <= MOST_BARS + 1
    assert all(one[1] == other[0] for one, other in itertools.pairwise(spans))


# ---- the command ----


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "usage.db")
    made.step()
    made.labels[WEB] = {"team": "blue"}
    for names in (WEB, JOB, SSH):
        made.call(names, 5)
    made.step()
    yield made
    made.recorder.close()


def run(rig: Rig, *words: str) -> int:
    return cli.main(["report", "--database", str(rig.path), "--since", "@0", "--until", "@4000000000", *words])


def test_command_reads_a_database(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(rig, "--by", "label:team", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [line["names"]["team"] for line in document["lines"]][:2] == ["(none)", "blue"]
    assert (document["node"], document["simulated"]) == (None, None)


def test_command_writes_a_page(rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(rig, "--by", "pod", "--html", str(tmp_path / "page.html")) == 0
    text = (tmp_path / "page.html").read_text()
    assert "web-0" in text
    assert text.count("<rect") >= 2 * 4  # three workloads and what is idle; again over time
    assert capsys.readouterr().out == ""
    assert run(rig, "--html", str(tmp_path / "none" / "page.html")) == 2
    assert "cannot write" in capsys.readouterr().err


def test_command_says_when_nothing_is_stored(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "--database", str(rig.path), "--since", "@0", "--until", "@1"]) == 0
    captured = capsys.readouterr()
    assert "nothing is stored of this time" in captured.err
    assert "1970-01-01T00:00:01Z" in captured.out


@pytest.mark.parametrize("words", [["--since", "@5", "--until", "@5"], ["--price", "/none"]])
def test_command_refuses(rig: Rig, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(rig, *words) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("by", ["weather", "label:", "label:a\nb"])
def test_command_takes_no_other_by(rig: Rig, by: str) -> None:
    with pytest.raises(SystemExit):
        run(rig, "--by", by)


def test_command_needs_a_daemon_or_a_database(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "--bus", "unix:abstract=kubenpu-test-nothing"]) == 3
    assert "--database" in capsys.readouterr().err
