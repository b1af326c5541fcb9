# SPDX-License-Identifier: Apache-2.0
"""What a DRM driver says of one open file in /proc/PID/fdinfo/FD: pure, from text to numbers.

The keys are those of the kernel's drm-usage-stats. Unknown ones are skipped, as that text demands, and so is every line
that is not what its key promises. Refuses more than a driver can have to say, and numbers that no device can reach,
such as one below 0 that was printed without its sign; what an application may write into it (drm-client-name) is not
looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from kubenpu.model.clients import COUNT_LIMIT, possible
from kubenpu.model.fdinfo import Fdinfo, Ticks

MAX_NAMES = 64
"""Of engines and of regions, each."""
MAX_ENGINES = 1024
_SIDE_BY_SIDE = {"amdgpu": 64, "panfrost": 2}
"""Jobs of one client and engine name whose time these drivers count twice while they wait for each other or run on
another ring; they tell no capacity."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
_NUMBER = re.compile(r"([0-9]{1,20})(?: +(\w+))?")
_ENGINE, _CAPACITY, _BUSY, _CLOCK = "drm-engine-", "drm-engine-capacity-", "drm-cycles-", "drm-total-cycles-"
# What of a region is in memory now, in the words of today and in amdgpu's older ones; where a driver does not tell
# that, what was allocated. The first that there is.
_MEMORY = ("drm-resident-", "drm-memory-", "drm-total-")

Units = Mapping[str | None, int]
_PLAIN: Units = {None: 1}
_NS: Units = {"ns": 1}
_BYTES: Units = {None: 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
Pairs = list[tuple[str, str]]


def parse_fdinfo(text: str, ino: int) -> Fdinfo | None:
    """None when this is no DRM file with an identity, or another inode's: the descriptor was used again meanwhile."""
    pairs = [(key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in text.split("\n"))]
    first = dict(reversed(pairs))
    client_id = _number(first.get("drm-client-id", ""), _PLAIN)
    if "drm-driver" not in first or client_id is None or client_id >= COUNT_LIMIT or first.get("ino") != str(ino):
        return None
    busy, clock = _named(pairs, _BUSY, _PLAIN), _named(pairs, _CLOCK, _PLAIN)
    ticks = {name: Ticks(busy[name], clock[name]) for name in busy if name in clock}
    engine_ns = _named(_without(pairs, _CAPACITY), _ENGINE, _NS)
    memory = _memory(_without(pairs, _CLOCK))
    told = (engine_ns, memory, {name: max(each) for name, each in ticks.items()})
    return Fdinfo(
        client_id,
        engine_ns=possible(engine_ns),
        ticks={name: each for name, each in ticks.items() if max(each) < COUNT_LIMIT},
        memory=possible(memory),
        engines=_engines(first["drm-driver"], engine_ns, _named(pairs, _CAPACITY, _PLAIN)),
        absurd=sum(len(numbers) - len(possible(numbers)) for numbers in told),
    )


def _engines(driver: str, used: Iterable[str], capacity: Mapping[str, int]) -> dict[str, int]:
    told = {name: min(count, MAX_ENGINES) for name, count in capacity.items() if count > 1}
    known = _SIDE_BY_SIDE.get(driver)
    return {**dict.fromkeys(used, known), **told} if known else told


def _without(pairs: Pairs, prefix: str) -> Pairs:
    """Without keys that another prefix would take for names of its own."""
    return [pair for pair in pairs if not pair[0].startswith(prefix)]


def _memory(pairs: Pairs) -> dict[str, int]:
    found: dict[str, int] = {}
    for prefix in _MEMORY:
        found = {**_named(pairs, prefix, _BYTES), **found}
    return found


def _named(pairs: Iterable[tuple[str, str]], prefix: str, units: Units) -> dict[str, int]:
    """Numbers by what follows the prefix. amdgpu calls two blocks of hardware by one name: they add up."""
    found: dict[str, int] = {}
    for key, value in pairs:
        name = key.removeprefix(prefix)
        if not key.startswith(prefix) or not _NAME.fullmatch(name):
            continue
        number = _number(value, units)
        if number is not None and (name in found or len(found) < MAX_NAMES):
            found[name] = found.get(name, 0) + number
    return found


def _number(value: str, units: Units) -> int | None:
    match = _NUMBER.fullmatch(value)
    factor = units.get(match[2]) if match else None
    return int(match[1]) * factor if match and factor is not None else None
