# SPDX-License-Identifier: Apache-2.0
"""The kubelet's pod-resources v1: which devices it has given to which container, by device plugin or by DRA.

Owns one gRPC channel from the first question to close(). Its data are the kubelet's answers, in which names and ids
are what users and plugins chose. Refuses more devices and containers than MAX_CLAIMED and MAX_CONTAINERS, and answers
above the 4 MiB that gRPC takes. Blocking, for at most its deadline. List is all that is asked: Get tells the same of
one pod.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc

from kubenpu.identity.cri import CALL_TIMEOUT_S, CHANNEL_OPTIONS, grpc_target
from kubenpu.identity.names import CONTAINER_MAX, NAMESPACE_MAX, POD_MAX, clean_name
from kubenpu.identity.wire import Message, read_message, read_text, read_texts
from kubenpu.model.allocation import Claimed, Listing, container_key
from kubenpu.model.errors import SourceError

MAX_CLAIMED, MAX_CONTAINERS = 4096, 16384
ID_MAX = 253
_LIST = "/v1.PodResourcesLister/List"
_REMEDY = "Check that the kubelet is active, or empty identity.kubelet_socket"


class PodResources:
    """The kubelet behind one socket."""

    def __init__(self, socket_path: Path, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self.socket = socket_path
        self._timeout_s = timeout_s
        self._channel: grpc.Channel | None = None

    def listing(self) -> Listing:
        """Raises SourceError when there is no answer in time, or none that can be used."""
        if self._channel is None:
            self._channel = grpc.insecure_channel(grpc_target(self.socket), options=CHANNEL_OPTIONS)
        ask = self._channel.unary_unary(_LIST)
        try:
            return parse_listing(ask(b"", timeout=self._timeout_s))
        except grpc.RpcError as error:
            text = f"{error.code().name}: {clean_name(error.details() or '', 200)}"
            raise SourceError(f"the kubelet at {self.socket} gave no answer ({text})", _REMEDY) from error
        except ValueError as error:
            raise SourceError(f"the kubelet at {self.socket} gave no usable answer ({error})", _REMEDY) from error

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def parse_listing(data: bytes) -> Listing:
    """ListPodResourcesResponse. Raises ValueError; the same device twice is one."""
    claimed: dict[Claimed, None] = {}
    containers = set()
    for pod in map(read_message, read_message(data).get(1, ())):
        names = (clean_name(read_text(pod, 2), NAMESPACE_MAX), clean_name(read_text(pod, 1), POD_MAX))
        for container in map(read_message, pod.get(3, ())):
            place = (*names, clean_name(read_text(container, 1), CONTAINER_MAX))
            containers.add(container_key(*place))
            for each in _devices(container, place):
                claimed[each] = None
                if len(claimed) > MAX_CLAIMED:
                    raise ValueError(f"more than {MAX_CLAIMED} devices")
            if len(containers) > MAX_CONTAINERS:
                raise ValueError(f"more than {MAX_CONTAINERS} containers")
    return Listing(tuple(claimed), frozenset(containers))


def _devices(container: Message, place: tuple[str, str, str]) -> Iterator[Claimed]:
    for each in map(read_message, container.get(2, ())):
        resource = _id(read_text(each, 1))
        for device_id in map(_id, read_texts(each, 2)):
            yield Claimed(*place, resource, device_id, "", (device_id,))
    for claim in map(read_message, container.get(5, ())):
        name = f"{_id(read_text(claim, 3))}/{_id(read_text(claim, 2))}"
        for each in map(read_message, claim.get(4, ())):
            cdi = tuple(_id(read_text(read_message(device), 1)) for device in each.get(1, ()))
            driver, pool, device = (_id(read_text(each, number)) for number in (2, 3, 4))
            if device:
                yield Claimed(*place, driver, f"{pool}/{device}", name, (device, *cdi))
            else:  # kubelets up to 1.30 tell nothing but this
                yield from (Claimed(*place, one.partition("=")[0], one, name, (one,)) for one in cdi)


def _id(text: str) -> str:
    return clean_name(text, ID_MAX)
