# SPDX-License-Identifier: Apache-2.0
"""Loading, attaching, replacing and removing a hook: by the first mechanism of its ladder that works, else off with all
reasons.

Runs in kubenpu-probe with its privileges and leaves everything in pins. What is attached are the small *_hook
programs; the counting code sits behind them in a program array. A newer object takes over by replacing that array's
element: every call runs exactly one of the two, maps and links stay.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kubenpu.kernel import bpf, layout
from kubenpu.kernel.hooks import SHARED_MAPS, UPROBE, Hook, Mechanism
from kubenpu.kernel.libbpf import ENOTSUPP, NO_BTF, Link, Messages, Object, errno_of
from kubenpu.kernel.pins import Pins
from kubenpu.kernel.selftest import self_test
from kubenpu.kernel.support import BCC, CORE, KernelFacts, mechanism_refusal
from kubenpu.model.errors import KernelError
from kubenpu.model.sample import OFF, HookStatus

INSTALLED_OBJECTS = Path("/usr/lib/kubenpu/bpf")
CGROUP_STORAGE_TYPE = 32
OLDEST_KERNEL = (6, 1)
_TRACE_FENTRY = 24
_SYMBOLS = Path("/proc/kallsyms")


@dataclass(frozen=True, slots=True)
class Target:
    """What a uprobe is for (simulated node, tests)."""

    function: str
    binary: Path


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Everything a load needs to know. `slots` is a power of two; `mechanisms` are tried in this order; `since_ns`
    is told of a hook that is attached already, and of one that stays off; a `target` only with a uprobe; `kernel` the
    file of loader bcc, None with loader core."""

    hook: Hook
    object_path: Path
    pins: Pins
    slots: int
    mechanisms: tuple[str, ...]
    since_ns: int
    target: Target | None = None
    kernel: Path | None = None

    @property
    def loader(self) -> str:
        return CORE if self.kernel is None else BCC

    def pin_of(self, name: str) -> Path:
        """Where a map of the hook's object is pinned; the bodies are the hook's own."""
        return self.pins.body(self.hook.name, name) if name.endswith("_body") else self.pins.map(name)


def object_path(stem: str) -> Path:
    """The compiled object: of the source tree this program runs from, else the installed one."""
    name = Path(os.uname().machine, f"{stem}.bpf.o")
    built = Path(__file__).parents[2] / "build" / "bpf" / name
    return built if built.exists() else INSTALLED_OBJECTS / name


def explain(error: KernelError) -> str:
    """The known errnos of an attach in words."""
    code = errno_of(error)
    if code == ENOTSUPP:
        return "this kernel has no trampolines to attach to (-524)"
    if code == NO_BTF:
        return "the function is not in the BTF of its module, or cannot be traced (-3)"
    return error.cause.splitlines()[0]


def load(request: LoadRequest, facts: KernelFacts, messages: Messages) -> HookStatus:
    """Makes the hook count with this object. Returns how; mechanism `off` with all reasons when none attaches.

    An attached hook keeps its mechanism and its totals and only gets the new code. Raises KernelError when the object
    or the pinned maps cannot be used at all.
    """
    hook = request.hook
    request.pins.make()
    attached = _attached(request)
    if attached is not None:
        refusal = mechanism_refusal(facts, attached.name, hook.module is not None, BCC)
        if request.loader == BCC and refusal is not None:
            cause = f"{hook.name} is attached by {attached.name}, whose program loader bcc cannot make: {refusal}"
            raise KernelError(cause, "Run: kubenpu-probe unload, then load; totals begin anew")
        _load_once(request, facts, messages, attached, attach=False)
        reason = "replaced the program behind the attached hook"
        return HookStatus(hook.name, attached.name, reason, request.since_ns, loader=request.loader)
    reasons: list[str] = []
    for name in request.mechanisms:
        absent = hook.module is not None and not facts.drm and name != UPROBE
        refusal = mechanism_refusal(facts, name, hook.module is not None, request.loader)
        if absent:
            refusal = f"{hook.module} is not loaded"
        if refusal is None:
            try:
                _load_once(request, facts, messages, hook.mechanism(name), attach=True)
            except KernelError as e:
                refusal = explain(e)
            else:
                return HookStatus(hook.name, name, "; ".join(reasons), boot_ns(), loader=request.loader)
        reasons.append(f"{name}: {refusal}")
        if absent:
            reasons = [refusal]
    make_maps(request, facts, messages)
    return HookStatus(hook.name, OFF, "; ".join(reasons), request.since_ns, loader=request.loader)


def make_maps(request: LoadRequest, facts: KernelFacts, messages: Messages) -> None:
    """Pins the maps without attaching anything, so that rules can be written before the first call is seen."""
    request.pins.make()
    try:
        _load_once(request, facts, messages, None, attach=False)
    except KernelError as e:
        if not e.remedy and facts.older_than(*OLDEST_KERNEL):
            oldest = ".".join(map(str, OLDEST_KERNEL))
            raise KernelError(e.cause, f"Kernel {facts.release} is too old: use {oldest} or later") from e
        raise


def unload(pins: Pins) -> list[str]:
    """Detaches and unpins everything; the totals of this boot are gone. Returns the names of the removed pins."""
    return pins.remove()


def detach(pins: Pins, hook: Hook) -> None:
    """Takes the hook off, keeps the maps and their totals. Raises KernelError when the pins cannot be removed.

    The bodies stay until the hook is attached again: the kernel frees the links a moment later, and a hook that found
    no body until then would declare calls lost.
    """
    sides = [path for side in hook.sides for path in (pins.link(hook.name, side), pins.program(hook.name, side))]
    try:
        for path in (*sides, *(_mark(pins, hook, mechanism.name) for mechanism in hook.mechanisms)):
            path.unlink(missing_ok=True)
    except OSError as e:
        raise KernelError(
            f"cannot take the hook off: {e.filename}: {e.strerror}", "Run it as root, with /sys/fs/bpf writable"
        ) from e


def drop_incomplete(pins: Pins) -> list[str]:
    """Removes every pin when one of the counters' is missing: without it the others say nothing true any more.

    Returns the missing ones; nothing when the set is complete, or not there at all.
    """
    missing = [name for name in SHARED_MAPS if not pins.map(name).exists()]
    if not missing or not pins.root.is_dir() or not any(pins.root.iterdir()):
        return []
    pins.remove()
    return missing


def _attached(request: LoadRequest) -> Mechanism | None:
    """The mechanism whose links are pinned. A half-attached hook (killed meanwhile) is taken off first."""
    hook, pins = request.hook, request.pins
    found = [m for m in hook.mechanisms if _mark(pins, hook, m.name).exists()]
    if found:
        sides = _sides(request, found[0])
        links = [pins.link(hook.name, side) for side in sides]
        bodies = [pins.body(hook.name, f"{side}_body") for side in sides]
        if all(path.exists() for path in (*links, *bodies, *map(pins.map, hook.maps))):
            return found[0]
    detach(pins, hook)
    return None


def _sides(request: LoadRequest, mechanism: Mechanism) -> tuple[str, ...]:
    """Those that this kernel has, in the order in which they are attached."""
    hook, has = request.hook, has_function if request.kernel is None else has_symbol
    return tuple(s for s in mechanism.sides if s not in hook.optional or has(hook.function(s)))


def has_function(name: str) -> bool:
    """Whether the kernel itself has a function of this name, by its BTF."""
    return bool(bpf.library().libbpf_find_vmlinux_btf_id(name.encode(), _TRACE_FENTRY) > 0)


def has_symbol(name: str) -> bool:
    """The same by its list of symbols, which takes longer."""
    with _SYMBOLS.open() as lines:
        return any(line.split()[2] == name for line in lines)


def _mark(pins: Pins, hook: Hook, mechanism: str) -> Path:
    """A pin whose name says how the links are attached; it is a second pin of the enter hook's program."""
    return pins.root / f"{hook.name}_by_{mechanism.replace('.', '_')}"


def _load_once(
    request: LoadRequest, facts: KernelFacts, messages: Messages, mechanism: Mechanism | None, attach: bool
) -> None:
    """One attempt: open, check, load, test, install the bodies, attach. Leaves no new links behind when it fails."""
    with Object(request.object_path, messages, request.kernel) as opened:
        layout.check(opened.btf.structs(layout.STRUCTS[request.hook.name]), request.hook.name)
        parts = () if mechanism is None else (("body", "hook") if attach else ("body",))
        sides = _sides(request, mechanism) if mechanism else ()
        programs = {mechanism.program(s, p) for s in sides for p in parts} if mechanism else set()
        _prepare(opened, request, facts, programs | {"run_body"}, keep_bodies=not attach and mechanism is not None)
        if mechanism is not None and mechanism.name == "kprobe.multi":
            for name in programs:
                opened.expect_kprobe_multi(name)
        opened.load()
        _pin_maps(opened, request, with_bodies=False)
        self_test(opened, request.hook, facts.cgroup2 if request.loader == BCC else None)
        if mechanism is None:
            return
        for side in sides:
            body = opened.program_fd(mechanism.program(side, "body"))
            with bpf.Map(os.dup(opened.map_fd(f"{side}_body"))) as array:
                array.update(struct.pack("=I", 0), struct.pack("=I", body))
        if attach:
            _attach(opened, request, mechanism, sides)


def has_cgroup_storage() -> bool:
    """Whether the kernel has cgroup local storage (6.2 and later); without it a hash by cgroup id does the same."""
    return bool(bpf.library().libbpf_probe_bpf_map_type(CGROUP_STORAGE_TYPE, None) == 1)


def _prepare(opened: Object, request: LoadRequest, facts: KernelFacts, programs: set[str], keep_bodies: bool) -> None:
    """Chooses programs and knobs; reuses every map that is already pinned."""
    core = request.loader == CORE
    storage = core and has_cgroup_storage()
    opened.keep_only(programs)
    opened.leave_out("cgroup_cells_by_id" if storage else "cgroup_cells")
    if core:
        opened.leave_out("in_flight_by_thread")
    slots = request.slots
    for name in opened.maps():
        path = request.pin_of(name)
        if name.endswith("_body") and not keep_bodies:
            continue
        if path.exists():
            with bpf.Map.pinned(path) as existing:
                _check_shape(name, opened.shape(name), existing.shape)
                if name == "cells":
                    slots = existing.shape.max_entries - layout.DEVICE_SLOTS
                    opened.set_capacity("cells", existing.shape.max_entries)
                opened.reuse(name, existing.fd)
    cpus = bpf.possible_cpus()
    if not request.pins.map("cells").exists():
        opened.set_capacity("cells", layout.DEVICE_SLOTS + slots)
        opened.set_capacity("totals", layout.DEVICE_SLOTS * cpus)
        opened.set_capacity("losses", cpus)
    opened.set_constants(
        {
            "knpu_cells_mask": slots - 1,
            "knpu_cpus": cpus,
            "knpu_cgroup_storage": int(storage),
            "knpu_capture_names": int(facts.lockdown != "confidentiality"),
            "knpu_kernel_btf": int(core),
        }
    )


def _check_shape(name: str, declared: tuple[int, int, int], pinned: bpf.MapShape) -> None:
    if declared != (pinned.type, pinned.key_size, pinned.value_size):
        raise KernelError(
            f"the pinned map {name} has another shape than this version's",
            "Restart kubenpu-probe (unload, load): totals since boot begin anew",
        )


def _pin_maps(opened: Object, request: LoadRequest, with_bodies: bool) -> None:
    for name in opened.maps():
        path = request.pin_of(name)
        if name.endswith("_body") == with_bodies and not path.exists():
            bpf.pin(opened.map_fd(name), path)


def _attach(opened: Object, request: LoadRequest, mechanism: Mechanism, sides: tuple[str, ...]) -> None:
    """Attaches all sides, then pins; when anything fails everything of this attempt is taken off again."""
    links: dict[str, Link] = {}
    attach_side = _attacher(opened, request, mechanism)
    pins, hook = request.pins, request.hook
    try:
        for side in sides:  # what is left of a hook that was taken off must not count beside the new one
            pins.body(hook.name, f"{side}_body").unlink(missing_ok=True)
        for side in sides:
            links[side] = attach_side(mechanism.program(side, "hook"), side)
        _pin_maps(opened, request, with_bodies=True)
        for side in sides:
            bpf.pin(opened.program_fd(mechanism.program(side, "hook")), pins.program(hook.name, side))
        bpf.pin(opened.program_fd(mechanism.program("enter", "hook")), _mark(pins, hook, mechanism.name))
        for side, link in links.items():
            link.pin(pins.link(hook.name, side))
    except KernelError:
        detach(pins, hook)
        raise
    finally:
        for link in links.values():
            link.close()


def _attacher(opened: Object, request: LoadRequest, mechanism: Mechanism) -> Callable[[str, str], Link]:
    hook, target = request.hook, request.target
    if mechanism.name in ("lsm", "fentry"):
        return lambda name, side: opened.attach(name)
    if mechanism.name == "kprobe.multi":
        return lambda name, side: opened.attach_kprobe_multi(name, hook.function(side), side == "exit")
    if mechanism.name == "kprobe":
        return lambda name, side: opened.attach_kprobe(name, hook.function(side), side == "exit")
    if target is None:
        raise KernelError("a uprobe needs the binary that holds the function")
    return lambda name, side: opened.attach_uprobe(name, target.binary, target.function, side == "exit")


def boot_ns() -> int:
    """Now, on the clock the kernel programs use for first_ns."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
