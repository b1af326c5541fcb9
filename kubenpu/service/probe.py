# SPDX-License-Identifier: Apache-2.0
"""kubenpu-probe: loads the counting programs, attaches and pins them, tells the kernel the devices, and exits.

The only privileged part (CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN). `load` on an attached hook replaces the code without
missing a call; `unload` detaches and removes every pin. Keeps nothing running and spawns nothing.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from kubenpu import __version__
from kubenpu.config.settings import Settings, add_config_flag, read_settings
from kubenpu.kernel import attach
from kubenpu.kernel.libbpf import Messages
from kubenpu.kernel.pins import Pins, locked, read_state, write_state
from kubenpu.kernel.store import CounterStore
from kubenpu.kernel.support import obstacles, read_facts
from kubenpu.model.errors import KernelError, KubeNpuError
from kubenpu.model.sample import HookStatus
from kubenpu.service.inventory import apply_rules, read_inventory

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
        "--mechanism", choices=("auto", *attach.LADDER), default="auto", help="default: the best that works"
    )
    load.add_argument("--object", type=Path, default=None, help=argparse.SUPPRESS)
    load.add_argument("--uprobe", metavar="BINARY:FUNCTION", help="hook a user-space function (simulated node, tests)")
    commands.add_parser("unload", help="detach and remove all pins; the totals since boot are gone")
    commands.add_parser("status", help="what is attached, as JSON")
    return parser


def load(settings: Settings, options: argparse.Namespace) -> HookStatus:
    """Loads and attaches, writes the rules and the state file. Raises KernelError with the remedy."""
    facts = read_facts()
    found = obstacles(facts)
    if found:
        raise KernelError("; ".join(o.cause for o in found), ". ".join(dict.fromkeys(o.remedy for o in found)))
    mechanisms: tuple[str, ...] = attach.LADDER
    target = attach.Target()
    if options.uprobe:
        binary, _, function = options.uprobe.rpartition(":")
        mechanisms, target = ("uprobe",), attach.Target(function, Path(binary))
    elif options.mechanism != "auto":
        mechanisms = (options.mechanism,)
    pins = Pins(settings.pin_directory)
    with locked(settings.run_directory, "probe"):
        before, module = _last_state(settings.run_directory)
        if module != _drm_module() and not options.uprobe:
            attach.detach(pins)  # a hook on a module that was unloaded since is dead, whatever its pins say
        missing = attach.drop_incomplete(pins)
        if missing:
            log.warning("pins were missing (%s): totals since boot are gone, counting begins anew", ", ".join(missing))
        since = next((h.since_ns for h in before if pins.map("cells").exists()), attach.boot_ns())
        request = attach.LoadRequest(
            options.object or attach.object_path(), pins, settings.max_slots, mechanisms, target, since
        )
        messages = Messages(options.debug)
        write_state(settings.run_directory, before, module)  # if that is refused, nothing is attached yet
        if not pins.map("cells").exists():
            attach.make_maps(request, facts, messages)
        _write_rules(settings)
        status = attach.load(request, facts, messages)
        write_state(settings.run_directory, (status,), _drm_module())
    return status


def _write_rules(settings: Settings) -> None:
    """Before the hook is attached, so that not even the first call finds its device unknown."""
    store = CounterStore(settings.pin_directory)
    try:
        apply_rules(store, read_inventory(settings.sysfs, settings.drivers_directory), settings.run_directory)
        if store.slots_max != settings.max_slots:
            log.warning("kernel.max_slots: %d stays until unload and load (restart)", store.slots_max)
    finally:
        store.close()


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
            status = load(settings, options)
            log.info("%s: %s%s", status.hook, status.mechanism, f" ({status.reason})" if status.reason else "")
        elif options.command == "unload":
            _unload(settings)
        else:
            _status(settings)
    except KubeNpuError as e:
        log.error("kubenpu-probe: %s", e)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
