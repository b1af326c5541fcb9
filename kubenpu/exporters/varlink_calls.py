# SPDX-License-Identifier: Apache-2.0
"""Answers Varlink calls: one message goes in, its replies come out, one at a time. Knows neither socket nor thread.

Data comes from a callable that gives the Picture of now. Introspection, dispatch and encoding are the varlink
library's; what a stranger sends is checked before it, by api/varlink.py, because the library turns true into 1, takes a
list for an empty structure and fails on NaN. Names of workloads are made printable, as in the metrics: JSON has no text
but Unicode. All methods only read, so a call that wants no reply is not carried out.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from kubenpu import __version__
from kubenpu.api import fields
from kubenpu.api import varlink as api
from kubenpu.api.fields import Field
from kubenpu.exporters.picture import Filter, Picture, find_workloads
from kubenpu.exporters.varlink_parts import Interface, InvalidParameter, Service, VarlinkEncoder, VarlinkError
from kubenpu.model.errors import KubeNpuError
from kubenpu.model.identity import Owner
from kubenpu.model.text import clean_label

log = logging.getLogger(__name__)
FILTER_KEYS = {field.key: field for field in fields.FILTER_FIELDS}
FILTER_TYPES = {key: str if field.shape is fields.TEXT else bool for key, field in FILTER_KEYS.items()}
METHODS = {f"{api.NAME}.{method.name}": method for method in api.METHODS}
T = TypeVar("T")


class MalformedError(Exception):
    """Not a Varlink call: there is nothing to answer, the connection has no sense any more."""


class Call:
    """One call on its way. `pause_s`: after how long the next reply is due; None: there is none.

    `streams`: it has replies until somebody says end().
    """

    def __init__(self) -> None:
        self.streams = False
        self.pause_s: float | None = None
        self.replies: Iterator[bytes] = iter(())

    def end(self) -> None:
        """No reply is wanted any more. Leaves every with-block that makes them."""
        if isinstance(self.replies, Generator):
            self.replies.close()


class Request(NamedTuple):
    method: str
    parameters: dict[str, Any]
    more: bool
    oneway: bool
    upgrade: bool


def parse_request(data: bytes) -> Request:
    """Raises MalformedError. Absent and null are the same."""
    try:
        message = json.loads(data.decode())
    except (ValueError, RecursionError) as e:
        raise MalformedError(f"no JSON: {e}") from e
    if not isinstance(message, dict):
        raise MalformedError("no object")
    method, parameters = message.get("method"), message.get("parameters")
    flags = [message.get(name) for name in ("more", "oneway", "upgrade")]
    if not isinstance(method, str) or not isinstance(parameters, dict | None):
        raise MalformedError("no method, or its parameters are no object")
    if not all(isinstance(flag, bool | None) for flag in flags):
        raise MalformedError("more, oneway and upgrade are true or false")
    return Request(method, _without_null(parameters or {}), *map(bool, flags))


def _without_null(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def find_wrong(request: Request) -> str | None:
    """Name of a parameter that cannot be."""
    if request.upgrade:
        return "upgrade"
    method = METHODS.get(request.method)
    if method is None:
        return None  # the library knows its own
    types = {part.key: part.type for part in method.takes}
    return next((name for name, value in request.parameters.items() if not _fits(name, types.get(name), value)), None)


def _fits(name: str, kind: str | None, value: Any) -> bool:
    match kind, value:
        case "?int", int() if not isinstance(value, bool):
            return _in_range(name, value)
        case "?Filter", dict():
            given = _without_null(value)
            return all(type(v) is FILTER_TYPES.get(key) for key, v in given.items())
    return False


def _in_range(name: str, value: int) -> bool:
    if name == "intervalSeconds":
        return api.SHORTEST_INTERVAL_S <= value <= api.LONGEST_INTERVAL_S
    return value >= 0


class Answers:
    """`changes` is what those who watch share: one table, however many they are."""

    def __init__(self, picture: Callable[[], Picture]) -> None:
        self._get_picture = picture
        self.changes = Changes()
        self._service = Service(api.VENDOR, api.PRODUCT, __version__)
        interface = Interface(api.render_idl())
        self._service.interfaces[interface.name] = interface
        self._service.interfaces_handlers[interface.name] = SimpleNamespace(
            GetInfo=self._get_info,
            ListDevices=self._list_devices,
            ListWorkloads=self._list_workloads,
            GetCounters=self._get_counters,
            ListAllocations=self._list_allocations,
            Watch=self._watch,
        )

    def begin(self, data: bytes) -> Call:
        """Raises MalformedError. The replies raise nothing that the caller is to blame for."""
        call, request = Call(), parse_request(data)
        if request.oneway:
            return call
        wrong = find_wrong(request)
        if wrong is not None:
            call.replies = iter([json.dumps(InvalidParameter(wrong), cls=VarlinkEncoder).encode()])
        else:
            checked = {"method": request.method, "parameters": request.parameters, "more": request.more}
            method = METHODS.get(request.method)
            call.streams = request.more and method is not None and method.more
            call.replies = _encoded(self._service.handle(json.dumps(checked).encode(), _request=call), request.method)
        return call

    def _picture(self) -> Picture:
        with _telling():
            return self._get_picture()

    # ---- the methods, called by the library ----

    def _get_info(self) -> dict[str, Any]:
        return _object(fields.NODE_FIELDS, self._picture().view)

    def _list_devices(self) -> dict[str, Any]:
        return {"devices": [_object(fields.DEVICE_FIELDS, device) for device in self._picture().devices()]}

    def _list_workloads(self) -> dict[str, Any]:
        workloads = find_workloads(self._picture().view)
        if len(workloads) > fields.MAX_WORKLOADS:
            raise VarlinkError({"error": api.TOO_MANY_WORKLOADS, "parameters": {"limit": fields.MAX_WORKLOADS}})
        return {"workloads": [_object(fields.WORKLOAD_FIELDS, workload) for workload in workloads]}

    def _get_counters(self, wanted: Any, offset: int | None, limit: int | None) -> dict[str, Any]:
        picture, begin = self._picture(), offset or 0
        found = picture.select(_filter(wanted))
        page = found[begin : begin + min(limit or fields.MAX_ROWS, fields.MAX_ROWS)]
        return {"counters": [_object(fields.COUNTER_FIELDS, picture.show(u)) for u in page], "total": len(found)}

    def _list_allocations(self) -> dict[str, Any]:
        picture = self._picture()
        with _telling():
            return {"allocations": [_object(fields.ALLOCATION_FIELDS, each) for each in picture.allocations()]}

    def _watch(
        self, wanted: Any, interval_seconds: int | None, _request: Call, _more: bool = False
    ) -> Iterator[dict[str, Any]]:
        if not _more:
            raise VarlinkError({"error": api.EXPECTED_MORE, "parameters": {}})
        interval_s, selected, cursor = interval_seconds or api.SHORTEST_INTERVAL_S, _filter(wanted), 0
        with self.changes.watched():
            while True:
                _request.pause_s = None  # this is the last reply if the picture cannot be had
                picture = self._picture()
                usage, remaining, cursor = self.changes.since(cursor, picture, selected)
                _request.pause_s = 0 if remaining else interval_s
                rows = [_object(fields.COUNTER_FIELDS, picture.show(each)) for each in usage]
                reply = {"timeUsec": int(picture.at * 1e6), "counters": rows, "remaining": remaining}
                yield {"_continues": True, **reply}


def _encoded(replies: Iterator[bytes], method: str) -> Generator[bytes, None, None]:
    """What the library cannot write ends this call, and no more."""
    try:
        yield from replies
    except (ValueError, TypeError, OverflowError) as e:
        log.error("%s cannot be answered: %s: %s", method, type(e).__name__, e)
        failed = {"error": api.FAILED, "parameters": {"reason": "the answer does not fit into JSON"}}
        yield json.dumps(failed).encode()


@contextmanager
def _telling() -> Iterator[None]:
    """What cannot be had is an error for the caller."""
    try:
        yield
    except KubeNpuError as e:
        raise VarlinkError({"error": api.FAILED, "parameters": {"reason": clean_label(str(e))}}) from e


class Changes:
    """When each row last changed, by a number that only grows: who watches remembers no more than one of them."""

    def __init__(self) -> None:
        self._watching = 0
        self._numbers = itertools.count(1)
        self._seen: dict[tuple[Owner, str], tuple[int, int]] = {}
        self._followed = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While nobody watches there is no table."""
        self._watching += 1
        try:
            yield
        finally:
            self._watching -= 1
            if not self._watching:
                self._seen, self._followed = {}, 0.0

    def since(self, cursor: int, picture: Picture, wanted: Filter) -> tuple[list[Any], int, int]:
        """The rows that changed first after the cursor, how many others did, and the cursor after these."""
        self._follow(picture)
        changed = [(self._seen[u.owner, u.device][0], u) for u in picture.select(wanted)]
        later = sorted((each for each in changed if each[0] > cursor), key=lambda each: each[0])
        page = later[: fields.MAX_ROWS]
        return [usage for _, usage in page], len(later) - len(page), page[-1][0] if page else cursor

    def _follow(self, picture: Picture) -> None:
        if picture.at == self._followed:
            return
        self._followed = picture.at
        before, self._seen = self._seen, {}
        for usage in picture.view.usage:
            key, now = (usage.owner, usage.device), hash((usage, picture.view.allocated(usage)))
            number, then = before.get(key, (0, 0))
            self._seen[key] = (number, then) if number and then == now else (next(self._numbers), now)


# ---- values ----


def _filter(wanted: dict[str, object] | None) -> Filter:
    return {FILTER_KEYS[key].name: value for key, value in (wanted or {}).items()}


def _object(of: tuple[Field[T], ...], subject: T) -> dict[str, Any]:
    return {field.key: _value(field, value) for field, value in fields.read_present(of, subject)}


def _value(field: Field[T], value: Any) -> object:
    match field.shape:
        case fields.TEXT:
            return clean_label(value)
        case fields.TEXTS:
            return [clean_label(text) for text in value]
        case fields.TEXT_BY_NAME:
            return {clean_label(name): clean_label(text) for name, text in value.items()}
        case fields.NODES:
            return [{"name": clean_label(name), "major": major, "minor": minor} for name, major, minor in value]
        case fields.COUNTS:
            return _object(fields.COUNT_FIELDS, value)
        case _:
            return value
