# SPDX-License-Identifier: Apache-2.0
"""Types of the messages that protoc makes from podresources.proto; the test of podresources.py compares both."""

from collections.abc import Iterable, Sequence
from typing import Self

class _Message:
    @classmethod
    def FromString(cls, data: bytes) -> Self: ...  # noqa: N802
    def SerializeToString(self) -> bytes: ...  # noqa: N802

class ListPodResourcesRequest(_Message):
    def __init__(self) -> None: ...

class ListPodResourcesResponse(_Message):
    pod_resources: Sequence[PodResources]
    def __init__(self, *, pod_resources: Iterable[PodResources] = ...) -> None: ...

class PodResources(_Message):
    name: str
    namespace: str
    containers: Sequence[ContainerResources]
    def __init__(
        self, *, name: str = ..., namespace: str = ..., containers: Iterable[ContainerResources] = ...
    ) -> None: ...

class ContainerResources(_Message):
    name: str
    devices: Sequence[ContainerDevices]
    cpu_ids: Sequence[int]
    dynamic_resources: Sequence[DynamicResource]
    def __init__(
        self,
        *,
        name: str = ...,
        devices: Iterable[ContainerDevices] = ...,
        cpu_ids: Iterable[int] = ...,
        dynamic_resources: Iterable[DynamicResource] = ...,
    ) -> None: ...

class ContainerDevices(_Message):
    resource_name: str
    device_ids: Sequence[str]
    topology: TopologyInfo
    def __init__(
        self, *, resource_name: str = ..., device_ids: Iterable[str] = ..., topology: TopologyInfo = ...
    ) -> None: ...

class TopologyInfo(_Message):
    nodes: Sequence[NUMANode]
    def __init__(self, *, nodes: Iterable[NUMANode] = ...) -> None: ...

class NUMANode(_Message):
    ID: int
    def __init__(self, *, ID: int = ...) -> None: ...  # noqa: N803

class DynamicResource(_Message):
    claim_name: str
    claim_namespace: str
    claim_resources: Sequence[ClaimResource]
    def __init__(
        self, *, claim_name: str = ..., claim_namespace: str = ..., claim_resources: Iterable[ClaimResource] = ...
    ) -> None: ...

class ClaimResource(_Message):
    cdi_devices: Sequence[CDIDevice]
    driver_name: str
    pool_name: str
    device_name: str
    def __init__(
        self,
        *,
        cdi_devices: Iterable[CDIDevice] = ...,
        driver_name: str = ...,
        pool_name: str = ...,
        device_name: str = ...,
    ) -> None: ...

class CDIDevice(_Message):
    name: str
    def __init__(self, *, name: str = ...) -> None: ...
