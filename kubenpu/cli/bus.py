# SPDX-License-Identifier: Apache-2.0
"""How the subcommands ask kubenpud: over D-Bus, as any user, with its address and its filter among their arguments.

Owns a connection from the first question to the end of the block, and makes another one when it broke. Whatever is in
the way (no bus, no kubenpud, no right, no D-Bus library) is an UnreachableError that says what to do; what kubenpud
itself refuses is another SourceError.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from kubenpu.cli.packages import explain_missing
from kubenpu.cli.rates import Sample
from kubenpu.model.errors import SourceError, UnreachableError
from kubenpu.model.identity import OwnerKind
from kubenpu.model.usage import UsageRow

if TYPE_CHECKING:
    from kubenpu.exporters.dbus_client import DeviceRow, NodeClient, NodeRow
    from kubenpu.model.allocation import Allocation

TIMEOUT_S = 10.0
_KEYS = {"kind": "Kind", "namespace": "Namespace", "pod": "Pod", "device": "Device"}


def add_bus_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bus", default="", metavar="ADDRESS", help="message bus that kubenpud is on (default: the system bus)"
    )


def add_filter_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--namespace", type=_text, help="only this namespace")
    parser.add_argument("--pod", type=_text, help="only pods of this name")
    parser.add_argument("--device", type=_text, metavar="ADDRESS", help="only what uses this device")
    kinds = [kind.value for kind in OwnerKind]
    parser.add_argument("--kind", choices=kinds, help="only work of pods, outside pods, or of pods nobody confirmed")


def _text(argument: str) -> str:
    if not argument.isprintable():
        raise argparse.ArgumentTypeError("not printable text, so no name of kubenpud's")
    return argument


class Feed:
    """Sample after sample of what `args` ask for; a context manager. Not for two threads at once."""

    def __init__(self, args: argparse.Namespace, timeout_s: float = TIMEOUT_S) -> None:
        self._address: str = args.bus
        self._filter = {key: value for name, key in _KEYS.items() if (value := getattr(args, name, None)) is not None}
        self._timeout_s = timeout_s
        self._client: NodeClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def read(self) -> Sample:
        """Everything. kubenpud makes up its picture for the first question, so that is when the sample is from."""
        with self._connected() as client:
            node = client.node()
            at, unix_s = time.monotonic(), time.time()
            return Sample(at, unix_s, node, tuple(client.devices()), tuple(client.counters(self._filter)))

    def read_allocations(self) -> list[Allocation]:
        """Those that the filter is for. Only pods are given anything."""
        if self._filter.get("Kind", OwnerKind.POD.value) != OwnerKind.POD.value:
            return []
        wanted = {name: self._filter[key] for name, key in _KEYS.items() if key in self._filter and name != "kind"}
        with self._connected() as client:
            found = client.allocations()
        return [each for each in found if all(getattr(each, name) == value for name, value in wanted.items())]

    def read_devices(self) -> tuple[NodeRow, list[DeviceRow]]:
        with self._connected() as client:
            return client.node(), client.devices()

    def read_node(self) -> NodeRow:
        with self._connected() as client:
            return client.node()

    def read_usage(self, by: str, since: int, until: int) -> list[UsageRow]:
        with self._connected() as client:
            return client.usage(by, since, until)

    @contextmanager
    def _connected(self) -> Iterator[NodeClient]:
        """What fails in the block ends the connection; the next question makes another one."""
        try:
            if self._client is None:
                self._client = _connect(self._address, self._timeout_s)
            yield self._client
        except ModuleNotFoundError as e:
            raise UnreachableError(*explain_missing(e)) from e
        except SourceError:
            self.__exit__()
            raise


def _connect(address: str, timeout_s: float) -> NodeClient:
    """Imported here, because it is D-Bus that makes a command slow to start, and its library may be missing."""
    from kubenpu.exporters.dbus_client import NodeClient  # noqa: PLC0415

    return NodeClient(address, timeout_s)
