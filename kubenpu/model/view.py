# SPDX-License-Identifier: Apache-2.0
"""What the ledger shows to every sink: one consistent picture of the node at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kubenpu.model.device import SHOWN, Device, VisibilityOf
from kubenpu.model.identity import Owner
from kubenpu.model.sample import HOOK_WITH_OUTCOME, OFF, ZERO, Counts, HookStatus

if TYPE_CHECKING:
    from kubenpu.model.allocation import Allocations

Amounts = tuple[tuple[str, int], ...]
"""By engine or region."""


class ClientUsage(NamedTuple):
    """Nanoseconds of device time by engine since `first_ns` (CLOCK_BOOTTIME), bytes now by region: of one owner on one
    device.

    `ended`: its clients that were closed; what each did after the last look is in no number. `earlier_ns`: of the time
    of all engines, that of which nobody knows when it was used. A driver that tells nothing of a kind has no entries of
    it, nor has memory of which a part is not known; but memory that the kernel's dmem controller knows is under
    `dmem:REGION`; `first_ns` 0: of its clients nothing is known.
    """

    owner: Owner
    device: str
    engine_ns: Amounts
    memory: Amounts
    ended: int
    first_ns: int
    earlier_ns: int = 0


class ClientTotals(NamedTuple):
    """The same of all clients of one device, with those whose owners' series are gone."""

    device: str
    engine_ns: Amounts
    ended: int
    earlier_ns: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Totals of one owner on one device. `since` is Unix time in seconds of the first counted call; `hooks` those that
    count for the device. `first_ns` is the same as `since` on CLOCK_BOOTTIME: it grows only when older counts of this
    owner became departed ones. `clients`: what its clients used, None where nobody looks or none was seen."""

    owner: Owner
    device: str
    vendor: str | None
    counts: Counts
    since: float
    alive: bool
    hooks: tuple[str, ...] = (HOOK_WITH_OUTCOME,)
    first_ns: int = 0
    clients: ClientUsage | None = None


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """Independent totals of one device. `departed` is the part of workloads whose series are gone.

    `imbalance`: totals - (workloads + departed + lost), 0 when every counted call is attributed or declared lost.
    `settled`: the totals as of the moment that workloads and departed are from, never less than their sum.
    `auxiliary` as of a Device, which may be gone.
    """

    device: str
    vendor: str | None
    counts: Counts
    departed: Counts
    lost: Mapping[str, int]
    imbalance: int
    since: float
    hooks: tuple[str, ...] = (HOOK_WITH_OUTCOME,)
    settled: Counts = ZERO
    auxiliary: bool = False


def sees_outcome(hooks: tuple[str, ...]) -> bool:
    """Whether errors and waiting times of a device with these hooks are known."""
    return all(hook == HOOK_WITH_OUTCOME for hook in hooks)


OPTIONAL_SOURCES = frozenset({"clients", "containers", "dbus", "history", "kubelet", "varlink"})
"""Shown as sources like all others; without them the node is well, and all but they work."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """Whether a source answered last time, how long that took, and what was wrong."""

    source: str
    up: bool
    duration_seconds: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """The node now. `counting_since`: Unix time at which the hook that counts was attached, None while off.

    `retired_early`: cgroups whose series ended before the retention time because counter cells ran short.
    `epoch` names the counters: boot id and what tells them from others of this boot. Counts of two views may be
    subtracted only if it is the same; "" when there are no counts. `taken_ns`: CLOCK_BOOTTIME of the counts.
    `pod_labels`: by UID of the pod, those that the settings ask for. `dbus_dropped`: messages that the message bus did
    not take, None while nobody has been on it. `client_generation`: another one for each time device time began at 0.
    `allocations` None: it is not known who was given which device. `boot_unix_s`: Unix time of CLOCK_BOOTTIME 0.
    """

    version: str
    node: str
    simulated: bool
    counting_since: float | None
    devices: tuple[Device, ...]
    usage: tuple[Usage, ...]
    device_usage: tuple[DeviceUsage, ...]
    hooks: tuple[HookStatus, ...]
    sources: tuple[SourceStatus, ...]
    dropped: Mapping[str, int]
    slots_used: int
    slots_max: int
    index_rebuilds: int
    retired_early: int = 0
    epoch: str = ""
    taken_ns: int = 0
    pod_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    dbus_dropped: int | None = None
    clients: tuple[ClientUsage, ...] = ()
    client_totals: tuple[ClientTotals, ...] = ()
    client_generation: int = 0
    allocations: Allocations | None = None
    boot_unix_s: float = 0.0

    def counts(self, hooks: tuple[str, ...]) -> bool:
        """Whether these hooks, all that see calls of a device, are attached: what they count is shown, zeros too."""
        attached = {hook.hook for hook in self.hooks if hook.mechanism != OFF}
        return bool(hooks) and attached.issuperset(hooks)

    def submit_vendors(self, visibility: VisibilityOf) -> frozenset[str]:
        """Drivers whose submissions pass an ioctl at least partly."""
        vendors = {usage.vendor for usage in self.usage} | {device.vendor for device in self.device_usage}
        return frozenset(v for v in vendors if v and visibility(v).get("submit") in SHOWN)

    def allocated(self, usage: Usage) -> bool | None:
        """Whether the kubelet has given the device to who uses it now; None when that cannot be said."""
        device = next((each for each in self.devices if each.address == usage.device), None)
        if self.allocations is None or device is None or not usage.alive:
            return None
        return self.allocations.cover(usage.owner, device)
