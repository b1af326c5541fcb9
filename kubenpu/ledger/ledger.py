# SPDX-License-Identifier: Apache-2.0
"""The ledger: joins what the kernel counted with whose it was, and says which counter cells can be given back.

Owns, per cgroup, the resolver's answer and the time of death; nothing else. The pinned map is the database: no count
is kept here, so a killed and restarted ledger shows the same numbers as soon as the names are known again.
A dead workload's series stays for `retention_s` (default 600 s) and then moves into the device's departed total.
Refuses to change a final answer. One thread owns a ledger; times are seconds of CLOCK_BOOTTIME, the sample's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kubenpu.ledger.merges import plan_merges
from kubenpu.ledger.standing import UNASKED, Standing
from kubenpu.ledger.totals import Labels, client_totals, client_usage, device_usage, dropped, usage
from kubenpu.model.device import Device
from kubenpu.model.identity import OwnerKind, Resolution
from kubenpu.model.sample import CellMerge, HookStatus, KernelSample
from kubenpu.model.view import SourceStatus, View

if TYPE_CHECKING:
    from kubenpu.model.allocation import Allocations

CLOCK_SET_S = 1.0
"""A clock of the wall that moves by more against CLOCK_BOOTTIME was set; by less it was adjusted."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a view says about the node besides the counts; `index_rebuilds` and `pod_labels` come from identity,
    `slot_hooks` says which hooks count for a device slot. `charged`: memory by region that the kernel has charged to a
    cgroup, by its id and the device, of devices whose drivers tell none."""

    version: str
    node: str
    simulated: bool
    counting_since: float | None
    devices: tuple[Device, ...] = ()
    hooks: tuple[HookStatus, ...] = ()
    sources: tuple[SourceStatus, ...] = ()
    index_rebuilds: int = 0
    slot_hooks: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    boot_id: str = ""
    pod_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    dbus_dropped: int | None = None
    allocations: Allocations | None = None
    charged: Mapping[tuple[int, str], Mapping[str, int]] = field(default_factory=dict)


@dataclass(slots=True)
class Ledger:
    """`boot_unix_s`: Unix time of CLOCK_BOOTTIME 0, turns the kernel's times into start times of series."""

    retention_s: float
    boot_unix_s: float
    _standings: dict[int, Standing] = field(default_factory=dict)
    _retry_at: dict[int, float] = field(default_factory=dict)
    _vendors: dict[str, str] = field(default_factory=dict)
    _auxiliary: set[str] = field(default_factory=set)
    _early: set[int] = field(default_factory=set)
    _retired_early: int = 0
    _missing: set[int] = field(default_factory=set)

    def follow_clock(self, boot_unix_s: float) -> None:
        """When the wall's clock was set, start times move with it, but not before 1970. They do not tremble with it."""
        now = max(0.0, boot_unix_s)
        if abs(now - self.boot_unix_s) > CLOCK_SET_S:
            self.boot_unix_s = now

    def to_resolve(self, sample: KernelSample, now: float) -> tuple[int, ...]:
        """Cgroups with counts whose owner is not final and whose retry time has come."""
        return tuple(
            cgroup_id
            for cgroup_id in sorted(sample.cgroup_ids())
            if not self._standing(cgroup_id).final and self._retry_at.get(cgroup_id, now) <= now
        )

    def next_retry_s(self, sample: KernelSample, now: float) -> float | None:
        """Seconds until the next cgroup may be asked about; None when all owners are final."""
        waiting = (c for c in sample.cgroup_ids() if not self._standing(c).final)
        return min((max(0.0, self._retry_at.get(c, now) - now) for c in waiting), default=None)

    def set_resolution(self, cgroup_id: int, resolution: Resolution, retry_at: float = 0.0) -> bool:
        """Keep the resolver's answer; `retry_at` says when to ask again if it is not final. Whether it is.

        As long as a cgroup lives somebody may come who knows it. Cells are folded when it is gone, with others that
        nobody knew: from then on no name may come.
        """
        standing = self._standing(cgroup_id)
        if standing.final:
            return True
        gone = standing.dead_since is not None
        final = resolution.final and (gone or resolution.owner.kind is not OwnerKind.UNKNOWN)
        self._standings[cgroup_id] = replace(standing, owner=resolution.owner, final=final)
        if final:
            self._retry_at.pop(cgroup_id, None)
        else:
            self._retry_at[cgroup_id] = retry_at
        return final

    def ask_again(self) -> None:
        """At once, about all whose owner is not final."""
        self._retry_at.clear()

    def alive(self, sample: KernelSample) -> tuple[int, ...]:
        """Cgroups with counts that nobody declared dead yet: the ones to look after."""
        return tuple(sorted(c for c in sample.cgroup_ids() if self._standing(c).dead_since is None))

    def mark_dead(self, cgroup_id: int, now: float) -> None:
        """The cgroup was removed. Its id never comes back within this boot; the first mark counts."""
        standing = self._standing(cgroup_id)
        if standing.dead_since is None:
            self._standings[cgroup_id] = replace(standing, dead_since=now)

    def names(self) -> dict[int, Standing]:
        """The final answers, for ledger/names.py: a runtime forgets a removed container, a restart must not."""
        return {cgroup_id: standing for cgroup_id, standing in self._standings.items() if standing.final}

    def adopt_names(self, names: Mapping[int, Standing]) -> None:
        """Take over the answers of the process before this one."""
        self._standings = {**names, **self._standings}

    def plan_merges(self, sample: KernelSample, now: float) -> tuple[CellMerge, ...]:
        """The cells to fold now (ledger/merges.py has the rules). Forgets cgroups that hold no cell any more."""
        self._forget_gone(sample)
        plan = plan_merges(sample, self._standings, now, self.retention_s)
        self._retired_early += len(plan.early - self._early)
        self._early |= plan.early
        return plan.merges

    def view(self, sample: KernelSample | None, addresses: Mapping[int, str], facts: NodeFacts) -> View:
        """The picture for every sink. `addresses` names the device slots; without a sample there are no counts."""
        self._remember(facts.devices)
        labels = Labels(addresses, self._vendors, facts.slot_hooks, self._auxiliary)
        told = sample.clients if sample and sample.client_generation else ()
        clients = client_usage(told, self._standings, facts.charged)
        since = facts.counting_since if facts.counting_since is not None else self.boot_unix_s
        return View(
            version=facts.version,
            node=facts.node,
            simulated=facts.simulated,
            counting_since=facts.counting_since,
            devices=facts.devices,
            clients=clients,
            client_generation=sample.client_generation if sample else 0,
            client_totals=client_totals(told),
            usage=usage(sample, self._standings, labels, self.boot_unix_s, clients) if sample else (),
            device_usage=device_usage(sample, labels, since) if sample else (),
            hooks=facts.hooks,
            sources=facts.sources,
            dropped=dropped(sample) if sample else {},
            slots_used=sample.slots_used if sample else 0,
            slots_max=sample.slots_max if sample else 0,
            index_rebuilds=facts.index_rebuilds,
            retired_early=self._retired_early,
            epoch=f"{facts.boot_id}/{sample.generation}" if sample else "",
            taken_ns=sample.taken_ns if sample else 0,
            pod_labels=facts.pod_labels,
            dbus_dropped=facts.dbus_dropped,
            allocations=facts.allocations,
            boot_unix_s=self.boot_unix_s,
        )

    def _standing(self, cgroup_id: int) -> Standing:
        return self._standings.get(cgroup_id, UNASKED)

    def _remember(self, devices: Iterable[Device]) -> None:
        """An unplugged device keeps its label, else its counters would change series, and stays what it was."""
        self._vendors |= {device.address: device.vendor for device in devices if device.vendor is not None}
        self._auxiliary -= {device.address for device in devices}
        self._auxiliary |= {device.address for device in devices if device.auxiliary}

    def _forget_gone(self, sample: KernelSample) -> None:
        """Forget cgroups missing from two samples in a row: an answer may be younger than the first of them."""
        here = sample.cgroup_ids()
        gone = self._standings.keys() - here
        for cgroup_id in gone & self._missing:
            del self._standings[cgroup_id]
            self._retry_at.pop(cgroup_id, None)
        self._missing = gone
        self._early &= here
