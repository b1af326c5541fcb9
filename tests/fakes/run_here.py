# SPDX-License-Identifier: Apache-2.0
"""`make run`: KubeNPU in the foreground from this source tree, until Ctrl-C.

On a machine with accelerators it counts them, with directories of its own beside an installed KubeNPU's; elsewhere it
starts the simulated node. Needs root. Detaches and removes everything on every way out.

    python -m tests.fakes.run_here [--port PORT]
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

from kubenpu.devices.discovery import discover
from kubenpu.devices.tables import load_tables
from kubenpu.model.errors import ConfigError, KernelError, KubeNpuError
from tests.fakes import simulated_node
from tests.fakes.own_service import OwnService, mount_bpffs, only_one, require_free_port
from tests.fakes.sim_cgroups import CgroupTree, cgroup2_mount
from tests.fakes.simulated_node import PORT, SIGNALS, Stopped

NAME = "kubenpu-here"


def has_accelerators(sysfs: Path = Path("/sys")) -> bool:
    return bool(discover(sysfs, load_tables().tables).devices)


def run(port: int) -> NoReturn:
    """Loads the probe, runs kubenpud until a signal comes, and takes everything away again. KernelError if it ends."""
    if os.geteuid() != 0:
        raise ConfigError("loading BPF programs needs root", "Run it as root: sudo make run")
    service = OwnService(NAME, port, CgroupTree(cgroup2_mount(), NAME))
    with ExitStack() as stack:
        stack.enter_context(only_one(NAME))
        mount_bpffs()
        service.remove()
        require_free_port(port)
        stack.callback(service.remove)
        service.prepare({})
        service.load_probe()
        daemon = stack.enter_context(service.daemon())
        ask = f".venv/bin/kubenpuctl top --bus {service.bus_address}"
        print(f"\n  curl -s localhost:{port}/metrics\n  {ask}\n", flush=True)
        raise KernelError(f"kubenpud ended with exit code {daemon.wait()}")


def main() -> int:
    parser = argparse.ArgumentParser(description="run KubeNPU from this source tree, on real or simulated accelerators")
    parser.add_argument("--port", type=int, default=PORT, help=f"where kubenpud serves its metrics (default: {PORT})")
    args = parser.parse_args()
    if not has_accelerators():
        return simulated_node.main()
    for number in SIGNALS:
        signal.signal(number, simulated_node.stop)
    try:
        run(args.port)
    except KubeNpuError as e:
        print(f"make run: {e}", file=sys.stderr)
        return 1
    except Stopped:
        return 0


if __name__ == "__main__":
    sys.exit(main())
