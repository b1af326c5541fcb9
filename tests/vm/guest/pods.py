# SPDX-License-Identifier: Apache-2.0
"""Pods and containers as a kubelet makes them, without a kubelet: CRI v1 spoken to the guest's containerd.

Owns the pods that it started: leaving `pod()` stops and removes the pod, its containers and its cgroup. Labels, names,
cgroup parents and log paths follow the kubelet. Pods use the node's network; each container has its own pid namespace.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from tests.vm.guest import containerd, tally, wait

CGROUP_ROOT = Path("/sys/fs/cgroup")
LOG_ROOT = Path("/var/log/pods")
EXITED = 2
CALL_SECONDS = 120
NAMESPACES = {"network": 2, "pid": 1, "ipc": 0}  # of the node, the container, the pod


class Runtime:
    """A connection to containerd. Messages are plain keyword arguments, named as in cri_client.proto."""

    def __init__(self, socket: Path = containerd.SOCKET) -> None:
        self._channel = grpc.insecure_channel(f"unix://{socket}")
        self._messages = importlib.import_module("tests.vm.guest.cri_client_pb2")  # made by tests/vm/stage.py

    def call(self, method: str, **fields: Any) -> Any:
        request = getattr(self._messages, f"{method}Request")(**fields)
        answer = getattr(self._messages, f"{method}Response")
        rpc = self._channel.unary_unary(
            f"/runtime.v1.RuntimeService/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return rpc(request, timeout=CALL_SECONDS)

    def close(self) -> None:
        self._channel.close()


@dataclass(frozen=True, slots=True)
class Container:
    """A started container. `cgroup` is its path below the cgroup root as the kubelet's rules demand it."""

    runtime: Runtime
    id: str
    name: str
    cgroup: str
    log_path: Path

    def exited(self) -> bool:
        return bool(self._status().state == EXITED)

    def wait(self, seconds: float = 60.0) -> int:
        """Exit code, once it has ended by itself."""
        wait.until(f"the end of container {self.name}", self.exited, seconds)
        return int(self._status().exit_code)

    def stop(self, seconds: int = 30) -> int:
        """SIGTERM, and SIGKILL after `seconds`, as the kubelet does. The exit code."""
        self.runtime.call("StopContainer", container_id=self.id, timeout=seconds)
        return self.wait()

    def kill(self) -> None:
        """SIGKILL to all its processes, past the runtime."""
        pids = self.pids()
        assert pids, f"no process in {self.cgroup}"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.wait()

    def pids(self) -> list[int]:
        return [int(pid) for pid in (CGROUP_ROOT / self.cgroup.lstrip("/") / "cgroup.procs").read_text().split()]

    def output(self) -> list[str]:
        """Whole lines of standard output so far, without the runtime's `time stream tag` before each."""
        if not self.log_path.exists():
            return []
        words = (line.split(" ", 3) for line in self.log_path.read_text().splitlines())
        return [word[3] for word in words if len(word) == 4 and word[1:3] == ["stdout", "F"]]

    def tally(self, seconds: float = 120.0) -> tally.Tally:
        """What the workload counted, as soon as it printed it; it may hold on after that."""
        return tally.parse(wait.until(f"the tally of {self.name}", self.output, seconds)[-1])

    def remove(self) -> None:
        self.runtime.call("RemoveContainer", container_id=self.id)

    def _status(self) -> Any:
        return self.runtime.call("ContainerStatus", container_id=self.id).status


@dataclass(frozen=True, slots=True)
class Pod:
    """A running sandbox. `driver` is systemd or cgroupfs, `qos` guaranteed, burstable or besteffort."""

    runtime: Runtime
    name: str
    namespace: str
    uid: str
    driver: str
    qos: str
    id: str = ""
    names: list[str] = field(default_factory=list)

    @property
    def cgroup(self) -> str:
        """The pod's own cgroup."""
        levels = ["kubepods"] if self.qos == "guaranteed" else ["kubepods", self.qos]
        if self.driver == "cgroupfs":
            return "/" + "/".join((*levels, f"pod{self.uid}"))
        levels.append(f"pod{self.uid.replace('-', '_')}")
        return "".join(f"/{'-'.join(levels[: depth + 1])}.slice" for depth in range(len(levels)))

    def cgroup_of(self, container_id: str) -> str:
        leaf = container_id if self.driver == "cgroupfs" else f"cri-containerd-{container_id}.scope"
        return f"{self.cgroup}/{leaf}"

    @property
    def config(self) -> dict[str, Any]:
        return {
            "metadata": {"name": self.name, "uid": self.uid, "namespace": self.namespace},
            "log_directory": str(LOG_ROOT / f"{self.namespace}_{self.name}_{self.uid}"),
            "labels": self.labels,
            "linux": {
                "cgroup_parent": self.cgroup if self.driver == "cgroupfs" else self.cgroup.rpartition("/")[2],
                "security_context": {"namespace_options": NAMESPACES},
            },
        }

    @property
    def labels(self) -> dict[str, str]:
        return {
            "io.kubernetes.pod.name": self.name,
            "io.kubernetes.pod.namespace": self.namespace,
            "io.kubernetes.pod.uid": self.uid,
        }

    def run(
        self,
        name: str,
        args: Sequence[str],
        *,
        devices: Sequence[str] = (),
        command: Sequence[str] = ("/bin/workload",),
        mounts: Sequence[tuple[Path, str]] = (),
        shared: Sequence[str] = (),
        subgroup: str = "",
    ) -> Container:
        """Create and start a container. `devices` keep their paths; `mounts` are (path here, path inside), writable;
        `shared` are paths that are inside what they are here, to be read.

        `subgroup`: a cgroup below the systemd scope, that only crun makes (of itself it makes `container`).
        """
        attempt = self.names.count(name)
        self.names.append(name)
        config = {
            "metadata": {"name": name, "attempt": attempt},
            "image": {"image": containerd.IMAGE},
            "command": command,
            "args": args,
            "devices": [{"container_path": path, "host_path": path, "permissions": "rwm"} for path in devices],
            "mounts": [
                *({"host_path": str(here), "container_path": inside} for here, inside in mounts),
                *({"host_path": path, "container_path": path, "readonly": True} for path in shared),
            ],
            "labels": {**self.labels, "io.kubernetes.container.name": name},
            "annotations": {containerd.CRUN_SUBGROUP: subgroup},
            "log_path": f"{name}/{attempt}.log",
            "linux": {"security_context": {"namespace_options": NAMESPACES}},
        }
        created = self.runtime.call(
            "CreateContainer", pod_sandbox_id=self.id, config=config, sandbox_config=self.config
        ).container_id
        self.runtime.call("StartContainer", container_id=created)
        log_path = Path(self.config["log_directory"], name, f"{attempt}.log")
        cgroup = f"{self.cgroup_of(created)}/{subgroup}".rstrip("/")
        return Container(self.runtime, created, name, cgroup, log_path)


@contextmanager
def pod(
    runtime: Runtime,
    name: str,
    *,
    namespace: str = "default",
    uid: str | None = None,
    driver: str = "systemd",
    qos: str = "burstable",
    oci: str = "crun",
) -> Iterator[Pod]:
    """A pod for the length of the block; whatever still runs in it is killed at the end.

    `oci` is crun or runc: they put containers into the same cgroups, and crun takes half the time.
    """
    planned = Pod(runtime, name, namespace, uid or str(uuid.uuid4()), driver, qos)
    Path(planned.config["log_directory"]).mkdir(parents=True)
    answer = runtime.call("RunPodSandbox", config=planned.config, runtime_handler=f"{oci}-{driver}")
    started = Pod(runtime, planned.name, planned.namespace, planned.uid, driver, qos, answer.pod_sandbox_id)
    try:
        yield started
    finally:
        runtime.call("StopPodSandbox", pod_sandbox_id=started.id)
        runtime.call("RemovePodSandbox", pod_sandbox_id=started.id)
        _remove_cgroup(started)


def _remove_cgroup(gone: Pod) -> None:
    """The kubelet removes the pod's own cgroup; the runtime leaves it."""
    if gone.driver == "systemd":
        subprocess.run(["systemctl", "stop", gone.cgroup.rpartition("/")[2]], check=True)
    else:
        (CGROUP_ROOT / gone.cgroup.lstrip("/")).rmdir()
