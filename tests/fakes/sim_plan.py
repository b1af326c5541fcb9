# SPDX-License-Identifier: Apache-2.0
"""What the simulated node consists of: devices, pods, one unit of the host, and what each of them does. Data only.

Everything else of the simulated node (sysfs tree, cgroups, container runtime, processes) is made from these tables.
"""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass

from kubenpu.model.kinds import Kind

HOST_UNIT = "sim-batch.service"


@dataclass(frozen=True, slots=True)
class SimNode:
    """One device node, e.g. `renderD128`."""

    name: str
    major: int
    minor: int

    @property
    def kernel_dev(self) -> int:
        return self.major << 20 | self.minor


@dataclass(frozen=True, slots=True)
class SimDevice:
    """A PCI device. `driver` is what its uevent says; no table knows `unlisted`."""

    address: str
    driver: str
    pci_id: str
    numa_node: int
    nodes: tuple[SimNode, ...]


@dataclass(frozen=True, slots=True)
class SimPod:
    """A pod. `cgroup_driver` is systemd or cgroupfs; `qos` guaranteed, burstable or besteffort."""

    namespace: str
    name: str
    qos: str
    cgroup_driver: str
    containers: tuple[str, ...]

    @property
    def uid(self) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{self.name}.{self.namespace}.kubenpu-sim"))

    def container_id(self, container: str) -> str:
        """64 digits; the sandbox is the container ""."""
        return hashlib.sha256(f"{self.uid}/{container}".encode()).hexdigest()

    def cgroup(self, container: str) -> str:
        """The container's cgroup below the simulated node's, as the kubelet and containerd make it."""
        container_id = self.container_id(container)
        classes = [] if self.qos == "guaranteed" else [self.qos]
        if self.cgroup_driver == "cgroupfs":
            return "/".join(["kubepods", *classes, f"pod{self.uid}", container_id])
        names = ["-".join(["kubepods", *classes[:depth]]) for depth in range(len(classes) + 1)]
        names.append(f"{names[-1]}-pod{self.uid.replace('-', '_')}")
        return "/".join([*(f"{name}.slice" for name in names), f"cri-containerd-{container_id}.scope"])


@dataclass(frozen=True, slots=True)
class Step:
    """Calls of one ioctl number in a round: how many, and how many of them fail."""

    nr: int
    kind: Kind
    times: int
    failing: int = 0


@dataclass(frozen=True, slots=True)
class SimWorkload:
    """One process. `pod` None: it belongs to the host unit. `kinds` of its steps are what the driver tables say."""

    pod: SimPod | None
    container: str
    device: SimDevice
    node: SimNode
    calls_per_second: int
    wait_microseconds: int
    steps: tuple[Step, ...]

    @property
    def cgroup(self) -> str:
        return self.pod.cgroup(self.container) if self.pod else f"system.slice/{HOST_UNIT}"

    @property
    def title(self) -> str:
        return f"{self.pod.namespace}/{self.pod.name}/{self.container}" if self.pod else HOST_UNIT


IGPU = SimDevice("0000:00:02.0", "i915", "8086:5917", 0, (SimNode("card0", 226, 0), SimNode("renderD128", 226, 128)))
NPU = SimDevice("0000:00:0b.0", "intel_vpu", "8086:643E", -1, (SimNode("accel0", 261, 0),))
GPU = SimDevice("0000:c1:00.0", "amdgpu", "1002:744C", 1, (SimNode("card1", 226, 1), SimNode("renderD129", 226, 129)))
UNLISTED = SimDevice("0000:65:00.0", "unlisted", "1E52:0014", 1, (SimNode("accel1", 261, 1),))
DEVICES = (IGPU, NPU, GPU, UNLISTED)

DETECTOR = SimPod("vision", "detector-7c9f6d5b8-x2lqp", "burstable", "systemd", ("inference", "preprocess"))
SERVER = SimPod("llm", "chat-server-0", "guaranteed", "systemd", ("server",))
NOTEBOOK = SimPod("research", "notebook-ada", "burstable", "cgroupfs", ("notebook",))
NIGHTLY = SimPod("batch", "nightly-28814400-9kz4t", "besteffort", "systemd", ("train",))
PODS = (DETECTOR, SERVER, NOTEBOOK, NIGHTLY)

_CORE = (Step(0x0C, Kind.OTHER, 1), Step(0x09, Kind.FREE, 1))  # GET_CAP, GEM_CLOSE: answered by the DRM core
_I915 = (
    Step(0x5B, Kind.ALLOC, 2),
    Step(0x64, Kind.MAP, 2),
    Step(0x69, Kind.SUBMIT, 20, failing=1),
    Step(0x6C, Kind.WAIT, 3, failing=1),
    Step(0x6D, Kind.CONTEXT, 1),
    *_CORE,
)
_INTEL_VPU = (
    Step(0x42, Kind.ALLOC, 1),
    Step(0x4D, Kind.SUBMIT, 10),
    Step(0x46, Kind.WAIT, 5, failing=2),
    *_CORE,
)
_AMDGPU = (
    Step(0x40, Kind.ALLOC, 3, failing=1),
    Step(0x48, Kind.MAP, 3),
    Step(0x44, Kind.SUBMIT, 30),
    Step(0x49, Kind.WAIT, 2),
    *_CORE,
)
_NO_TABLE = (Step(0x40, Kind.OTHER, 5), Step(0x45, Kind.OTHER, 5, failing=1), *_CORE)
_CORE_WAIT = Step(0xC3, Kind.WAIT, 2)  # SYNCOBJ_WAIT, the DRM core's too

WORKLOADS = (
    SimWorkload(DETECTOR, "inference", NPU, NPU.nodes[0], 400, 2000, _INTEL_VPU),
    SimWorkload(DETECTOR, "preprocess", IGPU, IGPU.nodes[1], 600, 300, _I915),
    SimWorkload(SERVER, "server", GPU, GPU.nodes[1], 2000, 500, (*_AMDGPU, _CORE_WAIT)),
    SimWorkload(NOTEBOOK, "notebook", IGPU, IGPU.nodes[0], 150, 1000, _I915),
    SimWorkload(NOTEBOOK, "notebook", GPU, GPU.nodes[1], 100, 1000, _AMDGPU),
    SimWorkload(NIGHTLY, "train", UNLISTED, UNLISTED.nodes[0], 800, 200, _NO_TABLE),
    SimWorkload(None, "", IGPU, IGPU.nodes[1], 300, 400, (*_I915, _CORE_WAIT)),
)
