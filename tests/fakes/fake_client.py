# SPDX-License-Identifier: Apache-2.0
"""What kubenpud would answer, for tests of the command line without a bus: sample after sample, and failures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from kubenpu.cli import bus
from kubenpu.exporters.dbus_client import CounterRow, CountsRow, DeviceRow, Filter, NodeRow
from kubenpu.model.allocation import Allocation
from kubenpu.model.errors import SourceError
from kubenpu.model.identity import Owner, OwnerKind

IGPU = "0000:00:02.0"
NODE = NodeRow("1.2.3", "node-1", simulated=False, hooks={"drm_ioctl": "fentry"}, counting_since=1000)
WEB = Owner(OwnerKind.POD, "shop", "web-0", "main", "u1", "c" * 64)
SSH = Owner(OwnerKind.HOST, unit="ssh.service")
LOST = Owner(OwnerKind.UNKNOWN, pod_uid="u9", container_id="d" * 64)


def counts(submits: int | None = 0, errors: int = 0, wait_ns: int = 0, since: int = 1000, other: int = 0) -> CountsRow:
    """`submits` None: a driver that does not show them."""
    calls = {"wait": 0, "other": other} if submits is None else {"submit": submits, "wait": 0, "other": other}
    return CountsRow(calls, {**dict.fromkeys(calls, 0), "other": errors}, wait_ns, since)


def row(owner: Owner = WEB, of: CountsRow | None = None, device: str = IGPU, alive: bool = True) -> CounterRow:
    return CounterRow(owner, device, "i915", alive, counts() if of is None else of)


def device(of: CountsRow | None, address: str = IGPU) -> DeviceRow:
    return DeviceRow(address, "i915", "i915", "8086:5917", 0, (), of)


class FakeClient:
    """Each item is what the next sample has: its rows, a node, both, or an error instead."""

    def __init__(self, items: Iterable[tuple[NodeRow, list[CounterRow]] | SourceError]) -> None:
        self.items = list(items)
        self.asked: list[Mapping[str, str | bool]] = []
        self.closed = 0
        self.device_rows: list[DeviceRow] = []
        self.allocation_rows: list[Allocation] = []
        self._rows: list[CounterRow] = []

    def node(self) -> NodeRow:
        item = self.items.pop(0)
        if isinstance(item, SourceError):
            raise item
        node, self._rows = item
        return node

    def devices(self) -> list[DeviceRow]:
        return self.device_rows

    def allocations(self) -> list[Allocation]:
        return self.allocation_rows

    def counters(self, wanted: Filter | None = None) -> list[CounterRow]:
        self.asked.append(wanted or {})
        return self._rows

    def close(self) -> None:
        self.closed += 1

    def put(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In place of the real one."""
        monkeypatch.setattr(bus, "_connect", lambda _address, _timeout_s: self)


SIMULATED = replace(NODE, simulated=True)
OFF = replace(NODE, hooks={"drm_ioctl": "off"}, counting_since=None)
