# SPDX-License-Identifier: Apache-2.0
"""What the text of a cgroup path says about whose work runs there.

Owns the grammar of cgroup paths: pods under both kubelet drivers, containers of every runtime, systemd units, user
sessions. Its data is the path alone, as the kernel or /proc/PID/cgroup spells it. It refuses to guess: it does no
I/O, raises for no text whatever, and what it returns is a claim until a container runtime confirms it
(kubenpu.identity.resolve), because a workload may give its own sub-cgroups any name.

Everything is read from the root. The first pod segment is the pod, the container directly below it the container;
outside pods the first container, job, service or session names the work. What is deeper the workload made itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from typing import NamedTuple

from kubenpu.identity.jobs import find_job
from kubenpu.model.identity import HostKind, PathIdentity, PathKind

NAME_MAX = 255
"""Longest name of one cgroup; a longer segment is no cgroup, and never reaches the expressions below."""

CONMON_UNIT = "conmon"
"""What monitor processes are accounted to, wherever their cgroup is."""

_DELETED = " (deleted)"
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BARE_ID = re.compile(r"[0-9a-f]{64}")
_LEAF = re.compile(r"(?P<form>[a-z]+(?:-[a-z]+)?)[-_](?P<id>[0-9a-f]{64})(?P<scope>\.scope)?")
_MIXED = re.compile(r"[^:]+\.slice:(?P<form>[a-z-]+):(?P<id>[0-9a-f]{64})")
_POD_SLICE = re.compile(
    r"(?:[^:]*-)?kubepods(?:-(?P<qos>burstable|besteffort))?-pod(?P<uid>[0-9A-Za-z][0-9A-Za-z_.-]*)\.slice(?::.*)?"
)
_POD_DIRECTORY = re.compile(r"pod(?P<uid>[0-9A-Za-z][0-9A-Za-z_.-]*)")
_KUBEPODS_SLICE = re.compile(r"(?:.*-)?kubepods(?:-(?P<qos>burstable|besteffort))?\.slice")
_SESSION = re.compile(r"session-.+\.scope|user@[0-9]+\.service")
_APPTAINER = re.compile(r"apptainer-[0-9]+\.scope")
_KEEPER = re.compile(
    r"(?:kubelet|containerd|crio|docker|cri-docker|k3s(?:-.+)?|rke2-.+|k0s.+|snap\.(?:microk8s|k8s)\..+)\.service"
)
"""Services that have pods below them: the kubelet, and runtimes that are not told where to put containers."""
_PLACES_MAX = 4
"""How many sessions and services, one below the other, are looked at; nobody nests more that keep pods."""
_MACHINES = ("machine.slice", "qemu.slice")
_QOS = ("burstable", "besteffort")


@dataclass(frozen=True, slots=True)
class _Form:
    """What a container-like name means, by its prefix: who made it, its kind below a pod and outside pods."""

    runtime: str | None
    in_pod: PathKind
    outside: PathKind


_FORMS: Mapping[str, _Form] = {
    "cri-containerd": _Form("containerd", PathKind.POD_CONTAINER, PathKind.OTHER),
    "crio": _Form("crio", PathKind.POD_CONTAINER, PathKind.OTHER),
    "docker": _Form("docker", PathKind.POD_CONTAINER, PathKind.PLAIN_CONTAINER),
    "libpod": _Form("podman", PathKind.POD_CONTAINER, PathKind.PLAIN_CONTAINER),
    "libpod-payload": _Form("podman", PathKind.POD_CONTAINER, PathKind.PLAIN_CONTAINER),
    "nerdctl": _Form("containerd", PathKind.POD_CONTAINER, PathKind.PLAIN_CONTAINER),
    "runsc": _Form(None, PathKind.POD_CONTAINER, PathKind.PLAIN_CONTAINER),
    "kata": _Form("kata", PathKind.POD_SANDBOX_LEVEL, PathKind.OTHER),
    "crio-conmon": _Form("crio", PathKind.CONMON, PathKind.CONMON),
    "libpod-conmon": _Form("podman", PathKind.CONMON, PathKind.CONMON),
}

_BARE_FORMS: Mapping[str, _Form] = {
    "docker": _FORMS["docker"],
    "actions_job": _FORMS["docker"],
    "k8s.io": _FORMS["cri-containerd"],
    "vc": _FORMS["kata"],
    "kata_overhead": _FORMS["kata"],
    "..": _Form(None, PathKind.POD_CONTAINER, PathKind.OTHER),
}
"""Bare 64-digit names by the directory they are in; elsewhere the runtime does not show."""

_BARE_ELSEWHERE = _Form(None, PathKind.POD_CONTAINER, PathKind.PLAIN_CONTAINER)

_NAMED_CONTAINERS: Mapping[str, tuple[str | None, str | None]] = {
    "docker": ("docker", "cgroupfs"),
    "default": ("containerd", "cgroupfs"),
    "apptainer": (None, "cgroupfs"),
    "lxc": (None, None),
}
"""Top directories whose children are containers without a 64-digit id (of lxc machines): runtime and driver."""

_REASONS: Mapping[PathKind, str] = {
    PathKind.POD_CONTAINER: "first pod segment from the root, and the container directly below it",
    PathKind.POD_SANDBOX_LEVEL: "first pod segment from the root, with no container of its own below it",
    PathKind.CONMON: "monitor process of a container, not a workload",
    PathKind.PLAIN_CONTAINER: "outermost container, below no pod segment",
    PathKind.SYSTEMD_UNIT: "outermost systemd unit, below no pod segment",
    PathKind.USER_SESSION: "below user.slice: all of it belongs to that user's session or manager",
    PathKind.ROOT: "root cgroup: kernel threads and processes that no unit owns",
    PathKind.OTHER: "no pod, and no container or unit form that is known for certain",
}
_JOB_REASON = "job of a batch system, by the id in the path"


@dataclass(frozen=True, slots=True)
class _Container:
    id: str
    word: str
    form: _Form
    systemd: bool


@dataclass(frozen=True, slots=True)
class _Pod:
    uid: str
    qos: str | None
    systemd: bool


class _Place(NamedTuple):
    """The outermost name that work outside pods is accounted to; `depth`: how many segments it takes to tell."""

    unit: str
    host_kind: HostKind
    depth: int


def parse_path(path: str) -> PathIdentity:
    """Say what one cgroup path claims. Takes any text, in time linear in its length.

    Outside pods `unit` is the name the work is accounted to: the service or scope, `session-2.scope` or
    `user@1000.service` for everything of a user, `docker-<12 digits>` for a container, `slurm:123` for a job, `/` for
    the root, and the nearest slice or top directory (`/podruntime`) where there is nothing better. It is the outermost
    such name, so nothing that a workload creates below itself changes it.
    """
    segments = _split(path)
    if not segments:
        return PathIdentity(path, PathKind.ROOT, unit="/", host_kind=HostKind.OTHER)
    found = _first_pod(segments)
    return _in_pod(path, segments, *found) if found else _outside_pods(path, segments)


def explain(identity: PathIdentity) -> str:
    """How parse_path came to its answer, in plain words."""
    return _JOB_REASON if identity.host_kind is HostKind.JOB else _REASONS[identity.kind]


def maker(path: str, nested_node: bool = False) -> PathIdentity | None:
    """Who other than the kubelet may have made the cgroup that names the pod (or the CRI container) of this path.

    Whoever has a cgroup to manage (a container, a machine, a job, a user's service manager, a service with Delegate=)
    can create a directory with any name below it. None: only slices, plain directories, root's sessions and services
    that keep pods are above, so the name can be asked about. `nested_node`: the outermost container is this node.
    """
    segments = _split(path)
    found = _first_pod(segments)
    index = found[0] if found else next((i for i, pair in enumerate(pairwise(["", *segments])) if _container(*pair)), 0)
    above = segments[:index]
    for _ in range(_PLACES_MAX):
        if not above:
            return None
        place = _place(above)
        is_node = nested_node and place.host_kind in (HostKind.CONTAINER, HostKind.MACHINE)
        if not is_node and not _trusted(place, above):
            break
        nested_node, above = nested_node and not is_node, above[place.depth :]
    return parse_path("/" + "/".join(segments[:index]))


def _trusted(place: _Place, segments: Sequence[str]) -> bool:
    """Whether pods may be below this place, unless there is another one between."""
    match place.host_kind:
        case HostKind.OTHER:
            return True
        case HostKind.SESSION:
            return segments[1:2] == ["user-0.slice"]
        case HostKind.UNIT:
            return len(place.unit) <= NAME_MAX and _KEEPER.fullmatch(place.unit) is not None
    return False


def uid_key(uid: str) -> str:
    """A pod UID in the spelling used for comparing: path and API differ in separators only."""
    return uid.replace("-", "").replace("_", "")


def _split(path: str) -> list[str]:
    return [segment for segment in path.removesuffix(_DELETED).split("/") if segment]


def _first_pod(segments: Sequence[str]) -> tuple[int, _Pod] | None:
    grandparent = parent = ""
    for index, segment in enumerate(segments):
        if (pod := _pod(grandparent, parent, segment)) is not None:
            return index, pod
        grandparent, parent = parent, segment
    return None


def _pod(grandparent: str, parent: str, segment: str) -> _Pod | None:
    if len(segment) > NAME_MAX:
        return None
    if match := _POD_SLICE.fullmatch(segment):
        # The kubelet writes every "-" of a UID as "_" here; some older systems kept it.
        return _Pod(match["uid"].replace("_", "-"), match["qos"] or "guaranteed", systemd=True)
    if match := _POD_DIRECTORY.fullmatch(segment):
        if parent == "kubepods":
            return _Pod(match["uid"], "guaranteed", systemd=False)
        if parent in _QOS and grandparent == "kubepods":
            return _Pod(match["uid"], parent, systemd=False)
        if parent == "docker" and _UUID.fullmatch(match["uid"]):
            return _Pod(match["uid"], None, systemd=False)
    return None


def _container(parent: str, segment: str) -> _Container | None:
    if len(segment) > NAME_MAX:
        return None
    if match := _LEAF.fullmatch(segment):
        return _prefixed(match["form"], match["id"], systemd=match["scope"] is not None)
    if match := _MIXED.fullmatch(segment):
        return _prefixed(match["form"], match["id"], systemd=True)
    if parent != "libpod_parent" and _BARE_ID.fullmatch(segment):
        form = _BARE_FORMS.get(parent, _BARE_ELSEWHERE)
        return _Container(segment, form.runtime or "container", form, systemd=False)
    return None


def _prefixed(prefix: str, container_id: str, systemd: bool) -> _Container | None:
    form = _FORMS.get(prefix)
    return _Container(container_id, form.runtime or prefix, form, systemd) if form else None


def _in_pod(path: str, segments: Sequence[str], index: int, pod: _Pod) -> PathIdentity:
    mixed = ":" in segments[index]
    below = segments[index : index + 1] if mixed else segments[index + 1 : index + 2]
    container = _container(segments[index], below[0]) if below else None
    driver = "systemd" if pod.systemd else "cgroupfs"
    if container is None:
        return PathIdentity(path, PathKind.POD_SANDBOX_LEVEL, driver, pod_uid=pod.uid, qos=pod.qos)
    kind = container.form.in_pod
    runtime = container.form.runtime
    if pod.systemd and container.word == "crio" and not container.systemd and kind is PathKind.POD_CONTAINER:
        kind = PathKind.POD_SANDBOX_LEVEL  # CRI-O's cgroup of the sandbox itself: systemd driver, yet no .scope
    if pod.qos is None:
        runtime = runtime or "docker"
    return PathIdentity(path, kind, driver, runtime, pod.uid, container.id, pod.qos)


def _outside_pods(path: str, segments: Sequence[str]) -> PathIdentity:
    place = _place(segments)
    unit, host_kind = place.unit, place.host_kind

    def identity(
        kind: PathKind, driver: str | None = None, runtime: str | None = None, container_id: str | None = None
    ) -> PathIdentity:
        return PathIdentity(path, kind, driver, runtime, container_id=container_id, unit=unit, host_kind=host_kind)

    found = [
        (at, container) for at, pair in enumerate(pairwise(["", *segments]), 1) if (container := _container(*pair))
    ]
    if found and place.host_kind is HostKind.CONTAINER and found[0][0] != place.depth:
        found = []  # what a container that is known by a name has made below itself
    if found:
        outer, leaf = found[0][1], found[-1][1]
        return identity(outer.form.outside, "systemd" if leaf.systemd else "cgroupfs", outer.form.runtime, outer.id)
    if segments[:2] == ["libpod_parent", "conmon"]:
        return identity(PathKind.CONMON, "cgroupfs", "podman")
    if any(segment.startswith("lxc.monitor.") for segment in segments):
        return identity(PathKind.CONMON)
    if (named := _named_container(segments)) is not None:
        runtime, driver = named
        return identity(PathKind.PLAIN_CONTAINER, driver, runtime)
    if segments[0] == "user.slice":
        return identity(PathKind.USER_SESSION)
    if _is_systemd_unit(segments):
        return identity(PathKind.SYSTEMD_UNIT)
    top_driver, qos = _kubelet_level(segments)
    return replace(identity(PathKind.OTHER, top_driver), qos=qos)


def _named_container(segments: Sequence[str]) -> tuple[str | None, str | None] | None:
    if len(segments) > 1 and segments[0] in _NAMED_CONTAINERS:
        return _NAMED_CONTAINERS[segments[0]]
    if any(segment.startswith(("systemd-nspawn@", "lxc.payload.")) for segment in segments):
        return None, None
    if any(len(segment) <= NAME_MAX and _APPTAINER.fullmatch(segment) for segment in segments):
        return None, "systemd"
    return None


def _is_systemd_unit(segments: Sequence[str]) -> bool:
    slices = list(takewhile(_is_slice, segments))
    below = segments[len(slices) :]
    if not slices:
        return segments == ["init.scope"]
    if slices == ["system.slice"] and len(below) == 1 and below[0].endswith(".scope"):
        return True
    return bool(below) and below[0].endswith(".service")


def _kubelet_level(segments: Sequence[str]) -> tuple[str | None, str | None]:
    """Driver and QoS of a cgroup the kubelet keeps above its pods."""
    last = segments[-1]
    if len(last) <= NAME_MAX and (match := _KUBEPODS_SLICE.fullmatch(last)):
        return "systemd", match["qos"]
    if last == "kubepods":
        return "cgroupfs", None
    if last in _QOS and segments[-2:-1] == ["kubepods"]:
        return "cgroupfs", last
    return None, None


def _place(segments: Sequence[str]) -> _Place:
    if segments[0] == "user.slice":
        owner = (*segments, "")[2] if len(segments) > 1 else ""
        named = len(owner) <= NAME_MAX and _SESSION.fullmatch(owner) is not None
        return _Place(owner if named else segments[:2][-1], HostKind.SESSION, 3)
    if job := find_job(segments):
        return _Place(job[0], HostKind.JOB, job[1])
    for depth, (parent, segment) in enumerate(pairwise(["", *segments]), start=1):
        if found := _name(segments, parent, segment):
            return _Place(*found, depth)
    if segments[:2] == ["libpod_parent", "conmon"]:
        return _Place(CONMON_UNIT, HostKind.OTHER, 2)
    slices = list(takewhile(_is_slice, segments))
    unit = slices[-1] if slices else next((f"/{segment}" for segment in segments if segment != ".."), "/")
    return _Place(unit, HostKind.OTHER, len(segments))


def _name(segments: Sequence[str], parent: str, segment: str) -> tuple[str, HostKind] | None:
    """What work is called by this segment, None when it is only a place for others."""
    container = _container(parent, segment)
    if (container and container.form.outside is PathKind.CONMON) or segment.startswith("lxc.monitor."):
        return CONMON_UNIT, HostKind.OTHER
    if container:
        return f"{container.word}-{container.id[:12]}", HostKind.CONTAINER
    is_machine = segments[0] in _MACHINES and parent != "" and not _is_slice(segment)
    if is_machine or segment.startswith("lxc.payload."):
        return segment, HostKind.MACHINE
    if segment.endswith((".service", ".scope")):
        if len(segment) <= NAME_MAX and _APPTAINER.fullmatch(segment):
            return segment, HostKind.CONTAINER
        return segment, HostKind.MACHINE if segment.startswith("systemd-nspawn@") else HostKind.UNIT
    if parent == segments[0] and parent in _NAMED_CONTAINERS and not _BARE_ID.fullmatch(segment):
        kind = HostKind.MACHINE if parent == "lxc" else HostKind.CONTAINER
        return f"{_NAMED_CONTAINERS[parent][0] or parent}-{segment}", kind
    return None


def _is_slice(segment: str) -> bool:
    return segment.endswith(".slice")
