# SPDX-License-Identifier: Apache-2.0
"""kubenpu-probe: loads the counting programs, attaches and pins them, tells the kernel the devices, and exits.

The only privileged part (CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN). `load` on an attached hook replaces the code without
missing a call; `unload` detaches and removes every pin. Keeps nothing running and spawns nothing.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from kubenpu import __version__
from kubenpu.config.settings import Settings, add_config_flag, read_settings
from kubenpu.kernel import attach, clients, scheduler
from kubenpu.kernel.hooks import DRM_IOCTL, HOOKS, MECHANISM_NAMES, NO_DEVICE, UPROBE, Hook
from kubenpu.kernel.job_times import STEM
from kubenpu.kernel.libbpf import Messages
from kubenpu.kernel.pins import Pins, locked, read_state, write_state
from kubenpu.kernel.store import CounterStore
from kubenpu.kernel.support import AUTO, BCC, CORE, LOADERS, KernelFacts, choose_loader, obstacles, read_facts
from kubenpu.model.errors import KernelError, KubeNpuError
from kubenpu.model.sample import OFF, HookStatus
from kubenpu.service.inventory import Inventory, apply_rules, needs_file_ioctl, read_inventory, tell

log = logging.getLogger(__name__)
DRM_MODULE = Path("/sys/module/drm")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kubenpu-probe", description="Load, replace or remove the programs that count accelerator ioctls."
    )
    parser.add_argument("--version", action="version", version=f"kubenpu-probe {__version__}")
    add_config_flag(parser)
    parser.add_argument("--debug", action="store_true", help="print libbpf's messages and the full verifier log")
    commands = parser.add_subparsers(dest="command", required=True, metavar="load|unload|status")
    load = commands.add_parser("load", help="load and attach, or replace the code of an attached hook")
    load.add_argument(
        "--mechanism",
        choices=("auto", *MECHANISM_NAMES),
        default="auto",
        help="how a hook is attached that is not attached yet (default: the best that works)",
    )
    load.add_argument(
        "--loader",
        choices=LOADERS,
        default=AUTO,
        help="core: by the kernel's BTF; bcc: by its headers, on kernels without (default: whichever is needed)",
    )
    load.add_argument("--objects", type=Path, default=None, help=argparse.SUPPRESS)
    load.add_argument(
        "--uprobe", type=_target, metavar="BINARY:FUNCTION", help="hook a user-space function (simulated node, tests)"
    )
    commands.add_parser("unload", help="detach and remove all pins; the totals since boot are gone")
    commands.add_parser("status", help="what is attached, as JSON")
    return parser


def _target(text: str) -> attach.Target:
    binary, _, function = text.rpartition(":")
    if not binary or not function:
        raise argparse.ArgumentTypeError(f"{text!r} is not BINARY:FUNCTION, such as /usr/bin/work:submit")
    return attach.Target(function, Path(binary))


def load(settings: Settings, options: argparse.Namespace) -> tuple[HookStatus, ...]:
    """Loads and attaches every hook that is needed, writes the rules and the state file. Raises KernelError with the
    remedy."""
    facts = read_facts()
    found = obstacles(facts, options.loader)
    if found:
        raise KernelError("; ".join(o.cause for o in found), ". ".join(dict.fromkeys(o.remedy for o in found)))
    pins = Pins(settings.pin_directory)
    with locked(settings.run_directory, "probe"):
        before, module = _last_state(settings.run_directory)
        if module != _drm_module() and not options.uprobe:
            attach.detach(pins, DRM_IOCTL)  # a hook on a module that was unloaded since is dead, whatever its pins say
        missing = attach.drop_incomplete(pins)
        if missing:
            log.warning("pins were missing (%s): totals since boot are gone, counting begins anew", ", ".join(missing))
        messages = Messages(options.debug)
        write_state(settings.run_directory, before, module)  # if that is refused, nothing is attached yet
        kernel = _layout(settings, facts, options, messages)
        requests = [replace(_request(hook, settings, options, before), kernel=kernel) for hook in HOOKS]
        for request in requests:
            if not all(pins.map(name).exists() for name in ("cells", *request.hook.maps)):
                attach.make_maps(request, facts, messages)
        inventory = _write_rules(settings)
        last = {status.hook: status for status in before}
        needed = {request.hook.name: request.hook is DRM_IOCTL or needs_file_ioctl(inventory) for request in requests}
        hooks = tuple(
            _load_hook(request, facts, messages, needed[request.hook.name], last.get(request.hook.name))
            for request in requests
        )
        write_state(settings.run_directory, hooks, _drm_module())
        if not options.uprobe:
            _pin_clients(pins, facts, options, messages)
            _time_jobs(pins, facts, inventory, options, messages)
    return hooks


def _layout(settings: Settings, facts: KernelFacts, options: argparse.Namespace, messages: Messages) -> Path | None:
    """What loader bcc found out about this kernel; loader core needs nothing."""
    if choose_loader(facts, options.loader) == CORE:
        return None
    from kubenpu.kernel.bcc_loader import write_layout  # noqa: PLC0415 - hardly any kernel needs it

    return write_layout(_object_path(DRM_IOCTL.name, options), settings.run_directory, messages)


def _request(
    hook: Hook, settings: Settings, options: argparse.Namespace, before: Sequence[HookStatus]
) -> attach.LoadRequest:
    pins = Pins(settings.pin_directory)
    mechanisms = hook.ladder
    if options.uprobe:
        mechanisms = (UPROBE,)
    elif options.mechanism in mechanisms:
        mechanisms = (options.mechanism,)
    began = (h.since_ns for h in before if h.hook == hook.name and h.mechanism != OFF and pins.attached(hook))
    since, path = next(began, attach.boot_ns()), _object_path(hook.name, options)
    return attach.LoadRequest(hook, path, pins, _slots(settings), mechanisms, since, options.uprobe)


def _slots(settings: Settings) -> int:
    """The kernel's search for a free cell wants a power of two."""
    return 1 << (settings.max_slots - 1).bit_length()


def _object_path(stem: str, options: argparse.Namespace) -> Path:
    return Path(options.objects, f"{stem}.bpf.o") if options.objects else attach.object_path(stem)


def _pin_clients(pins: Pins, facts: KernelFacts, options: argparse.Namespace, messages: Messages) -> None:
    """Without it there is no device time and no memory; calls are counted all the same."""
    if not facts.btf:  # an iterator is attached by the kernel's own types, which no headers can stand in for
        log.warning("no device time and no device memory: they need a kernel with BTF")
        return
    try:
        clients.pin_iterator(pins, _object_path(clients.STEM, options), messages)
    except KernelError as e:
        log.error("kubenpu-probe: %s: %s", clients.STEM, e)


def _time_jobs(
    pins: Pins, facts: KernelFacts, inventory: Inventory, options: argparse.Namespace, messages: Messages
) -> None:
    """While there is a device whose time is known by the kernel's GPU scheduler alone."""
    try:
        if inventory.scheduled_drivers and facts.btf:
            path = _object_path(STEM, options)
            scheduler.attach_timing(pins, path, inventory.scheduled_drivers, messages)
        else:
            scheduler.detach_timing(pins)
    except KernelError as e:
        log.error("kubenpu-probe: %s: %s", STEM, e)


def _load_hook(
    request: attach.LoadRequest, facts: KernelFacts, messages: Messages, needed: bool, last: HookStatus | None
) -> HookStatus:
    """What is not needed is taken off. Once its maps are there, a hook that fails takes the first one, drm_ioctl, not
    down; one whose code could not be replaced goes on with what it had."""
    hook = request.hook
    off = HookStatus(hook.name, OFF, NO_DEVICE, request.since_ns, needed, request.loader)
    if not needed:
        attach.detach(request.pins, hook)
        return off
    try:
        status = attach.load(request, facts, messages)
    except KernelError as e:
        if hook is DRM_IOCTL:
            raise
        log.error("kubenpu-probe: %s: %s", hook.name, e)
        if last is not None and request.pins.attached(hook):
            return replace(last, reason=f"its program was not replaced: {e.cause.splitlines()[0]}")
        return replace(off, reason=e.cause.splitlines()[0])
    if status.mechanism not in (OFF, *request.mechanisms):
        log.warning("%s stays attached by %s: another mechanism takes unload, then load", hook.name, status.mechanism)
    return status


def _write_rules(settings: Settings) -> Inventory:
    """Before a hook is attached, so that not even the first call finds its device unknown. Returns the devices."""
    store = CounterStore(settings.pin_directory)
    try:
        inventory = read_inventory(settings.sysfs, settings.drivers_directory)
        tell([*inventory.troubles, *apply_rules(store, inventory, settings.run_directory)])
        if store.slots_max != _slots(settings):
            log.warning("kernel.max_slots: %d stays until unload and load (restart)", store.slots_max)
    finally:
        store.close()
    return inventory


def _last_state(run_directory: Path) -> tuple[tuple[HookStatus, ...], int | None]:
    """As read_state(); a file that cannot be used is replaced by this load."""
    try:
        return read_state(run_directory)
    except KernelError as e:
        log.warning("kubenpu-probe: %s", e.cause)
        return (), None


def _drm_module() -> int | None:
    """Tells one loading of drm from the next: the inode of its sysfs directory."""
    try:
        return DRM_MODULE.stat().st_ino
    except OSError:
        return None


def _unload(settings: Settings) -> None:
    with locked(settings.run_directory, "probe"):
        removed = attach.unload(Pins(settings.pin_directory))
        write_state(settings.run_directory, (), None)
    log.info("removed %d pins below %s", len(removed), settings.pin_directory)


def _status(settings: Settings) -> None:
    hooks, _ = read_state(settings.run_directory)
    json.dump([asdict(h) for h in hooks], sys.stdout, indent=1)
    print()


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        settings = read_settings(options)
        if options.command == "load":
            for status in load(settings, options):
                by = f", loader {BCC}" if status.loader == BCC else ""
                reason = f" ({status.reason})" if status.reason else ""
                log.info("%s: %s%s%s", status.hook, status.mechanism, by, reason)
        elif options.command == "unload":
            _unload(settings)
        else:
            _status(settings)
            sys.stdout.flush()
    except KubeNpuError as e:
        log.error("kubenpu-probe: %s", e)
        return 1
    except BrokenPipeError:  # `| head` is no error; nothing more can be written, not even at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
