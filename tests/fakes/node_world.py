# SPDX-License-Identifier: Apache-2.0
"""What is around one kubenpu.service.node.Node: pins, container runtimes, a cgroup tree and a clock, none of them real.

A World lives below one directory. Cells and records are what a test puts in; what the node did is kept for it to look
at. The fixture that uses it puts the parts in the place of the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubenpu.config.settings import Settings, parse_daemon_arguments, read_settings
from kubenpu.kernel.pins import Pins, write_state
from kubenpu.model.errors import KernelError
from kubenpu.model.identity import Owner, OwnerKind, Resolution
from kubenpu.model.sample import (
    ZERO,
    Cell,
    CellMerge,
    CgroupRecord,
    Counts,
    DeviceRule,
    DeviceTotals,
    HookStatus,
    KernelSample,
    NodeRule,
)
from kubenpu.model.view import View
from kubenpu.service.node import Node

UID, ID = "11111111-2222-3333-4444-555555555555", "a" * 64
POD_PATH = f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{ID}.scope"
POD = Owner(OwnerKind.POD, "ml", "train-0", "worker", UID, ID)
CLAIM = Owner(OwnerKind.UNKNOWN, pod_uid=UID, container_id=ID)
CONFIRMED, DENIED = Resolution(POD, True, "confirmed"), Resolution(CLAIM, False, "not known yet")
GIVEN_UP = Resolution(CLAIM, True, "not known for long")
FENTRY = HookStatus("drm_ioctl", "fentry", "", 10**9)
FIRST_CELL = 128


@dataclass
class FakeBell:
    silenced: int = 0

    def silence(self) -> bool:
        self.silenced += 1
        return True


class FakeStore:
    """Pinned maps: the cells and records that a test puts in, and what the node did with them."""

    def __init__(self, directory: Path) -> None:
        if not Pins(directory).map("cells").exists():
            raise KernelError("no counters are pinned", "Start kubenpu-probe")
        self._pins = Pins(directory)
        self.bell = FakeBell()
        self.closed, self.recovered, self.failing = False, False, ""
        self.cells: list[Cell] = []
        self.records: dict[int, CgroupRecord] = {}
        self.addresses: dict[int, str] = {}
        self.rules: list[DeviceRule] = []
        self.node_rules: list[NodeRule] = []
        self.merges: list[CellMerge] = []
        self.forgotten: list[int] = []
        self.searches, self.slots_max, self.taken_ns = 0, 8192, 0

    def recover(self) -> None:
        self.recovered = True

    def close(self) -> None:
        self.closed = True

    def slots(self) -> dict[int, str]:
        assert not self.closed
        return dict(self.addresses)

    def assign_slot(self, address: str) -> int | None:
        self.addresses |= {len(self.addresses): address} if address not in self.addresses.values() else {}
        return next(slot for slot, known in self.addresses.items() if known == address)

    def write_rules(self, rules: Iterable[DeviceRule]) -> list[DeviceRule]:
        self.rules = list(rules)
        return []

    def write_nodes(self, rules: Iterable[NodeRule]) -> list[NodeRule]:
        self.node_rules = list(rules)
        return []

    def slot_hooks(self) -> dict[int, tuple[str, ...]]:
        return {}

    def read(self) -> KernelSample:
        assert not self.closed
        if self.failing:
            raise KernelError(self.failing)
        counted = {c.cgroup_id for c in self.cells}
        totals = {0: DeviceTotals(0, sum((c.counts for c in self.cells), ZERO), {"slots_full": 0})}
        records = {i: r for i, r in self.records.items() if i in counted}
        return KernelSample(self.taken_ns, tuple(self.cells), records, totals, totals, {}, len(self.cells), 64)

    def read_cgroup(self, cgroup_id: int) -> CgroupRecord | None:
        return self.records.get(cgroup_id)

    def hook_attached(self, hook: str) -> bool:
        return all(self._pins.link(hook, side).exists() for side in ("enter", "exit"))

    def merge(self, merge: CellMerge) -> None:
        self.merges.append(merge)
        self.cells = [c for c in self.cells if c.index != merge.source]

    def reopen_search(self) -> None:
        self.searches += 1

    def forget_cgroups(self, cgroup_ids: Iterable[int]) -> None:
        self.forgotten += cgroup_ids
        self.records = {i: r for i, r in self.records.items() if i not in self.forgotten}

    def recorded_cgroups(self) -> set[int]:
        return set(self.records)


@dataclass
class FakeRuntime:
    name: str = "/run/a.sock"
    trouble: str = ""

    def uid_of_pod(self, namespace: str, pod: str) -> str | None:
        return "u7" if (namespace, pod) == ("ml", "train-0") else None


@dataclass
class FakeResolver:
    """`answer` says what every path is; `asked` keeps the questions, `options` what it was made with."""

    answer: Callable[[str], Resolution | None] = lambda _path: DENIED
    asked: list[dict[str, int]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def resolve_many(self, attempts: Mapping[str, int], _deadline_s: float) -> dict[str, Resolution]:
        self.asked.append(dict(attempts))
        answers = {path: self.answer(path) for path in attempts}
        return {path: answer for path, answer in answers.items() if answer is not None}


class World:
    """Everything around one Node. `now` is the boot clock; nodes come from start()."""

    def __init__(self, place: Path) -> None:
        self.place, self.now = place, 1000.0
        self.pins = Pins(place / "pins")
        self.mount = place / "cgroup"
        self.resolver, self.runtime = FakeResolver(), FakeRuntime()
        self.stores: list[FakeStore] = []
        self.nodes: list[Node] = []
        self.mount.mkdir()
        self.settings = self._settings()
        self.load_probe()

    def _settings(self) -> Settings:
        config = self.place / "kubenpu.toml"
        names = {"run_directory": "run", "kernel.pin_directory": "pins", "devices.sysfs": "sys"}
        names |= {"devices.drivers_directory": "drivers.d", "identity.kubelet_socket": "kubelet.sock"}
        config.write_text("".join(f'{key} = "{self.place / name}"\n' for key, name in names.items()))
        return read_settings(parse_daemon_arguments(["--config.file", str(config)]))

    def load_probe(self, hook: HookStatus = FENTRY) -> None:
        """What kubenpu-probe load leaves behind; the pins are new ones."""
        self.pins.make()
        for path in (self.pins.map("cells"), *(self.pins.link("drm_ioctl", side) for side in ("enter", "exit"))):
            fresh = path.with_name("fresh")
            fresh.touch()
            fresh.replace(path)
        write_state(self.settings.run_directory, (hook,), None)

    def make_resolver(self, *_runtimes: object, **options: Any) -> FakeResolver:
        self.resolver.options = options
        return self.resolver

    def open_store(self, directory: Path) -> FakeStore:
        self.stores.append(FakeStore(directory))
        return self.stores[-1]

    def clients(self) -> Sequence[FakeRuntime]:
        return [self.runtime]

    def close(self) -> None:
        """The container runtimes of the node."""

    def start(self) -> Node:
        self.nodes.append(Node(self.settings, self.mount))
        return self.nodes[-1]

    @property
    def store(self) -> FakeStore:
        return self.stores[-1]

    def cgroup(self, path: str = POD_PATH) -> int:
        directory = self.mount / path[1:]
        directory.mkdir(parents=True)
        return directory.stat().st_ino

    def work(self, cgroup_id: int, path: str | None = POD_PATH, calls: int = 3, truncated: bool = False) -> Cell:
        """The kernel counts for a cgroup; `path` None: it had no room for the name."""
        cell = Cell(FIRST_CELL + len(self.store.cells), cgroup_id, 0, 10**9, Counts((calls,) * 7, (0,) * 7, 0))
        self.store.cells.append(cell)
        if path is not None:
            self.store.records[cgroup_id] = CgroupRecord(cgroup_id, path, truncated, 10**9)
        return cell


def owners(view: View) -> list[Owner]:
    return [usage.owner for usage in view.usage]


def source(node: Node, name: str) -> tuple[bool, str]:
    """Whether a source is up, and why not."""
    (found,) = (s for s in node.view().sources if s.source == name)
    return found.up, found.reason
