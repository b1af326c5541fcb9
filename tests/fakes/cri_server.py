# SPDX-License-Identifier: Apache-2.0
"""A container runtime that speaks CRI v1 over a real Unix socket, for tests and for trying things by hand.

Owns a gRPC server and the pods it pretends to run; both can be changed while it serves. It can be slow, fail, deny
what it has, never answer, and be restarted on the same socket (grpc_service.py). Stand-alone:

    python -m tests.fakes.cri_server --socket PATH --pods FILE

FILE is JSON: [{"uid", "name", "namespace", "sandbox_id", "containers": {ID: NAME}}]; SIGHUP reads it again.
"""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from tests.fakes import cri_pb2
from tests.fakes.grpc_service import FakeService, Methods

UID_LABEL = "io.kubernetes.pod.uid"


@dataclass
class FakePod:
    """A pod with its sandbox and containers (id -> name). `labels` go on top of those of the kubelet.

    `created_ns`: the sandbox was made. A pod that has had several is several of these.
    """

    uid: str
    name: str
    namespace: str
    sandbox_id: str
    containers: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    image: cri_pb2.ImageSpec = field(default_factory=cri_pb2.ImageSpec)
    ready: bool = True
    created_ns: int = 10**18

    def sandbox_labels(self) -> dict[str, str]:
        return {
            "io.kubernetes.pod.name": self.name,
            "io.kubernetes.pod.namespace": self.namespace,
            UID_LABEL: self.uid,
        } | self.labels

    def metadata(self) -> cri_pb2.PodSandboxMetadata:
        return cri_pb2.PodSandboxMetadata(name=self.name, uid=self.uid, namespace=self.namespace)


class FakeCri(FakeService):
    """The runtime. Set `pods`."""

    def __init__(self, path: Path, pods: Iterable[FakePod] = (), runtime: str = "containerd") -> None:
        methods: Methods = {
            "Version": (self._version, cri_pb2.VersionRequest),
            "ContainerStatus": (self._container_status, cri_pb2.ContainerStatusRequest),
            "PodSandboxStatus": (self._sandbox_status, cri_pb2.PodSandboxStatusRequest),
            "ListPodSandbox": (self._list_sandboxes, cri_pb2.ListPodSandboxRequest),
        }
        super().__init__(path, "runtime.v1.RuntimeService", methods)
        self.pods = list(pods)
        self.runtime = runtime

    def _version(self, _request: cri_pb2.VersionRequest, _context: Any) -> cri_pb2.VersionResponse:
        return cri_pb2.VersionResponse(version="0.1.0", runtime_name=self.runtime, runtime_version="fake")

    def _container_status(self, request: cri_pb2.ContainerStatusRequest, context: Any) -> Any:
        for pod in self.pods:
            for container_id, name in pod.containers.items():
                if container_id.startswith(request.container_id):  # as the real ones do
                    labels = pod.sandbox_labels() | {"io.kubernetes.container.name": name}
                    return cri_pb2.ContainerStatusResponse(
                        status=cri_pb2.ContainerStatus(id=container_id, image=pod.image, labels=labels)
                    )
        return context.abort(grpc.StatusCode.NOT_FOUND, f'container "{request.container_id}": not found')

    def _sandbox_status(self, request: cri_pb2.PodSandboxStatusRequest, context: Any) -> Any:
        for pod in self.pods:
            if pod.sandbox_id.startswith(request.pod_sandbox_id):
                status = cri_pb2.PodSandboxStatus(
                    id=pod.sandbox_id, metadata=pod.metadata(), labels=pod.sandbox_labels()
                )
                return cri_pb2.PodSandboxStatusResponse(status=status)
        return context.abort(grpc.StatusCode.NOT_FOUND, f'sandbox "{request.pod_sandbox_id}": not found')

    def _list_sandboxes(self, request: cri_pb2.ListPodSandboxRequest, _context: Any) -> cri_pb2.ListPodSandboxResponse:
        wanted = dict(request.filter.label_selector)
        return cri_pb2.ListPodSandboxResponse(
            items=[
                cri_pb2.PodSandbox(
                    id=pod.sandbox_id,
                    metadata=pod.metadata(),
                    labels=pod.sandbox_labels(),
                    annotations=pod.annotations,
                    state=0 if pod.ready else 1,
                    created_at=pod.created_ns,
                )
                for pod in self.pods
                if wanted.items() <= pod.sandbox_labels().items()
                and (pod.ready or not request.filter.HasField("state"))
            ]
        )


def load_pods(path: Path) -> list[FakePod]:
    return [FakePod(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


def main() -> None:
    parser = argparse.ArgumentParser(description="a container runtime that only answers questions")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--pods", type=Path, required=True)
    args = parser.parse_args()
    asked = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, asked)
    server = FakeCri(args.socket, load_pods(args.pods))
    server.start()
    print(f"serving {len(server.pods)} pods at {args.socket}", flush=True)
    while signal.sigwait(asked) is signal.SIGHUP:
        server.pods = load_pods(args.pods)
    server.stop()


if __name__ == "__main__":
    main()
