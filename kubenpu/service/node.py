# SPDX-License-Identifier: Apache-2.0
"""The node: sources on one side, the ledger in the middle, a View for whoever asks.

Owns the open pins, the ledger, the inventory and the resolver, and one lock around the first three. Every method may
be called from any thread; slow sources (container runtimes) are asked outside the lock. A source that fails is shown
in the View and retried; it never stops the others.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kubenpu import __version__
from kubenpu.config.settings import Settings
from kubenpu.devices.chardevs import event_subsystems
from kubenpu.devices.tables import load_heads
from kubenpu.identity.cri import Runtimes
from kubenpu.identity.index import CgroupIndex, alive, sees_whole_tree
from kubenpu.identity.labels import PodLabels
from kubenpu.identity.resolve import Resolver, next_retry_s
from kubenpu.kernel.bpf import Bell
from kubenpu.kernel.hooks import DRM_IOCTL
from kubenpu.kernel.pins import Pins, claim, read_state
from kubenpu.kernel.store import CounterStore
from kubenpu.ledger.ledger import Ledger, NodeFacts
from kubenpu.ledger.names import NAMES_NAME, read_names, write_names
from kubenpu.model.device import Visibility
from kubenpu.model.errors import KernelError, SourceError
from kubenpu.model.identity import Owner, OwnerKind, PathIdentity, PathKind, Resolution
from kubenpu.model.sample import OFF, CgroupRecord, HookStatus, KernelSample
from kubenpu.model.view import View
from kubenpu.service.client_source import ClientSource
from kubenpu.service.dmem import read_memory
from kubenpu.service.inventory import Inventory, Trouble, apply_rules, read_inventory, tell
from kubenpu.service.kubelet import KUBELET, MaybeKubelet
from kubenpu.service.sources import Sources

if TYPE_CHECKING:
    from kubenpu.identity.containers import Containers, PlainContainer

SIMULATED_MARK = "kubenpu-simulated"
RESOLVE_DEADLINE_S = 2.0
NAMELESS = Resolution(Owner(OwnerKind.UNKNOWN), False, "the cgroup is gone and its name was not captured")


def boot_seconds() -> float:
    """Now on the ledger's clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Node:
    """Everything kubenpud knows about its node."""

    def __init__(self, settings: Settings, cgroup_mount: Path) -> None:
        self._settings = settings
        self._mount = cgroup_mount
        self._runtimes = Runtimes(settings.cri_sockets or None)
        self._containers: Containers | None = None
        self._resolver = Resolver(
            self._runtimes.clients,
            nested_node=not sees_whole_tree(cgroup_mount),
            find_container=self._find_container,
        )
        self._labels = PodLabels(self._runtimes.clients, settings.pod_labels)
        self._kubelet = MaybeKubelet(settings.kubelet_socket, self._runtimes.clients, boot_seconds)
        self._lock = threading.Lock()
        self._store: CounterStore | None = None
        self._store_pin: int | None = None
        self._claim = -1
        self._inventory: Inventory | None = None
        self._told: frozenset[Trouble] = frozenset()
        self._sources = Sources()
        self._index = CgroupIndex(cgroup_mount)
        self._attempts: dict[int, int] = {}
        self._asked: frozenset[str] = frozenset()
        self._unowned: set[int] = set()
        self._saved_names = 0
        self._dbus_dropped: int | None = None
        self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._ledger = Ledger(settings.retention_seconds, time.time() - boot_seconds())
        self._clients = ClientSource(settings.run_directory, self._boot_id, self._sources)
        self.simulated = (settings.sysfs / SIMULATED_MARK).exists()
        self._load_names()

    def apply(self, settings: Settings) -> None:
        """Goes on with these; they differ in what needs no restart only. The thread that resolves calls it."""
        with self._lock:
            sockets, self._settings = self._settings.cri_sockets, settings
            self._ledger.retention_s = settings.retention_seconds
            self._labels.follow(settings.pod_labels)
            if self._kubelet.follow(settings.kubelet_socket):
                self._sources.forget(KUBELET)
            if settings.cri_sockets != sockets:
                self._runtimes.follow(settings.cri_sockets or None)
                self._sources.forget("cri:")

    # ---- sources ----

    def note_source(self, source: str, reason: str, seconds: float, answered: bool = False) -> None:
        """What somebody else found out about a source; as Sources.note() has it."""
        with self._lock:
            self._sources.note(source, reason, seconds, answered)

    def note_dropped(self, count: int) -> None:
        """Messages that the bus has not taken since this was called last; none is a number, too."""
        with self._lock:
            self._dbus_dropped = (self._dbus_dropped or 0) + count

    def open(self) -> None:
        """Opens the pins if they are not open yet."""
        with self._lock, self._sources.timed("counters"):
            self._current_store()

    def _current_store(self) -> CounterStore:
        """The store over the pins that exist now: kubenpu-probe may have removed the old ones and made new ones."""
        pin = self._pin_identity()
        if self._store is None or pin != self._store_pin:
            self._close_store()
            store = CounterStore(self._settings.pin_directory)
            try:
                self._claim = claim(Pins(self._settings.pin_directory).root)
            except KernelError:
                store.close()
                raise
            store.recover()
            self._store, self._store_pin, self._unowned = store, pin, set()
            self._apply_rules()
        return self._store

    def _close_store(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
            os.close(self._claim)

    def _pin_identity(self) -> int | None:
        try:
            return Pins(self._settings.pin_directory).map("cells").stat().st_ino
        except OSError:
            return None

    def bell(self) -> Bell | None:
        """What becomes readable when a new cgroup was seen; None while the pins are not open."""
        store = self._store  # read once: a scrape may close it meanwhile
        return store.bell if store is not None else None

    def rescan_devices(self) -> None:
        """Reads sysfs again and tells the kernel what to count."""
        with self._lock, self._sources.timed("devices"):
            self._inventory = read_inventory(self._settings.sysfs, self._settings.drivers_directory)
            self._apply_rules()

    def _apply_rules(self) -> None:
        """What is wrong with tables and devices is logged once, while it stays the same."""
        if self._inventory is not None:
            refused: tuple[Trouble, ...] = ()
            if self._store is not None:
                refused = apply_rules(self._store, self._inventory, self._settings.run_directory)
            self._told = tell([*self._inventory.troubles, *refused], self._told)

    def event_subsystems(self) -> frozenset[str]:
        """Subsystems whose uevents may mean other devices, besides drm and accel: as of the last scan, else by the
        driver tables."""
        inventory = self._inventory  # read once: another thread scans
        if inventory is not None:
            return inventory.event_subsystems
        return event_subsystems(load_heads(self._settings.drivers_directory).tables)

    def reload(self) -> None:
        """Reads devices and driver tables again now. Raises SourceError when the devices cannot be read."""
        self.rescan_devices()
        with self._lock:
            devices = self._sources["devices"]
        if not devices.up:
            raise SourceError(devices.reason)

    # ---- whose it is ----

    def resolve(self) -> float | None:
        """Silences the bell and asks the runtimes about cgroups without a final owner; may take seconds.

        Returns after how many seconds the next of them may be asked about again, None when all owners are final.
        """
        with self._lock:
            self._meet_runtimes()
            if self._store is not None:
                self._store.bell.silence()  # before the reading: who rings later is in the next one
            sample = self._read()
            if sample is None:
                return None
            paths = {i: self._path(sample, i) for i in self._ledger.to_resolve(sample, boot_seconds())}
        attempts = {path: self._attempts.get(i, 0) for i, path in paths.items() if path is not None}
        begin = time.monotonic()
        answers = self._resolver.resolve_many(attempts, RESOLVE_DEADLINE_S) if attempts else {}
        with self._lock:
            if attempts:
                self._note_runtimes(time.monotonic() - begin)
            now = boot_seconds()
            for cgroup_id, path in paths.items():
                answer = answers.get(path) if path is not None else NAMELESS
                if answer is not None:
                    attempt = self._attempts.pop(cgroup_id, 0)
                    retry_at = now + next_retry_s(attempt, answer.silent)
                    if not self._ledger.set_resolution(cgroup_id, answer, retry_at):
                        self._attempts[cgroup_id] = attempt if answer.silent else attempt + 1
            self._save_names()
            waiting = self._ledger.to_resolve(sample, float("inf"))
            pause = self._ledger.next_retry_s(sample, now) if waiting else None
            pods = {standing.owner.pod_uid for standing in self._ledger.names().values()}
            allocations = self._kubelet.known
            pods |= {each.pod_uid for each in allocations.all} if allocations is not None else set()
        self._labels.look_up(pods - {""}, RESOLVE_DEADLINE_S)
        return pause

    def _meet_runtimes(self) -> None:
        """One that was not there may know whom the others denied."""
        names = frozenset(runtime.name for runtime in self._runtimes.clients())
        if names - self._asked:
            self._attempts.clear()
            self._ledger.ask_again()
        self._asked = names

    def ask_kubelet(self) -> None:
        """Which device it has given to whom; may take seconds."""
        self._kubelet.ask(self.view, self.note_source)

    def _note_runtimes(self, seconds: float | None = None) -> None:
        """`seconds` is how long they took to answer, None when they were not asked now."""
        for runtime in self._runtimes.clients():
            self._sources.note(f"cri:{runtime.name}", runtime.trouble, seconds)
        if self._containers is not None and self._containers.trouble is not None:
            self._sources.note("containers", self._containers.trouble, 0.0)

    def _find_container(self, claim: PathIdentity) -> PlainContainer | None:
        """The name of a plain container. Nodes of a cluster have none, and do not load what reads them."""
        if claim.kind is not PathKind.PLAIN_CONTAINER:
            return None
        if self._containers is None:
            from kubenpu.identity.containers import Containers  # noqa: PLC0415

            self._containers = Containers()
        return self._containers.find(claim)

    def _path(self, sample: KernelSample, cgroup_id: int) -> str | None:
        """Where a cgroup is or was, None when nobody knows. A path cut short still holds its pod segment."""
        record = sample.cgroups.get(cgroup_id)
        whole = self._whole_path(sample, cgroup_id)
        return whole if whole is not None or record is None or record.path == "/" else record.path

    def _whole_path(self, sample: KernelSample, cgroup_id: int) -> str | None:
        """As captured in the kernel, else as found in the tree now; None when it was cut short and is gone."""
        record = sample.cgroups.get(cgroup_id)
        return record.path if record is not None and not record.truncated else self._index.path(cgroup_id)

    def _load_names(self) -> None:
        with self._sources.timed("names"):
            self._ledger.adopt_names(read_names(self._settings.run_directory / NAMES_NAME, self._boot_id))

    def _save_names(self) -> None:
        names = self._ledger.names()
        fingerprint = hash(frozenset(names.items()))
        if fingerprint != self._saved_names:
            with self._sources.timed("names"):
                write_names(self._settings.run_directory / NAMES_NAME, self._boot_id, names)
                self._saved_names = fingerprint

    # ---- housekeeping ----

    def tidy(self) -> None:
        """Marks removed cgroups dead, folds and frees cells, forgets cgroups nobody owns; looks after the runtimes."""
        now = boot_seconds()
        with self._lock:
            self._note_runtimes()
            sample = self._read()
            if sample is None or self._store is None:
                return
            for cgroup_id in self._ledger.alive(sample):
                path = self._whole_path(sample, cgroup_id)
                if path is None and not self._index.complete:
                    continue  # it may be in a part of the tree that cannot be walked
                if path is None or not alive(self._mount, path, cgroup_id):
                    self._ledger.mark_dead(cgroup_id, now)
            here = sample.cgroup_ids()
            self._attempts = {i: n for i, n in self._attempts.items() if i in here}
            merges = self._ledger.plan_merges(sample, now)
            for merge in merges:
                self._store.merge(merge)
            if merges or self._unowned:
                self._forget(self._store)
            self._store.reopen_search()
            self._save_names()

    def _forget(self, store: CounterStore) -> None:
        """Only who was to go at the last look, too: the kernel writes a cgroup's record before its first cell."""
        unowned = store.recorded_cgroups() - {c.cgroup_id for c in store.read().cells}
        known = unowned & self._unowned
        lost = known | {cgroup_id for cgroup_id in unowned - known if not self._has_path(store.read_cgroup(cgroup_id))}
        store.forget_cgroups(known)
        self._unowned = lost - known

    def _has_path(self, record: CgroupRecord | None) -> bool:
        return record is not None and not record.truncated and alive(self._mount, record.path, record.cgroup_id)

    # ---- the picture ----

    def _read(self) -> KernelSample | None:
        sample = None
        with self._sources.timed("counters"):
            sample = self._current_store().read()
        return None if sample is None else self._clients.join(sample, wanted=self._wants_clients())

    def _wants_clients(self) -> bool:
        """Whether a driver here tells device time or memory. Nobody looks at a simulated device."""
        devices = () if self.simulated or self._inventory is None else self._inventory.devices
        tables = [self.visibility(device.vendor) for device in devices]
        told = [table.get(what) for table in tables for what in ("device_time", "device_memory")]
        return not {None, Visibility.NEVER}.issuperset(told)

    def view(self) -> View:
        """Reads the kernel's totals now and joins them with what is known."""
        with self._lock:
            self._ledger.follow_clock(time.time() - boot_seconds())
            sample = self._read()
            addresses = self._store.slots() if self._store is not None else {}
            hooks, since = self._hooks()
            facts = NodeFacts(
                version=__version__,
                node=os.uname().nodename,
                simulated=self.simulated,
                counting_since=since,
                devices=self._inventory.devices if self._inventory else (),
                hooks=hooks,
                sources=self._sources.all(),
                index_rebuilds=self._index.rebuilds,
                slot_hooks=self._store.slot_hooks() if self._store is not None else {},
                boot_id=self._boot_id,
                pod_labels=self._labels.known,
                dbus_dropped=self._dbus_dropped,
                allocations=self._kubelet.known,
                charged=read_memory(self._inventory, self._mount, sample, addresses, self._whole_path),
            )
            return self._ledger.view(sample, addresses, facts)

    def _hooks(self) -> tuple[tuple[HookStatus, ...], float | None]:
        """The hooks as the probe left them, set to off where the pins say otherwise; and when counting began."""
        try:
            hooks, _ = read_state(self._settings.run_directory)
        except KernelError as e:
            return (HookStatus(DRM_IOCTL.name, OFF, str(e), 0),), None
        if not hooks:
            return (HookStatus(DRM_IOCTL.name, OFF, "kubenpu-probe has not run since boot", 0),), None
        store = self._store
        unopened = store is None and not Pins(self._settings.pin_directory).are_gone()
        gone = "kubenpud cannot use its counters" if unopened else "its pins were removed"
        hooks = tuple(
            h
            if h.mechanism == OFF or (store is not None and store.hook_attached(h.hook))
            else replace(h, mechanism=OFF, reason=gone)
            for h in hooks
        )
        since = min((h.since_ns for h in hooks if h.mechanism != OFF), default=None)
        return hooks, None if since is None else since / 1e9 + self._ledger.boot_unix_s

    def visibility(self, vendor: str | None) -> Mapping[str, Visibility]:
        """What of a driver's work passes an ioctl; empty when no table knows the driver."""
        table = self._inventory.tables.by_name(vendor) if self._inventory else None
        return table.visibility if table else {}

    def work_of(self, vendor: str | None) -> str | None:
        """In what the submissions of a driver say how much they hand over."""
        return table.work if (table := self._inventory and self._inventory.tables.by_name(vendor)) else None

    def summary(self) -> str:
        """One line for systemctl status."""
        hooks, _ = self._hooks()
        needed = [h for h in hooks if h.needed]
        hook = ", ".join(f"{h.hook} {h.mechanism}" + (f" ({h.reason})" if h.mechanism == OFF else "") for h in needed)
        count = len(self._inventory.devices) if self._inventory else 0
        mark = "SIMULATED NODE, " if self.simulated else ""
        return f"{mark}{count} accelerator{'s' if count != 1 else ''}, {hook}"

    def close(self) -> None:
        with self._lock:
            self._close_store()
        self._runtimes.close()
        self._kubelet.close()
