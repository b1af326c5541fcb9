# SPDX-License-Identifier: Apache-2.0
"""Types of the messages that protoc makes from cri.proto; the test of cri.py compares both."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

class _Message:
    @classmethod
    def FromString(cls, data: bytes) -> Self: ...  # noqa: N802
    def SerializeToString(self) -> bytes: ...  # noqa: N802
    def HasField(self, name: str) -> bool: ...  # noqa: N802

class VersionRequest(_Message):
    def __init__(self) -> None: ...

class VersionResponse(_Message):
    version: str
    runtime_name: str
    runtime_version: str
    def __init__(self, *, version: str = ..., runtime_name: str = ..., runtime_version: str = ...) -> None: ...

class ContainerStatusRequest(_Message):
    container_id: str
    def __init__(self, *, container_id: str = ...) -> None: ...

class ImageSpec(_Message):
    image: str
    user_specified_image: str
    def __init__(self, *, image: str = ..., user_specified_image: str = ...) -> None: ...

class ContainerStatus(_Message):
    id: str
    image: ImageSpec
    labels: Mapping[str, str]
    def __init__(self, *, id: str = ..., image: ImageSpec = ..., labels: Mapping[str, str] = ...) -> None: ...

class ContainerStatusResponse(_Message):
    status: ContainerStatus
    def __init__(self, *, status: ContainerStatus = ...) -> None: ...

class PodSandboxMetadata(_Message):
    name: str
    uid: str
    namespace: str
    def __init__(self, *, name: str = ..., uid: str = ..., namespace: str = ...) -> None: ...

class PodSandboxStateValue(_Message):
    state: int
    def __init__(self, *, state: int = ...) -> None: ...

class PodSandboxFilter(_Message):
    state: PodSandboxStateValue
    label_selector: Mapping[str, str]
    def __init__(self, *, state: PodSandboxStateValue = ..., label_selector: Mapping[str, str] = ...) -> None: ...

class ListPodSandboxRequest(_Message):
    filter: PodSandboxFilter
    def __init__(self, *, filter: PodSandboxFilter = ...) -> None: ...

class PodSandbox(_Message):
    id: str
    metadata: PodSandboxMetadata
    state: int
    created_at: int
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    def __init__(
        self,
        *,
        id: str = ...,
        metadata: PodSandboxMetadata = ...,
        state: int = ...,
        created_at: int = ...,
        labels: Mapping[str, str] = ...,
        annotations: Mapping[str, str] = ...,
    ) -> None: ...

class ListPodSandboxResponse(_Message):
    items: Sequence[PodSandbox]
    def __init__(self, *, items: Iterable[PodSandbox] = ...) -> None: ...

class PodSandboxStatusRequest(_Message):
    pod_sandbox_id: str
    def __init__(self, *, pod_sandbox_id: str = ...) -> None: ...

class PodSandboxStatus(_Message):
    id: str
    metadata: PodSandboxMetadata
    labels: Mapping[str, str]
    def __init__(
        self, *, id: str = ..., metadata: PodSandboxMetadata = ..., labels: Mapping[str, str] = ...
    ) -> None: ...

class PodSandboxStatusResponse(_Message):
    status: PodSandboxStatus
    def __init__(self, *, status: PodSandboxStatus = ...) -> None: ...
