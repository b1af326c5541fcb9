# SPDX-License-Identifier: Apache-2.0
"""What is around kubenpu-clients: a procfs, a sysfs and a cgroup tree made of files, and holders that a test names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kubenpu.config.settings import Settings, parse_daemon_arguments, read_settings
from kubenpu.kernel.pins import Pins
from kubenpu.ledger.clients_file import NAME, read_clients
from kubenpu.model.clients import ClientSample
from kubenpu.model.errors import SourceError
from kubenpu.model.fdinfo import Holder
from kubenpu.service.clients import Clients
from tests.fakes.sim_plan import SimDevice, SimNode
from tests.fakes.sim_sysfs import write_sysfs

GPU, NPU = "0000:03:00.0", "0000:00:0b.0"
DEVICES = (
    SimDevice(GPU, "amdgpu", "1002:7550", 0, (SimNode("card1", 226, 1), SimNode("renderD128", 226, 128))),
    SimDevice(NPU, "intel_vpu", "8086:7D1D", 0, (SimNode("accel0", 261, 0),)),
)
RENDER, ACCEL = (226, 128), (261, 0)
BOOT_ID = "b0b0"
INO = 12


@dataclass
class Machine:
    """`holders` is what the kernel lists."""

    place: Path
    holders: list[Holder] = field(default_factory=list)
    trouble: SourceError | None = None
    asked: int = 0

    def __post_init__(self) -> None:
        self.proc, self.mount, self.run = self.place / "proc", self.place / "cgroup", self.place / "run"
        (self.proc / "sys/kernel/random").mkdir(parents=True)
        (self.proc / "sys/kernel/random/boot_id").write_text(f"{BOOT_ID}\n")
        self.mount.mkdir()
        self.run.mkdir()
        write_sysfs(self.place / "sys", DEVICES)
        self.set_power(GPU, "active")

    def settings(self) -> Settings:
        config = self.place / "kubenpu.toml"
        names = {"run_directory": "run", "kernel.pin_directory": "pins", "devices.sysfs": "sys"}
        config.write_text("".join(f'{key} = "{self.place / name}"\n' for key, name in names.items()))
        return read_settings(parse_daemon_arguments(["--config.file", str(config)]))

    def list_holders(self, pins: Pins) -> Iterator[Holder]:
        assert pins.directory == self.place / "pins"
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        yield from self.holders

    def set_power(self, address: str, status: str) -> None:
        power = self.place / "sys/devices/pci0000:00" / address / "power"
        power.mkdir(exist_ok=True)
        (power / "runtime_status").write_text(f"{status}\n")
        (power / "runtime_suspended_time").write_text("17\n")

    def cgroup(self, path: str) -> int:
        directory = self.mount / path[1:]
        directory.mkdir(parents=True, exist_ok=True)
        return directory.stat().st_ino

    def hold(self, pid: int, path: str, file: int, node: tuple[int, int] = RENDER, fd: int = 3) -> Holder:
        holder = Holder(file, self.cgroup(path), pid, INO, *node, pid, pid, fd)
        task = self.proc / f"{pid}/task/{pid}"
        (task / "fdinfo").mkdir(parents=True, exist_ok=True)
        (task / "cgroup").write_bytes(b"1:name=x:/old\n0::" + os.fsencode(path) + b"\n")
        self.holders.append(holder)
        return holder

    def tell(self, holder: Holder, client_id: int, gfx: int, vram_kib: int = 0) -> None:
        self.fdinfo(holder).write_text(
            f"pos:\t0\nino:\t{INO}\ndrm-driver:\tamdgpu\ndrm-client-id:\t{client_id}\n"
            f"drm-engine-gfx:\t{gfx} ns\ndrm-memory-vram:\t{vram_kib} KiB\n"
        )

    def fdinfo(self, holder: Holder) -> Path:
        return self.proc / f"{holder.tgid}/task/{holder.pid}/fdinfo/{holder.fd}"

    def start(self) -> Clients:
        return Clients(self.settings(), self.mount, self.proc)

    def sample(self) -> ClientSample:
        found = read_clients(self.run / NAME, BOOT_ID)
        assert found is not None
        return found

    def gfx(self) -> dict[str, int | None]:
        return {use.path: use.engine_ns.get("gfx") for use in self.sample().uses}
