# SPDX-License-Identifier: Apache-2.0
"""The history over a model of kernel and ledger, driven at random: no one is charged twice, nothing is lost.

Calls, allocations, drivers that change, deaths, retirement, names that come late or are lost, a kubenpud that is killed
while it folds or stores, new counters, reboots, clocks that are set: after every interval the workloads and what is
unattributed add up to what the device counted, nobody has more than he made, and who was named and stored in time has
exactly that.
What was told once of a span of time adds up with what is told later of the rest.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from kubenpu.history import recorder
from kubenpu.history.recorder import Recorder
from kubenpu.history.report import read_usage
from kubenpu.history.snapshot import MEASURES, Snapshot, read_snapshot
from kubenpu.history.upkeep import Bounds
from kubenpu.ledger.ledger import Ledger, NodeFacts
from kubenpu.model.allocation import Allocation, Allocations
from kubenpu.model.device import Device, Visibility
from kubenpu.model.errors import SourceError
from kubenpu.model.identity import Owner, OwnerKind, Resolution
from kubenpu.model.sample import HookStatus
from kubenpu.model.usage import (
    ACTIVE_MS,
    ALLOCATED_MS,
    BY_ALLOCATION_MS,
    PRESENT_MS,
    RULES,
    SHARE_MS,
    UNUSED_MS,
    UNWATCHED_MS,
    Part,
    UsageRow,
)
from tests.fakes.kernel_model import DEVICES, OWNERS, KernelModel

RETENTION_S = 100.0
PRESENT = tuple(Device(address, "drm", "i915", "i915", None, None, (), "") for address in DEVICES.values())
FACTS = NodeFacts("1", "n", False, counting_since=0.0, devices=PRESENT)
BOUNDS = Bounds(retention_days=36500, max_mib=64)
MEMORY = Path("/dev/shm")  # each interval is synced to the disk
Name = tuple[str, str, str, str]


def name_of(owner: Owner) -> Name:
    return (owner.namespace, owner.pod, owner.container, owner.unit)


class KilledError(SourceError):
    """What a kill in the middle of storing leaves of it."""


class HistoryMachine(RuleBasedStateMachine):
    """`made`: calls by name and device. `inexact`: names of which calls were lost, or gone before they were stored."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.path = self.directory / "usage.db"
        self.wall_s, self.boot_s, self.boots = 1.7e9, 1.0, 0
        self.given: tuple[Allocation, ...] = ()
        self.owners: dict[int, Owner] = {}
        self.named: frozenset[int] = frozenset()
        self.made: Counter[tuple[Name, str]] = Counter()
        self.unstored: Counter[tuple[Name, str]] = Counter()
        self.inexact: set[tuple[Name, str]] = set()
        self.told: dict[float, list[UsageRow]] = {}  # of all time until then, as it was told at some time
        self.present = PRESENT
        self.clock_set = False  # since the last interval: intervals may move with it
        self.new_counters()
        self.recorder = Recorder(self.path, BOUNDS)
        self.record()

    def teardown(self) -> None:
        self.recorder.close()
        shutil.rmtree(self.directory)

    def new_counters(self) -> None:
        """What was not stored of the old ones is gone, for device and workload alike."""
        self.made -= self.unstored
        self.unstored.clear()
        unnamed = {name_of(owner) for cgroup, owner in self.owners.items() if cgroup not in self.named}
        self.inexact |= {(name, device) for name in unnamed for device in DEVICES.values()}
        self.kernel, self.since_ns, self.generation = KernelModel(), int(self.boot_s * 1e9), int(self.boot_s * 1e3)
        self.ledger = Ledger(RETENTION_S, boot_unix_s=0.0)
        self.owners, self.named = {}, frozenset()
        self.alive: dict[Owner, int] = {}

    # ---- what happens on the node ----

    @rule(owner=st.sampled_from(OWNERS), device=st.sampled_from(sorted(DEVICES)), kind=st.sampled_from([0, 4]))
    def call(self, owner: Owner, device: int, kind: int) -> None:
        if owner not in self.alive:
            self.alive[owner] = len(self.owners) + 1
            self.owners[self.alive[owner]] = owner
        lost = self.kernel.lost[device]
        self.kernel.call(self.alive[owner], device, kind, int(self.boot_s * 1e9))
        key = (name_of(owner), DEVICES[device])
        self.made[key] += 1
        self.unstored[key] += 1
        if self.kernel.lost[device] > lost:
            self.inexact.add(key)

    @rule(
        held=st.frozensets(st.tuples(st.sampled_from(OWNERS), st.sampled_from([*DEVICES.values(), None])), max_size=4)
    )
    def give(self, held: frozenset[tuple[Owner, str | None]]) -> None:
        """The kubelet gives devices to containers, of which it may not say which devices they are; or says nothing.

        There is one pod of a name at a time.
        """
        pods = {(name_of(owner), device): owner for owner, device in held if owner.kind is OwnerKind.POD}
        self.given = tuple(
            Allocation(o.namespace, o.pod, o.container, "r", str(place), "", device, o.pod_uid, None)
            for place, ((_, device), o) in enumerate(pods.items())
        )

    @rule(place=st.sampled_from(range(len(PRESENT))), vendor=st.sampled_from(["i915", "xe", None]))
    def bind(self, place: int, vendor: str | None) -> None:
        """Another driver, or another table."""
        changed = replace(PRESENT[place], vendor=vendor)
        self.present = (*self.present[:place], changed, *self.present[place + 1 :])

    @rule(owner=st.sampled_from(OWNERS))
    def die(self, owner: Owner) -> None:
        self.alive.pop(owner, None)

    @rule(
        seconds=st.sampled_from([0.5, 60.0, 110.0, 4000.0, 200000.0]),
        jump=st.sampled_from([0.0, 0.0, 0.0, 0.0, -7200.0, 86400.0]),
    )
    def wait(self, seconds: float, jump: float) -> None:
        self.boot_s += seconds
        self.wall_s += seconds + jump
        self.clock_set |= bool(jump)

    @rule(answer=st.sampled_from(["final", "final", "none"]), part=st.sampled_from([None, None, None, 0, 1]))
    def daemon_cycle(self, answer: str, part: int | None) -> None:
        """Ask whose it is, find the dead, fold; perhaps get killed after the first `part` merges."""
        sample = self.kernel.sample(int(self.boot_s * 1e9))
        for cgroup_id in self.ledger.to_resolve(sample, self.boot_s):
            if answer == "final":
                resolution = Resolution(self.owners[cgroup_id], True, "test")
                self.ledger.set_resolution(cgroup_id, resolution, self.boot_s)
        for cgroup_id in self.ledger.alive(sample):
            if cgroup_id not in self.alive.values():
                self.ledger.mark_dead(cgroup_id, self.boot_s)
        for merge in self.ledger.plan_merges(sample, self.boot_s)[:part]:
            source = self.kernel.cells[merge.source]
            key = (name_of(self.owners[source.cgroup_id]), DEVICES[source.device])
            if merge.target in DEVICES and (self.unstored[key] or source.cgroup_id not in self.named):
                self.inexact.add(key)
            self.kernel.merge(merge)

    @rule()
    def restart(self) -> None:
        names = self.ledger.names()
        self.ledger = Ledger(RETENTION_S, boot_unix_s=5.0)
        self.ledger.adopt_names(names)
        self.recorder.close()
        self.recorder = Recorder(self.path, BOUNDS)

    @rule(seconds=st.sampled_from([0.0, 200000.0]))
    def lose_names(self, seconds: float) -> None:
        """names.json is gone. All names come back before anything is folded: a runtime knows who lives."""
        if all(owner in self.alive and self.alive[owner] == cgroup for cgroup, owner in self.owners.items()):
            self.ledger = Ledger(RETENTION_S, boot_unix_s=0.0)
            self.record()
            self.wait(seconds, 0.0)
            self.record()
            self.daemon_cycle("final", None)

    @rule(stored=st.booleans(), boot=st.booleans())
    def begin_anew(self, stored: bool, boot: bool) -> None:
        """Reboot, or kubenpu-probe unloaded and loaded; stored before, or not."""
        if stored:
            self.wait(1.0, 0.0)
            self.record()
        if boot:
            self.boots, self.boot_s = self.boots + 1, 1.0
        self.wait(1.0, 0.0)
        self.new_counters()

    # ---- the history ----

    @rule(seconds=st.sampled_from([1.0, 60.0]))
    def kill_while_storing(self, seconds: float) -> None:
        self.wait(seconds, 0.0)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KilledError):
            patch.setattr(recorder, "_store_labels", lambda *_: (_ for _ in ()).throw(KilledError("killed")))
            self.recorder.record(self.snapshot())
        self.restart()

    def snapshot(self) -> Snapshot:
        hooks = (HookStatus("drm_ioctl", "fentry", "", self.since_ns),)
        known = Allocations(self.given, {}) if self.given else None
        facts = replace(FACTS, hooks=hooks, boot_id=f"boot-{self.boots}", allocations=known, devices=self.present)
        sample = replace(self.kernel.sample(int(self.boot_s * 1e9)), generation=self.generation)
        view = self.ledger.view(sample, DEVICES, facts)
        found = read_snapshot(view, int(self.wall_s * 1000), lambda _vendor: {"submit": Visibility.ALWAYS})
        assert found is not None
        return found

    @rule()
    def record(self) -> None:
        self.wait(1.0, 0.0)
        self.recorder.record(self.snapshot())
        if self.clock_set:
            self.told.clear()
        self.clock_set = False
        self.unstored.clear()
        self.named = frozenset(self.ledger.names())
        rows = merge(read_usage(self.path, "container", 0, 1e11, deadline_s=60))
        for device in DEVICES.values():
            self.check_device([row for row in rows if row.device == device])
        self.check_windows(rows)

    def check_device(self, rows: list[UsageRow]) -> None:
        (whole,) = (row for row in rows if row.part is Part.DEVICE)
        others = [row for row in rows if row.part is not Part.DEVICE]
        for measure in MEASURES:
            assert sum(row.amounts[measure] for row in others) == whole.amounts[measure]
        get = whole.amounts.get
        divided = sum(get(rule, 0) for rule in RULES)
        assert sum(row.amounts.get(SHARE_MS, 0) for row in others) == divided
        assert max(get(ACTIVE_MS, 0), get(ALLOCATED_MS, 0)) <= divided <= get(ACTIVE_MS, 0) + get(ALLOCATED_MS, 0)
        assert 0 <= divided + get(UNWATCHED_MS, 0) <= get(PRESENT_MS, 0)
        assert get(BY_ALLOCATION_MS, 0) == get(ALLOCATED_MS, 0)
        assert get(UNUSED_MS, 0) <= get(ALLOCATED_MS, 0)
        for row in others:
            assert row.amounts.get(UNUSED_MS, 0) <= row.amounts.get(ALLOCATED_MS, 0) <= get(ALLOCATED_MS, 0)
        made = {name: n for (name, device), n in self.made.items() if device == whole.device}
        assert calls(whole) == sum(made.values())
        for row in others:
            if row.part is Part.WORKLOAD:
                self.check_workload(row, made)

    def check_workload(self, row: UsageRow, made: dict[Name, int]) -> None:
        name = (row.namespace, row.pod, row.container, row.unit)
        assert 0 <= calls(row) <= made.get(name, 0)
        pending = {name_of(owner) for cgroup, owner in self.owners.items() if cgroup not in self.named}
        if (name, row.device) not in self.inexact and name not in pending:
            assert calls(row) == made.get(name, 0)

    @rule(ago=st.floats(0, 5000))
    def ask(self, ago: float) -> None:
        """Of what is in minutes yet; by the time it is compared that may be in quarters of an hour."""
        border = self.wall_s - ago
        self.told[border] = read_usage(self.path, "container", 0, border, deadline_s=60)

    def check_windows(self, rows: list[UsageRow]) -> None:
        """Adjacent windows add up to the whole, wherever the border is, and whenever each was asked for."""
        half = (rows[0].since + rows[0].until) / 2
        told = {**self.told, half: read_usage(self.path, "container", 0, half, deadline_s=60)}
        for border, part in told.items():
            summed: Counter[object] = Counter()
            for row in (*part, *read_usage(self.path, "container", border, 1e11, deadline_s=60)):
                for measure, value in row.amounts.items():
                    summed[row.part, row.device, *name_of_row(row), measure] += value
            for row in rows:
                for measure, value in row.amounts.items():
                    assert summed[row.part, row.device, *name_of_row(row), measure] == value


def merge(rows: list[UsageRow]) -> list[UsageRow]:
    """A device under all its drivers is one: whatever adds up for each does so for all."""
    merged: dict[tuple[Part, str, Name], UsageRow] = {}
    for row in rows:
        one = merged.setdefault((row.part, row.device, name_of_row(row)), replace(row, amounts={}))
        amounts = Counter(one.amounts)
        amounts.update(row.amounts)
        merged[row.part, row.device, name_of_row(row)] = replace(one, amounts=amounts)
    return list(merged.values())


def name_of_row(row: UsageRow) -> Name:
    return (row.namespace, row.pod, row.container, row.unit)


def calls(row: UsageRow) -> int:
    return sum(value for measure, value in row.amounts.items() if measure.startswith("calls."))


HistoryMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestHistory = HistoryMachine.TestCase
