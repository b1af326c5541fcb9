# SPDX-License-Identifier: Apache-2.0
"""From a cgroup path to the owner of the work: what the path claims, confirmed by a container runtime.

Owns the rule of who is believed, the retry schedule and a bounded memory of confirmed pods. Its data are the path, as
the kernel captured it, and the runtimes' answers. It refuses to name a pod that no runtime confirmed, to look past
the first pod segment, and to ask about a path below a container or a user's session: whoever works there may create
cgroups with any name. Blocking; one thread calls it.

How sure an answer is:

* POD: a runtime knows the container id (or, for pods that are one cgroup, the sandbox) and its label
  io.kubernetes.pod.uid is the UID in the path. `container` is "" when the work is the pod's as a whole: the sandbox,
  gVisor, Kata, or a container that was removed before the first question while its pod was still known.
* HOST: the path is outside pods; `unit` is as kubenpu.identity.cgroup.parse_path says, cleaned, or the name of the
  plain container if its engine's state has it. That state is there before the container runs, so it is asked once;
  again, for GIVE_UP_S, when some of it could not be read. So are the runtimes about containers of docker, which are
  pods of cri-dockerd's where the kubelet makes no pod cgroups.
* UNKNOWN: nobody confirmed it. Final, for a cgroup that is gone, when all runtimes have denied it for GIVE_UP_S, or one
  has contradicted the path and no other confirmed it for as long. CRI-O denies a container that it is still creating,
  so one denial means little; and the runtime that knows it may come later. A question that a runtime did not answer
  does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from kubenpu.identity.cgroup import CONMON_UNIT, explain, maker, parse_path, uid_key
from kubenpu.identity.cri import Clock, ContainerInfo, SandboxInfo
from kubenpu.identity.names import UNIT_MAX, clean_name
from kubenpu.model.errors import SourceError
from kubenpu.model.identity import HostKind, Owner, OwnerKind, PathIdentity, PathKind, Resolution

if TYPE_CHECKING:
    from kubenpu.identity.containers import PlainContainer

RETRY_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
GIVE_UP_S = sum(RETRY_S)
"""After this long (120.5 s) of nothing but denials an unknown container stays unknown if it is gone."""

LATER_S = 300.0
"""How long to wait from then on."""

SILENCE_S = 15.0
"""How long to wait when a runtime did not answer."""

REMEMBERED_PODS = 4096
_CRI_RUNTIMES = ("containerd", "crio")
"""Their containers outside pods are those of a kubelet without pod cgroups, even if nobody knows them."""

_SHORTEST_CALL_S = 0.02


class Runtime(Protocol):
    """What the resolver asks; kubenpu.identity.cri.CriClient is one. Methods raise SourceError without an answer."""

    @property
    def name(self) -> str: ...
    def container(self, container_id: str, timeout_s: float | None = None) -> ContainerInfo | None: ...
    def sandbox(self, sandbox_id: str, timeout_s: float | None = None) -> SandboxInfo | None: ...
    def sandbox_of_pod(self, pod_uid: str, timeout_s: float | None = None) -> SandboxInfo | None: ...


def next_retry_s(attempt: int, silent: bool = False) -> float:
    """How long to wait after attempt number `attempt` (the first is 0) before asking about the same path again."""
    if silent:
        return SILENCE_S
    return RETRY_S[attempt] if attempt < len(RETRY_S) else LATER_S


class Resolver:
    """Resolves paths with the runtimes that `runtimes` returns at that moment.

    `nested_node`: this process sees a cgroup namespace below the host's root (kind, k3d), so pods of this node lie
    below a container of the host. `find_container` knows the names of plain containers.
    """

    def __init__(
        self,
        runtimes: Callable[[], Sequence[Runtime]],
        nested_node: bool = False,
        clock: Clock = time.monotonic,
        find_container: Callable[[PathIdentity], PlainContainer | None] = lambda _claim: None,
    ) -> None:
        self._runtimes = runtimes
        self._find_container = find_container
        self._nested_node = nested_node
        self._clock = clock
        self._pods: dict[str, SandboxInfo] = {}

    def resolve(self, path: str, attempt: int = 0, deadline_s: float = float("inf")) -> Resolution:
        """Say whose work runs at `path`; `attempt` counts the earlier questions that were answered, see next_retry_s.

        Takes at most `deadline_s`; a runtime that had no time left to answer counts as one that did not.
        """
        claim = parse_path(path)
        if not _worth_asking(claim):
            return self._host(claim, explain(claim), attempt)
        above = maker(path, self._nested_node)
        if above is not None:
            return self._host(above, "who works above the first pod segment can give cgroups any name", attempt)
        return self._ask(claim, attempt, self._clock() + deadline_s)

    def resolve_many(self, attempts: Mapping[str, int], deadline_s: float) -> dict[str, Resolution]:
        """Resolve paths (with the number of earlier answers) for at most `deadline_s`, never-answered ones first.

        A path that is missing in the answer was not reached; ask again with the same number.
        """
        end = self._clock() + deadline_s
        answers: dict[str, Resolution] = {}
        for path, attempt in sorted(attempts.items(), key=lambda item: item[1]):
            left_s = end - self._clock()
            if left_s < _SHORTEST_CALL_S:
                break
            answers[path] = self.resolve(path, attempt, left_s)
        return answers

    def _ask(self, claim: PathIdentity, attempt: int, end: float) -> Resolution:
        pod = self._pods.get(uid_key(claim.pod_uid or ""))
        if pod is not None and claim.container_id is None:
            return _whole_pod(pod, f"{explain(claim)}; the pod was confirmed earlier")
        silent: list[str] = []
        refused = ""
        runtimes = self._runtimes()
        for runtime in runtimes:
            try:
                confirmed = self._confirm(runtime, claim, end)
            except SourceError as error:
                silent.append(error.cause)
                continue
            if confirmed is not None and confirmed.owner.kind is OwnerKind.POD:
                return confirmed
            refused = refused or (confirmed.reason if confirmed else "")
        if claim.kind is PathKind.PLAIN_CONTAINER:
            return self._host(claim, explain(claim), attempt, silent)
        if silent or not runtimes:
            return _unknown(claim, "; ".join(silent) or "no container runtime socket was found", silent=True)
        if refused:
            return _unknown(claim, refused, final=attempt >= len(RETRY_S))
        return self._denied(claim, attempt, ", ".join(runtime.name for runtime in runtimes))

    def _confirm(self, runtime: Runtime, claim: PathIdentity, end: float) -> Resolution | None:
        """What one runtime makes of the claim: a pod, nobody's because it contradicts the path, or None when it knows
        neither the container nor the sandbox."""
        if claim.container_id is not None and claim.kind is not PathKind.POD_SANDBOX_LEVEL:
            container = runtime.container(claim.container_id, self._left_s(end))
            if container is not None:
                return self._accept_container(claim, container, runtime.name)
        if claim.container_id is not None:
            sandbox = runtime.sandbox(claim.container_id, self._left_s(end))
            if sandbox is not None:
                return self._accept_sandbox(claim, sandbox, runtime.name)
        if claim.pod_uid is None or uid_key(claim.pod_uid) in self._pods:
            return None
        sandbox = runtime.sandbox_of_pod(claim.pod_uid, self._left_s(end))
        if sandbox is None:
            return None
        self._remember(sandbox)
        return self._accept_sandbox(claim, sandbox, runtime.name) if claim.kind is PathKind.POD_SANDBOX_LEVEL else None

    def _left_s(self, end: float) -> float:
        left_s = end - self._clock()
        if left_s <= 0:
            raise SourceError("the time for asking container runtimes was used up")
        return left_s

    def _accept_container(self, claim: PathIdentity, container: ContainerInfo, runtime: str) -> Resolution:
        if not _same_pod(claim, container.pod_uid):
            return _unknown(claim, f"{runtime} knows the container, but as another pod's than the path says")
        if not (container.namespace and container.pod):
            return _unknown(claim, f"{runtime} knows the container, but no name of its pod")
        self._remember(SandboxInfo("", container.namespace, container.pod, container.pod_uid))
        owner = Owner(
            OwnerKind.POD,
            namespace=container.namespace,
            pod=container.pod,
            container=container.name,
            pod_uid=container.pod_uid,
            container_id=container.id if container.name else "",
            image=container.image if container.name else "",
        )
        return Resolution(owner, True, f"{explain(claim)}; confirmed by {runtime}")

    def _accept_sandbox(self, claim: PathIdentity, sandbox: SandboxInfo, runtime: str) -> Resolution:
        if not _same_pod(claim, sandbox.pod_uid):
            return _unknown(claim, f"{runtime} knows the sandbox, but as another pod's than the path says")
        self._remember(sandbox)
        return _whole_pod(sandbox, f"sandbox of the pod, confirmed by {runtime}: work of the pod as a whole")

    def _denied(self, claim: PathIdentity, attempt: int, asked: str) -> Resolution:
        """Every runtime answered, none knows the container: too early, or it is gone."""
        if attempt < len(RETRY_S):
            return _unknown(claim, f"not known to {asked}")
        pod = self._pods.get(uid_key(claim.pod_uid or ""))
        if pod is not None:
            return _whole_pod(pod, f"container gone before {asked} was asked about it; its pod was confirmed")
        if claim.pod_uid is None and claim.runtime not in _CRI_RUNTIMES:
            return self._host(claim, f"{explain(claim)}; container not known to {asked}", attempt)
        return _unknown(claim, f"not known to {asked} for {GIVE_UP_S:.0f} s", final=True)

    def _host(self, claim: PathIdentity, reason: str, attempt: int, silent: Sequence[str] = ()) -> Resolution:
        """`silent`: why it may be somebody else's."""
        found, troubles = None, list(silent)
        try:
            found = self._find_container(claim)
        except SourceError as error:
            troubles.append(error.cause)
        owner = Owner(
            OwnerKind.HOST,
            unit=found.unit if found else clean_name(claim.unit or CONMON_UNIT, UNIT_MAX),
            container_id=(claim.container_id or "") if claim.host_kind is HostKind.CONTAINER else "",
            host_kind=claim.host_kind or HostKind.OTHER,
            image=found.image if found else "",
        )
        return Resolution(owner, not troubles or attempt >= len(RETRY_S), "; ".join((reason, *troubles)))

    def _remember(self, sandbox: SandboxInfo) -> None:
        """A UID is never given to a second pod, so what is remembered cannot become wrong; the oldest go."""
        self._pods[uid_key(sandbox.pod_uid)] = sandbox
        if len(self._pods) > REMEMBERED_PODS:
            del self._pods[next(iter(self._pods))]


def _worth_asking(claim: PathIdentity) -> bool:
    """Whether a runtime may know the place: pods, and containers of a kubelet without pod cgroups."""
    if claim.kind is PathKind.OTHER:
        return claim.container_id is not None
    if claim.kind is PathKind.PLAIN_CONTAINER:
        outermost = claim.container_id is not None and claim.host_kind is HostKind.CONTAINER
        return outermost and claim.runtime == "docker"
    return claim.kind in (PathKind.POD_CONTAINER, PathKind.POD_SANDBOX_LEVEL)


def _same_pod(claim: PathIdentity, pod_uid: str) -> bool:
    if claim.pod_uid is None:
        return pod_uid != ""
    return uid_key(claim.pod_uid) == uid_key(pod_uid)


def _whole_pod(sandbox: SandboxInfo, reason: str) -> Resolution:
    owner = Owner(OwnerKind.POD, namespace=sandbox.namespace, pod=sandbox.pod, pod_uid=sandbox.pod_uid)
    return Resolution(owner, True, reason)


def _unknown(claim: PathIdentity, reason: str, final: bool = False, silent: bool = False) -> Resolution:
    owner = Owner(OwnerKind.UNKNOWN, pod_uid=claim.pod_uid or "", container_id=claim.container_id or "")
    return Resolution(owner, final, reason, silent)
