# SPDX-License-Identifier: Apache-2.0
"""Device time of clients whose driver does not tell it: joins what the kernel's GPU scheduler adds up with who is who.

Part of kubenpu-clients. The driver tables say of which devices that holds; they are read when kubenpu-probe times jobs,
elsewhere none of this costs anything. Refuses to put a driver's own word aside: where fdinfo has time, that counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from kubenpu.kernel.job_times import Times, forget_times, jobs_lost, read_times
from kubenpu.kernel.pins import Pins
from kubenpu.model.device import Device, DriverTable
from kubenpu.model.errors import KernelError
from kubenpu.model.fdinfo import Fdinfo


class Timed(NamedTuple):
    """Of one look: devices whose jobs are timed, and the time of every client, by its id."""

    devices: frozenset[str]
    times: Times

    def join(self, fdinfo: Fdinfo | None, client_id: int, memory: Mapping[str, int]) -> Fdinfo | None:
        """What is known of a client of such a device. `memory`: what it had when it was last asked, as it is not asked
        while the device sleeps."""
        if not client_id:
            return fdinfo
        told = fdinfo or Fdinfo(client_id, {}, {}, memory)
        return told if told.engine_ns or told.ticks else told._replace(engine_ns=self.times.get(client_id, {}))


class Jobs:
    """Between two looks. `trouble`: why jobs have no time, "" when all have."""

    def __init__(self, pins: Pins, drivers_directory: Path) -> None:
        self._pins, self._directory = pins, drivers_directory
        self._lost: Mapping[str, int] = {}
        self.tables: tuple[DriverTable, ...] = ()
        self.trouble = ""

    def read_times(self) -> Times:
        """To be called before the holders are listed: then who has time and is not among them is gone."""
        self.trouble = ""
        try:
            times = read_times(self._pins)
            if times is None:
                return {}
            lost = jobs_lost(self._pins)
        except KernelError as e:
            self.trouble = f"no device time of jobs: {e}"
            return {}
        more = {reason: count - self._lost.get(reason, 0) for reason, count in lost.items()}
        if any(count > 0 for count in more.values()):
            said = ", ".join(f"{reason} {count}" for reason, count in more.items() if count > 0)
            self.trouble = f"jobs that have no time since the last look: {said}"
        self._lost = lost
        self.tables = self.tables or self._load_tables()
        return times

    def _load_tables(self) -> tuple[DriverTable, ...]:
        from kubenpu.devices.tables import load_heads  # noqa: PLC0415 - hardly any node needs it

        return load_heads(self._directory).tables

    def of(self, devices: Iterable[Device], times: Times) -> Timed:
        timed = {table.name for table in self.tables if table.scheduled}
        return Timed(frozenset(device.address for device in devices if device.vendor in timed), times)

    def forget(self, clients: Collection[int]) -> None:
        """Those that are gone."""
        try:
            forget_times(self._pins, clients)
        except KernelError as e:
            self.trouble = self.trouble or f"clients that are gone keep their room: {e}"
