# SPDX-License-Identifier: Apache-2.0
"""The ledger over a model of the kernel's counter array, driven at random: nothing is lost, no series goes down."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kubenpu.ledger.ledger import Ledger, NodeFacts
from kubenpu.ledger.standing import NOBODY, series_owner
from kubenpu.model.identity import Owner, OwnerKind, Resolution
from kubenpu.model.sample import ZERO, Counts
from kubenpu.model.view import View
from tests.fakes.kernel_model import DEVICES, OWNERS, SLOTS_MAX, KernelModel

RETENTION_S = 10.0
Series = dict[tuple[Owner, str], tuple[float, Counts]]
FACTS = NodeFacts("1", "n", False, counting_since=0.0)


class LedgerMachine(RuleBasedStateMachine):
    """Cgroups are born with an owner, call, get resolved early or late, die; the daemon may be killed at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = KernelModel()
        self.ledger = Ledger(RETENTION_S, boot_unix_s=0.0)
        self.owners: dict[int, Owner] = {}
        self.alive: dict[Owner, int] = {}
        self.made: Counter[tuple[Owner, str]] = Counter()
        self.now = 1.0
        self.names_lost = False
        self.shown: Series = {}
        self.retired_early = 0

    @rule(owner=st.sampled_from(OWNERS), device=st.sampled_from(sorted(DEVICES)), kind=st.sampled_from([0, 4]))
    def call(self, owner: Owner, device: int, kind: int) -> None:
        """The owner's living cgroup calls; it is born first if there is none."""
        if owner not in self.alive:
            self.alive[owner] = len(self.owners) + 1
            self.owners[self.alive[owner]] = owner
        self.kernel.call(self.alive[owner], device, kind, int(self.now * 1e9))
        self.made[series_owner(owner), DEVICES[device]] += 1

    @rule(owner=st.sampled_from(OWNERS))
    def die(self, owner: Owner) -> None:
        self.alive.pop(owner, None)

    @rule(seconds=st.sampled_from([0.5, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(
        answer=st.sampled_from(["final", "final", "wrong guess", "denied", "none"]),
        part=st.sampled_from([None, None, 0, 1, 3]),
    )
    def daemon_cycle(self, answer: str, part: int | None) -> None:
        """Ask whose it is, find the dead, fold; perhaps get killed after the first `part` merges."""
        sample = self.kernel.sample(int(self.now * 1e9))
        for cgroup_id in self.ledger.to_resolve(sample, self.now):
            if answer == "denied":
                self.ledger.set_resolution(cgroup_id, Resolution(NOBODY, True, "test"), self.now + 0.1)
            elif answer != "none":
                owner = self.owners[cgroup_id] if answer == "final" else OWNERS[cgroup_id % len(OWNERS)]
                self.ledger.set_resolution(cgroup_id, Resolution(owner, answer == "final", "test"), self.now + 0.1)
        for cgroup_id in self.ledger.alive(sample):
            if cgroup_id not in self.alive.values():
                self.ledger.mark_dead(cgroup_id, self.now)
        merges = self.ledger.plan_merges(sample, self.now)[:part]
        for merge in merges:
            self.kernel.merge(merge)
        if part is not None and any(merge.target in DEVICES for merge in merges):
            self.shown = {}

    @rule(names_kept=st.sampled_from([True, True, False]))
    def restart(self, names_kept: bool) -> None:
        names = self.ledger.names() if names_kept else {}
        self.ledger = Ledger(RETENTION_S, boot_unix_s=0.0)
        self.ledger.adopt_names(names)
        self.retired_early = 0
        if not names_kept:
            self.shown = {}
            self.names_lost = True

    @rule(owner=st.sampled_from(OWNERS))
    def crash_loop(self, owner: Owner) -> None:
        """More restarts of one container than there are cells: folding must make room, nothing may be lost."""
        lost = sum(self.kernel.lost.values())
        for _ in range(SLOTS_MAX):
            self.die(owner)
            self.daemon_cycle("final", None)
            self.no_series_goes_down()
            self.call(owner, 0, 0)
        assert sum(self.kernel.lost.values()) == lost

    @rule()
    def end_unknown(self) -> None:
        """All die and are denied for long; a runtime that knows them comes when they are folded."""
        for owner in OWNERS:
            self.die(owner)
        for answer in ("denied", "denied", "final"):
            self.daemon_cycle(answer, None)
            self.now += 0.5

    def view(self) -> View:
        return self.ledger.view(self.kernel.sample(int(self.now * 1e9)), DEVICES, FACTS)

    @invariant()
    def every_call_is_somewhere(self) -> None:
        view = self.view()
        for device in view.device_usage:
            shown = sum((usage.counts for usage in view.usage if usage.device == device.device), ZERO)
            assert device.imbalance == 0
            assert sum((shown + device.departed).calls) + sum(device.lost.values()) == sum(device.counts.calls)

    @invariant()
    def no_series_goes_down(self) -> None:
        view = self.view()
        keys = [(usage.owner, usage.device) for usage in view.usage]
        assert len(keys) == len(set(keys))
        if view.retired_early != self.retired_early:
            self.retired_early, self.shown = view.retired_early, {}
        for key, (since, counts) in self.series(view).items():
            old_since, old = self.shown.get(key, (since, ZERO))
            assert since <= old_since
            assert all(new >= old for new, old in zip(counts.calls, old.calls, strict=True))
            assert counts.wait_ns >= old.wait_ns
        self.shown = self.series(view)

    @invariant()
    def nobody_has_calls_of_others(self) -> None:
        """That cells were folded as nobody's stands in the names alone."""
        for key, (_, counts) in self.series(self.view()).items():
            assert self.names_lost or sum(counts.calls) <= self.made[key]

    @staticmethod
    def series(view: View) -> Series:
        """Counters as an exporter shows them: pods of one name are one series; what is unknown is no counter."""
        found: Series = {}
        for usage in view.usage:
            if usage.owner.kind is not OwnerKind.UNKNOWN:
                key = (series_owner(usage.owner), usage.device)
                since, counts = found.get(key, (usage.since, ZERO))
                found[key] = (min(since, usage.since), counts + usage.counts)
        return found


LedgerMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestLedger = LedgerMachine.TestCase
