# SPDX-License-Identifier: Apache-2.0
"""The kubelet's pod-resources v1: which devices it has given to which container, by device plugin or by DRA.

Owns one gRPC channel from the first question to close(). Its data are the kubelet's answers, in which names and ids
are what users and plugins chose. Plugins that share a GPU hand out an id for each MiB of its memory: of a container
MAX_OF_CONTAINER devices are kept, fewer when all have more than MAX_CLAIMED, and what is left out is said. Refuses
answers above 16 MiB. Blocking, for at most its deadline. List is all that is asked: Get tells the same of one pod.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path

import grpc

from kubenpu.identity.cri import CALL_TIMEOUT_S, CHANNEL_OPTIONS, LARGEST_ANSWER, grpc_target
from kubenpu.identity.names import CONTAINER_MAX, NAMESPACE_MAX, POD_MAX, clean_name
from kubenpu.identity.wire import walk_message
from kubenpu.model.allocation import Claimed, Listing, container_key
from kubenpu.model.errors import SourceError

MAX_CLAIMED, MAX_OF_CONTAINER, MAX_CONTAINERS = 4096, 256, 16384
MAX_CDI_NAMES = 16
ID_MAX = 253
_LIST = "/v1.PodResourcesLister/List"
_ACTIVE = "Check that the kubelet is active, or empty identity.kubelet_socket"
_REMEDIES = {
    grpc.StatusCode.UNAVAILABLE: _ACTIVE,
    grpc.StatusCode.DEADLINE_EXCEEDED: _ACTIVE,
    grpc.StatusCode.RESOURCE_EXHAUSTED: "Nothing if others ask the kubelet too often; else find the device plugin that "
    "hands out so many ids that an answer is above 16 MiB",
}
_OTHER = "Check that identity.kubelet_socket is the kubelet's socket for pod-resources, or empty it"


class PodResources:
    """The kubelet behind one socket."""

    def __init__(self, socket_path: Path, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self.socket = socket_path
        self._timeout_s = timeout_s
        self._channel: grpc.Channel | None = None

    def listing(self) -> Listing:
        """Raises SourceError when there is no answer in time, or none that can be used."""
        if self._channel is None:
            options = (*CHANNEL_OPTIONS, LARGEST_ANSWER)
            self._channel = grpc.insecure_channel(grpc_target(self.socket), options=options)
        ask = self._channel.unary_unary(_LIST)
        try:
            return parse_listing(ask(b"", timeout=self._timeout_s))
        except grpc.RpcError as error:
            text, remedy = f"{error.code().name}: {clean_name(error.details() or '', 200)}", _REMEDIES.get(error.code())
            raise SourceError(f"the kubelet at {self.socket} gave no answer ({text})", remedy or _OTHER) from error
        except ValueError as error:
            raise SourceError(f"the kubelet at {self.socket} gave no usable answer ({error})", _OTHER) from error

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


Place = tuple[str, str, str]


def parse_listing(data: bytes) -> Listing:
    """ListPodResourcesResponse. Raises ValueError; the same device twice is one."""
    found = _containers(memoryview(data))
    containers = list(islice(found, MAX_CONTAINERS))
    limit = _share(sum(1 for _ in islice(_devices(*each), MAX_OF_CONTAINER)) for each in containers)
    claimed: dict[Claimed, None] = {}
    cut = set()
    for each in containers:
        kept, all_of_them = _choose(_devices(*each), limit)
        claimed |= dict.fromkeys(kept)
        if not all_of_them:
            cut.add(container_key(*each[0]))
    keys = frozenset(container_key(*place) for place, _ in containers)
    return Listing(tuple(claimed), keys, frozenset(cut), _explain(cut, limit, next(found, None) is not None))


def _containers(data: memoryview) -> Iterator[tuple[Place, memoryview]]:
    """Of every pod."""
    for pod in _values(data, 1):
        names = (clean_name(_text(pod, 2), NAMESPACE_MAX), clean_name(_text(pod, 1), POD_MAX))
        for container in _values(pod, 3):
            yield (*names, clean_name(_text(container, 1), CONTAINER_MAX)), container


def _devices(place: Place, container: memoryview) -> Iterator[Claimed]:
    for each in _values(container, 2):
        resource = _id(each, 1)
        for value in _values(each, 2):
            device_id = clean_name(str(value, "utf-8", "replace"), ID_MAX)
            yield Claimed(*place, resource, device_id, "", (device_id,))
    for claim in _values(container, 5):
        name = f"{_id(claim, 3)}/{_id(claim, 2)}"
        for each in _values(claim, 4):
            cdi = (_id(device, 1) for device in _values(each, 1))
            driver, pool, device = (_id(each, number) for number in (2, 3, 4))
            if device:
                yield Claimed(*place, driver, f"{pool}/{device}", name, (device, *islice(cdi, MAX_CDI_NAMES)))
            else:  # kubelets up to 1.30 tell nothing but this
                yield from (Claimed(*place, one.partition("=")[0], one, name, (one,)) for one in cdi)


def _share(counts: Iterable[int]) -> int:
    """How many devices are kept of a container."""
    found, limit = list(counts), MAX_OF_CONTAINER
    while limit > 1 and sum(min(count, limit) for count in found) > MAX_CLAIMED:
        limit //= 2
    return limit


def _choose(devices: Iterable[Claimed], limit: int) -> tuple[list[Claimed], bool]:
    """So many of them, one of each kind before the others, and whether these are all. Of one kind are ids that differ
    in their last number: mostly they are parts of one device."""
    first: dict[tuple[str, str, str], Claimed] = {}
    more: dict[Claimed, None] = {}
    dropped = False
    for each in devices:
        kind = (each.resource, each.claim, each.device_id.rstrip("0123456789"))
        if kind not in first and len(first) < limit:
            first[kind] = each
        elif first.get(kind) != each and each not in more:
            if len(first) + len(more) < limit:
                more[each] = None
            else:
                dropped = True
    kept = [*first.values(), *more]
    return kept[:limit], not dropped and len(kept) <= limit


def _explain(cut: Collection[str], limit: int, more_containers: bool) -> str:
    """What of the answer is not used, "" when all is."""
    others = f" and {len(cut) - 1} more containers" if len(cut) > 1 else ""
    devices = f"of {min(cut)}{others} no more than {limit} devices each are kept" if cut else ""
    containers = f"of all containers no more than {MAX_CONTAINERS} are kept" if more_containers else ""
    return "; ".join(filter(None, (devices, containers)))


def _values(message: memoryview, number: int) -> Iterator[memoryview]:
    return (value for found, value in walk_message(message) if found == number and not isinstance(value, int))


def _text(message: memoryview, number: int) -> str:
    """A string, "" when it is not there; the last one counts."""
    value = memoryview(b"")
    for each in _values(message, number):
        value = each
    return str(value, "utf-8", "replace")


def _id(message: memoryview, number: int) -> str:
    return clean_name(_text(message, number), ID_MAX)
