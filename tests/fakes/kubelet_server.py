# SPDX-License-Identifier: Apache-2.0
"""A kubelet that speaks pod-resources v1 over a real Unix socket. Its pods can be changed while it serves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fakes import podresources_pb2 as pb2
from tests.fakes.grpc_service import FakeService


@dataclass
class FakeHolder:
    """A container: ids by resource of device plugins, and DRA devices as claim, driver, pool, device, CDI names.

    `claim` is `NAMESPACE/NAME`. It comes with processors and NUMA nodes, which nobody asks about.
    """

    namespace: str
    pod: str
    container: str
    devices: dict[str, list[str]] = field(default_factory=dict)
    claims: list[tuple[str, str, str, str, list[str]]] = field(default_factory=list)

    def message(self) -> pb2.ContainerResources:
        topology = pb2.TopologyInfo(nodes=[pb2.NUMANode(ID=0), pb2.NUMANode(ID=1)])
        return pb2.ContainerResources(
            name=self.container,
            devices=[
                pb2.ContainerDevices(resource_name=name, device_ids=ids, topology=topology)
                for name, ids in self.devices.items()
            ],
            cpu_ids=range(8),
            dynamic_resources=[
                pb2.DynamicResource(
                    claim_namespace=claim.partition("/")[0],
                    claim_name=claim.partition("/")[2],
                    claim_resources=[
                        pb2.ClaimResource(
                            cdi_devices=[pb2.CDIDevice(name=name) for name in cdi],
                            driver_name=driver,
                            pool_name=pool,
                            device_name=device,
                        )
                    ],
                )
                for claim, driver, pool, device, cdi in self.claims
            ],
        )


class FakeKubelet(FakeService):
    """Set `holders`; those of one pod follow each other. `answer`, when set, is sent as it is."""

    def __init__(self, path: Path, holders: Iterable[FakeHolder] = ()) -> None:
        super().__init__(path, "v1.PodResourcesLister", {"List": (self._list, pb2.ListPodResourcesRequest)})
        self.holders = list(holders)
        self.answer: bytes | None = None

    def _list(self, _request: pb2.ListPodResourcesRequest, _context: Any) -> Any:
        if self.answer is not None:
            return _Raw(self.answer)
        pods: dict[tuple[str, str], list[pb2.ContainerResources]] = {}
        for each in self.holders:
            pods.setdefault((each.namespace, each.pod), []).append(each.message())
        return pb2.ListPodResourcesResponse(
            pod_resources=[
                pb2.PodResources(namespace=namespace, name=name, containers=containers)
                for (namespace, name), containers in pods.items()
            ]
        )


@dataclass
class _Raw:
    data: bytes

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        return self.data
