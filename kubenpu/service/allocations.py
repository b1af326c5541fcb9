# SPDX-License-Identifier: Apache-2.0
"""What the kubelet has given to whom, joined with this node's devices, with the pods' UIDs and with what was used.

Owns the connection to the kubelet, its last answer, and since when each container has not used what it was given. An
answer holds until the next one, or for KEEP_SECONDS while the kubelet is silent. Times are those of its clock, which
nobody may set. Imported where there is a kubelet. For one thread; `known` for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from kubenpu.devices.ids import find_device
from kubenpu.identity.podresources import PodResources
from kubenpu.model.allocation import Allocation, Allocations, Claimed, Listing, container_key
from kubenpu.model.errors import SourceError
from kubenpu.model.identity import OwnerKind
from kubenpu.model.view import Usage, View

KEEP_SECONDS = 300.0
ASK_SECONDS = 2.0
Clock = Callable[[], float]


class Runtime(Protocol):
    """kubenpu.identity.cri.CriClient is one."""

    def uid_of_pod(self, namespace: str, pod: str) -> str | None: ...


class _Use(NamedTuple):
    """`calls`: of each living cgroup of the container, by id of the container."""

    pod_uid: str
    calls: tuple[tuple[str, int], ...]
    idle_since: float


Pod = tuple[str, str]
Place = tuple[str, str]
"""A container's key and the address of a device."""


class Kubelet:
    """`known` None: it has not told yet, or has been silent for too long."""

    def __init__(self, socket: Path, runtimes: Callable[[], Sequence[Runtime]], clock: Clock) -> None:
        self.known: Allocations | None = None
        self._runtimes, self._clock = runtimes, clock
        self._client = PodResources(socket, ASK_SECONDS)
        self._answered = 0.0
        self._uses: dict[Place, _Use] = {}
        self._uids: Mapping[Pod, str | None] = {}
        self._asked: dict[Pod, float] = {}

    def ask(self, view: Callable[[], View]) -> str:
        """What of the answer is left out, "" when nothing is. Raises SourceError when there is none."""
        now = self._clock()
        try:
            listing = self._client.listing()
        except SourceError:
            if now - self._answered > KEEP_SECONDS:
                self.known = None
            raise
        self._answered, seen = now, view()
        uids = self._find_uids(listing.claimed, seen.usage)
        self.known = self._join(listing, seen, uids)
        return listing.left_out

    def close(self) -> None:
        self._client.close()

    def _find_uids(self, claimed: Iterable[Claimed], usage: Iterable[Usage]) -> Mapping[Pod, str | None]:
        """Those that use a device are known by now, of the others the runtimes are asked while there is time: first of
        those that are not known, then of who was not asked about for longest. A pod without an answer is who it was.
        "": there is no such pod; None: it is not known."""
        alive = (each.owner for each in usage if each.alive and each.owner.kind is OwnerKind.POD)
        using = {(owner.namespace, owner.pod): owner.pod_uid for owner in alive}
        pods = dict.fromkeys((each.namespace, each.pod) for each in claimed)
        uids = {pod: using.get(pod) or self._uids.get(pod) for pod in pods}
        self._asked = {pod: at for pod, at in self._asked.items() if pod in pods}
        end = time.monotonic() + ASK_SECONDS
        others = [pod for pod in pods if pod not in using]
        for pod in sorted(others, key=lambda pod: (uids[pod] is not None, self._asked.get(pod, 0.0))):
            if time.monotonic() >= end:
                break
            self._asked[pod] = time.monotonic()
            known = self._ask_uid(pod)
            uids[pod] = uids[pod] if known is None else known
        self._uids = uids
        return uids

    def _ask_uid(self, pod: Pod) -> str | None:
        """ "" when every runtime of pods says that it has no such pod, None when that is not known."""
        answers: list[str | None] = []
        for runtime in self._runtimes():
            try:
                uid = runtime.uid_of_pod(*pod)
            except SourceError:
                answers.append(None)  # it is a source of its own, and says so there
                continue
            if uid:
                return uid
            answers += [] if uid is None else [uid]
        return "" if answers and None not in answers else None

    def _join(self, listing: Listing, view: View, uids: Mapping[Pod, str | None]) -> Allocations:
        """Who is not there holds nothing: some kubelets list pods that are over."""
        counted = {each.device for each in view.device_usage if view.counts(each.hooks)}
        calls = _calls(view.usage)
        found, uses = [], {}
        given: dict[str, tuple[str | None, ...]] = {
            key: (None,) if key in listing.cut else () for key in listing.containers
        }
        for each in listing.claimed:
            device = find_device(each.resource, each.names, view.devices)
            key, uid, idle_since = container_key(*each[:3]), uids[each[:2]], None
            given[key] = (*given[key], device)
            if uid == "":
                continue
            if device in counted:
                whole = container_key(*each[:2], "")  # where the runtime shows no containers in the pod
                made = (*calls.get((key, device), ()), *calls.get((whole, device), ()))
                use = uses[key, device] = self._use((key, device), uid or "", made)
                idle_since = use.idle_since
            found.append(Allocation(*each[:6], device, uid or "", idle_since))
        self._uses = uses
        return Allocations(tuple(found), given)

    def _use(self, place: Place, uid: str, calls: tuple[tuple[str, int], ...]) -> _Use:
        """It is new, or another pod of that name, or made a call since the last look: then it is idle since now."""
        before = self._uses.get(place)
        if before is None or (uid and before.pod_uid not in ("", uid)) or (calls and calls != before.calls):
            return _Use(uid, calls, self._clock())
        return _Use(uid or before.pod_uid, calls, before.idle_since)


def _calls(usage: Iterable[Usage]) -> Mapping[Place, tuple[tuple[str, int], ...]]:
    """Of living containers."""
    found: dict[Place, tuple[tuple[str, int], ...]] = {}
    for each in usage:
        owner = each.owner
        if each.alive and owner.kind is OwnerKind.POD:
            place = (container_key(owner.namespace, owner.pod, owner.container), each.device)
            found[place] = (*found.get(place, ()), (owner.container_id, sum(each.counts.calls)))
    return found
