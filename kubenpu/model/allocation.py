# SPDX-License-Identifier: Apache-2.0
"""Which devices the kubelet has given to which container. That is not use: what was used the kernel counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kubenpu.model.device import Device
from kubenpu.model.identity import Owner, OwnerKind


class Claimed(NamedTuple):
    """What the kubelet says, by names; it knows no UID.

    `resource`: what a device plugin calls it (`nvidia.com/gpu`), or the DRA driver. `device_id`: the plugin's id, or
    `POOL/DEVICE`. `claim`: `NAMESPACE/NAME`, "" for device plugins. `names`: what the device is called, also by CDI.
    """

    namespace: str
    pod: str
    container: str
    resource: str
    device_id: str
    claim: str
    names: tuple[str, ...]


class Listing(NamedTuple):
    """`containers`: all that the kubelet told of, as container_key() writes them, those without a device too. `cut`:
    those that have more devices than are in `claimed`. `left_out`: what was told and is not here, in words.
    """

    claimed: tuple[Claimed, ...]
    containers: frozenset[str]
    cut: frozenset[str] = frozenset()
    left_out: str = ""


class Allocation(NamedTuple):
    """The same, joined with what this node has. `device`: its address, None when the names do not tell which it is.

    `pod_uid` "": not known. `idle_since`: since when the container made no call to the device, as far as somebody has
    looked, in seconds: of CLOCK_BOOTTIME in a View, of Unix time where it is shown. None when the device is not known
    or its calls are not counted.
    """

    namespace: str
    pod: str
    container: str
    resource: str
    device_id: str
    claim: str
    device: str | None
    pod_uid: str
    idle_since: float | None


class Allocations(NamedTuple):
    """What the kubelet said last. `given`: devices by container; a container that is missing is one that the kubelet
    does not tell of: one that prepares its pod, or was added to it for debugging."""

    all: tuple[Allocation, ...]
    given: Mapping[str, tuple[str | None, ...]]

    def shown(self, boot_unix_s: float) -> tuple[Allocation, ...]:
        """By the clock of the wall, which may have been set since."""
        return tuple(
            each if each.idle_since is None else each._replace(idle_since=boot_unix_s + each.idle_since)
            for each in self.all
        )

    def cover(self, owner: Owner, device: Device) -> bool | None:
        """Whether the owner was given the device; None when that cannot be said."""
        given = self.given.get(container_key(owner.namespace, owner.pod, owner.container))
        if owner.kind is not OwnerKind.POD or given is None:
            return None
        if device.address in given:
            return True
        return None if device.auxiliary or None in given else False


def container_key(namespace: str, pod: str, container: str) -> str:
    """One text for a container; none of the names has a / in it."""
    return f"{namespace}/{pod}/{container}"
