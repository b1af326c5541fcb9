# SPDX-License-Identifier: Apache-2.0
"""Container runtimes over CRI v1: which container or pod an id belongs to.

Owns one gRPC channel per runtime socket for as long as the process lives (or until close()), and the back-off while a
runtime is down. Its data are the answers of containerd, CRI-O and cri-dockerd. It refuses to ask for verbose
information (that has the environment of containers in it), to subscribe to events (a slow subscriber holds the
runtime up) and to send anything but full ids. Calls block, each for at most its deadline: use a thread of your own.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import quote

import grpc

from kubenpu.identity import cri_pb2
from kubenpu.identity.names import CONTAINER_MAX, NAMESPACE_MAX, POD_MAX, clean_name
from kubenpu.model.errors import SourceError

KNOWN_SOCKETS = tuple(
    map(
        Path,
        (
            "/run/containerd/containerd.sock",
            "/run/crio/crio.sock",
            "/run/cri-dockerd.sock",
            "/run/k3s/containerd/containerd.sock",
            "/run/k0s/containerd.sock",
            "/var/snap/microk8s/common/run/containerd.sock",
        ),
    )
)
"""Where distributions put the CRI socket. /var/run is /run."""

CALL_TIMEOUT_S = 2.0
BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 30.0
SEARCH_EVERY_S = 30.0

POD_NAME_LABEL = "io.kubernetes.pod.name"
POD_NAMESPACE_LABEL = "io.kubernetes.pod.namespace"
POD_UID_LABEL = "io.kubernetes.pod.uid"
CONTAINER_NAME_LABEL = "io.kubernetes.container.name"

_SANDBOX_CONTAINER_NAME = "POD"
_SERVICE = "/runtime.v1.RuntimeService/"
_OPTIONS = (
    # The default would be the percent-encoded socket path, which strict servers refuse.
    ("grpc.default_authority", "localhost"),
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # A restarted runtime is found again after its own start-up time, not after gRPC's two minutes. The minimum is also
    # how long a connection may take to be set up.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 2000),
)
_ABSENT_TEXTS = ("no such container", "not found", "could not find")


@dataclass(frozen=True, slots=True)
class RuntimeVersion:
    """Who answers on a socket: `containerd`, `cri-o`, `docker`, and its version."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """A pod as a runtime knows it. Names are cleaned; `pod_uid` is the API's spelling."""

    id: str
    namespace: str
    pod: str
    pod_uid: str


@dataclass(frozen=True, slots=True)
class ContainerInfo:
    """A container as a runtime knows it, from the labels the kubelet sets. `name` "" is the sandbox's own container."""

    id: str
    name: str
    namespace: str
    pod: str
    pod_uid: str


class _Request(Protocol):
    def SerializeToString(self) -> bytes: ...  # noqa: N802


_Answer = TypeVar("_Answer")
_Method = Callable[[_Request, float], _Answer]
Clock = Callable[[], float]


class CriClient:
    """One runtime. Every method raises SourceError when the runtime gives no answer in time.

    `trouble` is why the last call that reached out got no answer, "" after one that did.
    """

    def __init__(self, socket: Path, timeout_s: float = CALL_TIMEOUT_S, clock: Clock = time.monotonic) -> None:
        self.socket = socket
        self.trouble = ""
        self._timeout_s = timeout_s
        self._clock = clock
        self._channel = grpc.insecure_channel(f"unix:{quote(str(socket.absolute()))}", options=_OPTIONS)
        self._failures = 0
        self._asleep_until = 0.0
        self._version = self._method("Version", cri_pb2.VersionResponse.FromString)
        self._container = self._method("ContainerStatus", cri_pb2.ContainerStatusResponse.FromString)
        self._sandbox = self._method("PodSandboxStatus", cri_pb2.PodSandboxStatusResponse.FromString)
        self._sandboxes = self._method("ListPodSandbox", cri_pb2.ListPodSandboxResponse.FromString)

    @property
    def name(self) -> str:
        return str(self.socket)

    def version(self, timeout_s: float | None = None) -> RuntimeVersion:
        answer = self._call(self._version, cri_pb2.VersionRequest(), timeout_s)
        if answer is None:
            raise SourceError(
                f"{self.socket} does not speak CRI v1",
                "name the socket that the kubelet uses, or switch on the CRI plug-in of the runtime",
            )
        return RuntimeVersion(clean_name(answer.runtime_name, 63), clean_name(answer.runtime_version, 63))

    def container(self, container_id: str, timeout_s: float | None = None) -> ContainerInfo | None:
        """The container with this full id; None when this runtime has none (not yet, no longer, or it is a sandbox)."""
        request = cri_pb2.ContainerStatusRequest(container_id=container_id)
        answer = self._call(self._container, request, timeout_s)
        if answer is None or answer.status.id != container_id:
            return None
        labels = answer.status.labels
        name = labels.get(CONTAINER_NAME_LABEL, "")
        return ContainerInfo(
            id=container_id,
            name="" if name == _SANDBOX_CONTAINER_NAME else clean_name(name, CONTAINER_MAX),
            namespace=clean_name(labels.get(POD_NAMESPACE_LABEL, ""), NAMESPACE_MAX),
            pod=clean_name(labels.get(POD_NAME_LABEL, ""), POD_MAX),
            pod_uid=clean_name(labels.get(POD_UID_LABEL, ""), POD_MAX),
        )

    def sandbox(self, sandbox_id: str, timeout_s: float | None = None) -> SandboxInfo | None:
        """The pod sandbox with this full id, None when this runtime has none."""
        request = cri_pb2.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id)
        answer = self._call(self._sandbox, request, timeout_s)
        if answer is None or answer.status.id != sandbox_id:
            return None
        return _to_sandbox(sandbox_id, answer.status.labels, answer.status.metadata)

    def sandbox_of_pod(self, pod_uid: str, timeout_s: float | None = None) -> SandboxInfo | None:
        """A sandbox of the pod with this UID (all its sandboxes have the same names), None when there is none."""
        selector = cri_pb2.PodSandboxFilter(label_selector={POD_UID_LABEL: pod_uid})
        answer = self._call(self._sandboxes, cri_pb2.ListPodSandboxRequest(filter=selector), timeout_s)
        items = answer.items if answer is not None else ()
        found = (_to_sandbox(item.id, item.labels, item.metadata) for item in items)
        return next((sandbox for sandbox in found if sandbox.pod_uid == pod_uid), None)

    def close(self) -> None:
        self._channel.close()

    def _method(self, name: str, decode: Callable[[bytes], _Answer]) -> _Method[_Answer]:
        call = self._channel.unary_unary(_SERVICE + name, request_serializer=_serialize, response_deserializer=decode)

        def ask(request: _Request, timeout_s: float) -> _Answer:
            answer: _Answer = call(request, timeout=timeout_s)
            return answer

        return ask

    def _call(self, method: _Method[_Answer], request: _Request, timeout_s: float | None) -> _Answer | None:
        """The answer, or None when the runtime says that it has no such thing (or no such method)."""
        wait_s = self._asleep_until - self._clock()
        if wait_s > 0:
            raise SourceError(f"{self.socket} gave no answer lately and is asked again in {wait_s:.1f} s")
        try:
            answer = method(request, self._timeout_s if timeout_s is None else min(timeout_s, self._timeout_s))
        except grpc.RpcError as error:
            code, text = error.code(), clean_name(error.details() or "", 200)
            if _says_absent(code, text):
                self._answered()
                return None
            raise self._failed(code, text) from error
        self._answered()
        return answer

    def _answered(self) -> None:
        self._failures = 0
        self.trouble = ""

    def _failed(self, code: grpc.StatusCode, text: str) -> SourceError:
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            self._failures += 1
            self._asleep_until = self._clock() + backoff_s(self._failures)
        self.trouble = f"the container runtime at {self.socket} gave no usable answer ({code.name}: {text})"
        return SourceError(self.trouble, "check that the runtime is active and that this process may open its socket")


class Runtimes:
    """The CRI clients of this node: the sockets named by the operator, else those that exist of the known ones.

    New sockets are looked for at most every SEARCH_EVERY_S; a client stays once it is there, so a runtime that is
    being restarted counts as down, never as gone.
    """

    def __init__(
        self,
        explicit: Sequence[Path] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        clock: Clock = time.monotonic,
        known: Sequence[Path] = KNOWN_SOCKETS,
    ) -> None:
        self._explicit = explicit
        self._timeout_s = timeout_s
        self._clock = clock
        self._known = known
        self._clients: dict[Path, CriClient] = {}
        self._search_at = 0.0

    def clients(self) -> Sequence[CriClient]:
        now = self._clock()
        if now >= self._search_at:
            self._search_at = now + SEARCH_EVERY_S
            for socket in find_sockets(self._explicit, self._known):
                if socket not in self._clients:
                    self._clients[socket] = CriClient(socket, self._timeout_s, self._clock)
        return tuple(self._clients.values())

    def follow(self, explicit: Sequence[Path] | None) -> None:
        """Other sockets from now on."""
        self.close()
        self._explicit = explicit

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        self._search_at = 0.0


def find_sockets(explicit: Sequence[Path] | None, known: Sequence[Path] = KNOWN_SOCKETS) -> list[Path]:
    """The sockets to ask: exactly the explicit ones if there are any, else every known path that is a socket now.

    Two paths to one socket (a symbolic link) count once, under the first name.
    """
    if explicit:
        return list(explicit)
    found: dict[tuple[int, int], Path] = {}
    for path in known:
        try:
            status = path.stat()
        except OSError:
            continue  # not there, or in a directory that this process may not look into
        if stat.S_ISSOCK(status.st_mode):
            found.setdefault((status.st_dev, status.st_ino), path)
    return list(found.values())


def backoff_s(failures: int) -> float:
    """How long a runtime is left alone after so many failures in a row (at least one)."""
    doublings = min(failures - 1, 16)
    return float(min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2**doublings))


def _serialize(request: _Request) -> bytes:
    return request.SerializeToString()


def _says_absent(code: grpc.StatusCode, text: str) -> bool:
    """Whether an error means "I have no such thing": UNIMPLEMENTED is a runtime without CRI, so it has no pods."""
    if code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED):
        return True
    # cri-dockerd and older CRI-O pass plain errors on.
    return code is grpc.StatusCode.UNKNOWN and any(phrase in text.lower() for phrase in _ABSENT_TEXTS)


def _to_sandbox(sandbox_id: str, labels: Mapping[str, str], metadata: cri_pb2.PodSandboxMetadata) -> SandboxInfo:
    return SandboxInfo(
        id=sandbox_id,
        namespace=clean_name(labels.get(POD_NAMESPACE_LABEL) or metadata.namespace, NAMESPACE_MAX),
        pod=clean_name(labels.get(POD_NAME_LABEL) or metadata.name, POD_MAX),
        pod_uid=clean_name(labels.get(POD_UID_LABEL) or metadata.uid, POD_MAX),
    )
