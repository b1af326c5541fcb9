# SPDX-License-Identifier: Apache-2.0
"""Whose work it is: what a cgroup path says, and what a container runtime confirmed."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class PathKind(enum.Enum):
    """What sort of place a cgroup path is; the value is the `kind` of `kubenpuctl whois --json`."""

    POD_CONTAINER = "pod-container"
    POD_SANDBOX_LEVEL = "pod-sandbox-level"
    CONMON = "conmon"
    PLAIN_CONTAINER = "plain-container"
    SYSTEMD_UNIT = "systemd-unit"
    USER_SESSION = "user-session"
    ROOT = "root"
    OTHER = "other"


class HostKind(enum.Enum):
    """What work outside pods is. UNIT: a service or scope of systemd; OTHER: the root, slices, monitor processes."""

    CONTAINER = "container"
    MACHINE = "machine"
    JOB = "job"
    SESSION = "session"
    UNIT = "unit"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class PathIdentity:
    """What the text of one cgroup path says. A claim, not a proof: a workload may name its own sub-cgroups.

    `driver` is `systemd`, `cgroupfs` or None; `runtime` only what the path itself shows; `pod_uid` in the spelling of
    the API (dashes) unless it never had them; `container_id` the outermost container; `qos` guaranteed, burstable or
    besteffort; `unit` the name that work outside pods is accounted to, `host_kind` what that is; in pods both are None.
    """

    path: str
    kind: PathKind
    driver: str | None = None
    runtime: str | None = None
    pod_uid: str | None = None
    container_id: str | None = None
    qos: str | None = None
    unit: str | None = None
    host_kind: HostKind | None = None


class OwnerKind(enum.Enum):
    """How sure the answer is. POD: a runtime confirmed it. HOST: outside pods. UNKNOWN: a pod path nobody confirmed."""

    POD = "pod"
    HOST = "host"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom work is accounted to; equal owners are one series.

    POD: namespace, pod, pod_uid and container are set (container "" when the whole pod is one cgroup).
    HOST: unit is set, with a container container_id too. UNKNOWN: pod_uid and container_id are what the path claims;
    names are empty. `image` is a container's as its runtime names it, "" where that is not known.
    """

    kind: OwnerKind
    namespace: str = ""
    pod: str = ""
    container: str = ""
    pod_uid: str = ""
    container_id: str = ""
    unit: str = ""
    host_kind: HostKind | None = None
    image: str = ""


@dataclass(frozen=True, slots=True)
class Resolution:
    """Answer of the resolver for one cgroup. `reason` says how it was decided.

    `final` False: ask again later; an UNKNOWN is final for who is gone only. `silent`: not all who may know gave an
    answer, so that the question does not count.
    """

    owner: Owner
    final: bool
    reason: str
    silent: bool = False
