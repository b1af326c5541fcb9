# SPDX-License-Identifier: Apache-2.0
"""A machine for kubenpu-probe: a kernel that takes every load, pins that are plain files, settings of its own."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path

from kubenpu.kernel.attach import LoadRequest
from kubenpu.kernel.hooks import SHARED_MAPS, Hook
from kubenpu.kernel.pins import Pins
from kubenpu.kernel.support import KernelFacts
from kubenpu.model.errors import KernelError
from kubenpu.model.sample import HookStatus
from kubenpu.service import probe
from tests.fakes.node_world import FakeStore
from tests.unit.test_kernel_support import GOOD

KPROBE = HookStatus("drm_ioctl", "kprobe", "fentry: drm has no BTF", 77)


def alone(arguments: list[str]) -> int:
    """As a process of its own: nobody has set up logging."""
    handlers, level = logging.root.handlers, logging.root.level
    logging.root.handlers = []
    try:
        return probe.main(arguments)
    finally:
        logging.root.handlers = handlers
        logging.root.setLevel(level)


@dataclass
class Machine:
    """A kernel that takes every load; `facts` and `drm_module` are what the probe finds, `settings` more text of the
    file."""

    place: Path
    facts: KernelFacts = GOOD
    drm_module: int | None = 4711
    requests: list[LoadRequest] = field(default_factory=list)
    stores: list[FakeStore] = field(default_factory=list)
    devices_known: list[int] = field(default_factory=list)  # rules written by each store when the hook was attached
    detached: list[str] = field(default_factory=list)
    refuse: KernelError | None = None
    iterators: list[Path] = field(default_factory=list)
    refuse_iterator: KernelError | None = None
    settings: str = ""

    @property
    def run_directory(self) -> Path:
        return self.place / "run"

    @property
    def pins(self) -> Pins:
        return Pins(self.place / "pins")

    def probe(self, *arguments: str) -> int:
        config = self.place / "kubenpu.toml"
        names = {"run_directory": "run", "kernel.pin_directory": "pins", "devices.sysfs": "sys"}
        names["devices.drivers_directory"] = "drivers.d"
        config.write_text(self.settings + "".join(f'{key} = "{self.place / name}"\n' for key, name in names.items()))
        return alone(["--config.file", str(config), *arguments])

    def load(self, request: LoadRequest, _facts: KernelFacts, _messages: object) -> HookStatus:
        self.requests.append(request)
        if self.refuse is not None:
            raise self.refuse
        self.pin_counters(request)
        for side in request.hook.required:
            request.pins.link(request.hook.name, side).touch()
        self.devices_known = [len(store.rules) for store in self.stores]
        return replace(KPROBE, hook=request.hook.name, since_ns=request.since_ns, loader=request.loader)

    def make_maps(self, request: LoadRequest, _facts: KernelFacts, _messages: object) -> None:
        self.pin_counters(request)

    def pin_counters(self, request: LoadRequest) -> None:
        request.pins.make()
        for name in (*SHARED_MAPS, *request.hook.maps):
            request.pins.map(name).touch()

    def open_store(self, directory: Path) -> FakeStore:
        self.stores.append(FakeStore(directory))
        return self.stores[-1]

    def pin_iterator(self, pins: Pins, object_path: Path, _messages: object) -> None:
        if self.refuse_iterator is not None:
            raise self.refuse_iterator
        assert pins == self.pins
        assert self.requests, "first what counts"
        self.iterators.append(object_path)

    def detach(self, _pins: Pins, hook: Hook) -> None:
        self.detached.append(hook.name)
