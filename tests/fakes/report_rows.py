# SPDX-License-Identifier: Apache-2.0
"""Rows of usage as the history gives them, reports made of them, and what a browser sees of a page."""

from __future__ import annotations

import html.parser
from decimal import Decimal

from kubenpu.cli.prices import Prices
from kubenpu.cli.report_lines import Report, make_report
from kubenpu.model.usage import (
    ACTIVE_MS,
    ALLOCATED_MS,
    BY_ACTIVITY_MS,
    BY_ALLOCATION_MS,
    PRESENT_MS,
    SHARE_MS,
    UNUSED_MS,
    UNWATCHED_MS,
    WAIT_NS,
    Part,
    UsageRow,
)
from tests.fakes.history_rig import GPU, HOUR_MS

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
    return make_report(by, ROWS if rows is None else rows, (1000, 8200), prices)


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
