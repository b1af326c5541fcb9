# SPDX-License-Identifier: Apache-2.0
"""Container runtimes over CRI v1: which container or pod an id belongs to.

Owns one gRPC channel per runtime socket for as long as the process lives (or until close()), and the back-off while a
runtime is down. Its data are the answers of containerd, CRI-O and cri-dockerd. It refuses to ask for verbose
information (that has the environment of containers in it), to subscribe to events (a slow subscriber holds the
runtime up) and to send anything but full ids. Calls block, each for at most its deadline: use a thread of your own.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc

from kubenpu.identity.names import CONTAINER_MAX, IMAGE_MAX, LABEL_MAX, NAMESPACE_MAX, POD_MAX, clean_name
from kubenpu.identity.wire import (
    Message,
    nested,
    read_message,
    read_numbers,
    read_text,
    text_map,
    write_bytes,
    write_text,
)
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
_READY = 0  # the state; what is not ready is 1
_SERVICE = "/runtime.v1.RuntimeService/"
CHANNEL_OPTIONS = (
    # The default would be the percent-encoded socket path, which strict servers refuse.
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # A restarted runtime is found again after its own start-up time, not after gRPC's two minutes. The minimum is also
    # how long a connection may take to be set up.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 2000),
)
LARGEST_ANSWER = ("grpc.max_receive_message_length", 16 * 1024 * 1024)
_ABSENT_TEXTS = (
    "no such container",
    "not found",
    "could not find",
    # cri-dockerd of what is docker's, but no pod's
    "failed to parse the container name",
    "failed to parse the sandbox name",
    "not managed by kubernetes",
)


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
    """A container as a runtime knows it, from the labels the kubelet sets. `name` "" is the sandbox's own container.

    `image` as the pod names it, else as the runtime does.
    """

    id: str
    name: str
    namespace: str
    pod: str
    pod_uid: str
    image: str = ""


_Found = TypeVar("_Found")
_Method = Callable[[bytes, float], Message]
Clock = Callable[[], float]


class CriClient:
    """One runtime. Every method raises SourceError when the runtime gives no answer in time.

    `trouble` is why nobody listens, or why the last call that reached out got no answer; "" after one that did.
    """

    def __init__(self, socket_path: Path, timeout_s: float = CALL_TIMEOUT_S, clock: Clock = time.monotonic) -> None:
        self.socket = socket_path
        self._deaf = self._failure = ""
        self._timeout_s = timeout_s
        self._clock = clock
        self._channel = grpc.insecure_channel(grpc_target(socket_path), options=(*CHANNEL_OPTIONS, LARGEST_ANSWER))
        self._failures = 0
        self._asleep_until = 0.0
        self._version = self._method("Version")
        self._container = self._method("ContainerStatus")
        self._sandbox = self._method("PodSandboxStatus")
        self._sandboxes = self._method("ListPodSandbox")

    @property
    def name(self) -> str:
        return str(self.socket)

    @property
    def trouble(self) -> str:
        return self._deaf or self._failure

    def look(self) -> None:
        """Whether somebody listens, for when there is nothing to ask: no call is made, and nothing is waited for."""
        self._deaf = ""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.setblocking(False)
                connection.connect(os.fspath(self.socket))
        except BlockingIOError:  # somebody does, and has much to do
            return
        except OSError as error:
            self._deaf = f"nobody listens at {self.socket}: {error.strerror or error}"

    def version(self, timeout_s: float | None = None) -> RuntimeVersion:
        found = self._call(self._version, b"", _to_version, timeout_s)
        if found is None:
            raise SourceError(
                f"{self.socket} does not speak CRI v1",
                "Name the socket that the kubelet uses, or switch on the CRI plug-in of the runtime",
            )
        return found

    def container(self, container_id: str, timeout_s: float | None = None) -> ContainerInfo | None:
        """The container with this full id; None when this runtime has none (not yet, no longer, or it is a sandbox)."""
        found = self._call(self._container, write_text(1, container_id), _to_container, timeout_s)
        return found if found is not None and found.id == container_id else None

    def sandbox(self, sandbox_id: str, timeout_s: float | None = None) -> SandboxInfo | None:
        """The pod sandbox with this full id, None when this runtime has none."""
        found = self._call(self._sandbox, write_text(1, sandbox_id), lambda m: _to_sandbox(nested(m, 1), 7), timeout_s)
        return found if found is not None and found.id == sandbox_id else None

    def sandbox_of_pod(self, pod_uid: str, timeout_s: float | None = None) -> SandboxInfo | None:
        """The sandbox of the pod with this UID, None when there is none."""
        found = self._call(self._sandboxes, _of_pod(pod_uid), _to_sandboxes, timeout_s)
        return next((sandbox for sandbox in found or () if sandbox.pod_uid == pod_uid), None)

    def uid_of_pod(self, namespace: str, pod: str) -> str | None:
        """The UID of the pod that has this name now: of the newest sandbox that is ready. "" when there is none, None
        when this is a runtime without CRI, of which that says nothing."""
        request = _with_labels({POD_NAMESPACE_LABEL: namespace, POD_NAME_LABEL: pod}, write_bytes(2, b""))
        found = self._call(self._sandboxes, request, _to_sandboxes, None)
        if found is None:
            return None
        return next((each.pod_uid for each in found if (each.namespace, each.pod) == (namespace, pod)), "")

    def pod_labels(self, pod_uid: str, keys: Sequence[str], timeout_s: float | None = None) -> dict[str, str] | None:
        """Labels and annotations with these keys of a pod, a label before an annotation; None: it has no such pod."""
        found = self._call(self._sandboxes, _of_pod(pod_uid), lambda m: _to_labels(m, pod_uid, keys), timeout_s)
        return next(iter(found or ()), None)

    def close(self) -> None:
        self._channel.close()

    def _method(self, name: str) -> _Method:
        call = self._channel.unary_unary(_SERVICE + name, response_deserializer=read_message)

        def ask(request: bytes, timeout_s: float) -> Message:
            answer: Message = call(request, timeout=timeout_s)
            return answer

        return ask

    def _call(
        self, method: _Method, request: bytes, read: Callable[[Message], _Found], timeout_s: float | None
    ) -> _Found | None:
        """What `read` makes of the answer, None when the runtime says that it has no such thing (or no such method)."""
        wait_s = self._asleep_until - self._clock()
        if wait_s > 0:
            raise SourceError(f"{self.socket} gave no answer lately and is asked again in {wait_s:.1f} s")
        try:
            found = read(method(request, self._timeout_s if timeout_s is None else min(timeout_s, self._timeout_s)))
        except grpc.RpcError as error:
            code, text = error.code(), clean_name(error.details() or "", 200)
            if _says_absent(code, text):
                self._answered()
                return None
            raise self._failed(code, text) from error
        except ValueError as error:
            raise self._failed(grpc.StatusCode.INTERNAL, str(error)) from error
        self._answered()
        return found

    def _answered(self) -> None:
        self._failures = 0
        self._deaf = self._failure = ""

    def _failed(self, code: grpc.StatusCode, text: str) -> SourceError:
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            self._failures += 1
            self._asleep_until = self._clock() + backoff_s(self._failures)
        self._failure = f"the container runtime at {self.socket} gave no usable answer ({code.name}: {text})"
        return SourceError(self._failure, "Check that the runtime is active and that this process may open its socket")


class Runtimes:
    """The CRI clients of this node: the sockets named by the operator, else those that exist of the known ones.

    Every SEARCH_EVERY_S at most, new sockets are looked for, and whether the others still have a listener; a client
    stays once it is there, so a runtime that is being restarted counts as down, never as gone.
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
            for path in find_sockets(self._explicit, self._known):
                if path not in self._clients:
                    self._clients[path] = CriClient(path, self._timeout_s, self._clock)
            for client in self._clients.values():
                client.look()
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


def grpc_target(socket: Path) -> str:
    """A socket as gRPC names it: percent-encoded, as it is a URI. urllib.parse would be 0.4 MiB (Python 3.13)."""
    path = os.fsencode(socket.absolute())
    return "unix:" + re.sub(rb"[^A-Za-z0-9/._~-]", lambda odd: b"%%%02X" % ord(odd[0]), path).decode()


def backoff_s(failures: int) -> float:
    """How long a runtime is left alone after so many failures in a row (at least one)."""
    doublings = min(failures - 1, 16)
    return float(min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2**doublings))


def _says_absent(code: grpc.StatusCode, text: str) -> bool:
    """Whether an error means "I have no such thing": UNIMPLEMENTED is a runtime without CRI, so it has no pods."""
    if code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED):
        return True
    # cri-dockerd and older CRI-O pass plain errors on.
    return code is grpc.StatusCode.UNKNOWN and any(phrase in text.lower() for phrase in _ABSENT_TEXTS)


def _to_version(answer: Message) -> RuntimeVersion:
    return RuntimeVersion(clean_name(read_text(answer, 2), 63), clean_name(read_text(answer, 3), 63))


def _to_container(answer: Message) -> ContainerInfo:
    status = nested(answer, 1)
    labels, image = text_map(status, 12), nested(status, 8)
    name = labels.get(CONTAINER_NAME_LABEL, "")
    return ContainerInfo(
        id=read_text(status, 1),
        name="" if name == _SANDBOX_CONTAINER_NAME else clean_name(name, CONTAINER_MAX),
        namespace=clean_name(labels.get(POD_NAMESPACE_LABEL, ""), NAMESPACE_MAX),
        pod=clean_name(labels.get(POD_NAME_LABEL, ""), POD_MAX),
        pod_uid=clean_name(labels.get(POD_UID_LABEL, ""), POD_MAX),
        image=clean_name(read_text(image, 18) or read_text(image, 1), IMAGE_MAX),
    )


def _of_pod(uid: str) -> bytes:
    """A request for the sandboxes of one pod."""
    return _with_labels({POD_UID_LABEL: uid})


def _with_labels(labels: Mapping[str, str], state: bytes = b"") -> bytes:
    """A request for the sandboxes with all of these."""
    pairs = (write_bytes(3, write_text(1, key) + write_text(2, value)) for key, value in labels.items())
    return write_bytes(1, state + b"".join(pairs))


def _to_sandboxes(answer: Message) -> list[SandboxInfo]:
    return [_to_sandbox(sandbox, 5) for sandbox in _listed(answer)]


def _listed(answer: Message) -> list[Message]:
    """The sandboxes in it; of several that a pod has had, the one that is ready comes first, then the newest."""
    return [read_message(sandbox) for sandbox in sorted(answer.get(1, ()), key=_age)]


def _age(sandbox: bytes) -> tuple[int, int]:
    numbers = read_numbers(sandbox)
    return numbers.get(3, _READY), -numbers.get(4, 0)


def _to_sandbox(sandbox: Message, labels: int) -> SandboxInfo:
    """PodSandbox and PodSandboxStatus are alike but for the number of their labels."""
    known, metadata = text_map(sandbox, labels), nested(sandbox, 2)
    return SandboxInfo(
        id=read_text(sandbox, 1),
        namespace=clean_name(known.get(POD_NAMESPACE_LABEL) or read_text(metadata, 3), NAMESPACE_MAX),
        pod=clean_name(known.get(POD_NAME_LABEL) or read_text(metadata, 1), POD_MAX),
        pod_uid=clean_name(known.get(POD_UID_LABEL) or read_text(metadata, 2), POD_MAX),
    )


def _to_labels(answer: Message, pod_uid: str, keys: Sequence[str]) -> list[dict[str, str]]:
    """Of every sandbox of the pod, in their order: each has the labels that the pod had when it was made."""
    labels = [(text_map(sandbox, 5), text_map(sandbox, 6)) for sandbox in _listed(answer)]
    return [
        {key: clean_name(own.get(key) or notes[key], LABEL_MAX) for key in keys if own.get(key) or notes.get(key)}
        for own, notes in labels
        if own.get(POD_UID_LABEL) == pod_uid
    ]
