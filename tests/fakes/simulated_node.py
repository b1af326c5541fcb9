# SPDX-License-Identifier: Apache-2.0
"""A node with accelerators, on a machine that has none: what `make run` shows where there is no hardware.

Simulated are the devices (a sysfs tree), the pods (real cgroups, with processes that call a function instead of
ioctl) and the container runtime (a CRI server). Real are the counting in the kernel (a uprobe on that function runs
the same code), its pinned maps, the resolver, the ledger, kubenpud and the metrics. Every workload keeps a tally of
its own, which is compared with the metrics. Owns /run/kubenpu-sim, /sys/fs/bpf/kubenpu-sim and the cgroup
kubenpu-sim, and removes them on every way out, at the next start if it was killed. Needs root.

    python -m tests.fakes.simulated_node [--seconds N] [--port PORT]
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from kubenpu.cli.output import render_table
from kubenpu.exporters.scrape import Row, fetch
from kubenpu.model.errors import ConfigError, KernelError, KubeNpuError
from tests.fakes.cri_server import FakeCri, FakePod
from tests.fakes.own_service import OwnService, mount_bpffs, only_one, require_free_port
from tests.fakes.sim_cgroups import CgroupTree, cgroup2_mount
from tests.fakes.sim_parity import HEADER, compare, find_faults
from tests.fakes.sim_plan import DEVICES, PODS, WORKLOADS, SimPod, SimWorkload
from tests.fakes.sim_sysfs import write_sysfs
from tests.fakes.sim_tally import TallyFile, pause_all, wait_until

NAME = "kubenpu-sim"
PORT = 10074
PROGRAM = Path(__file__).parents[2] / "build" / "sim" / "sim_workload"
FUNCTION = "kubenpu_sim_ioctl"
SHOW_AFTER_SECONDS = 5.0
SETTLE_SECONDS = 15.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal asked us to end; not an error, and nothing may swallow it."""


@dataclass(frozen=True, slots=True)
class Running:
    """A workload, its process and its tally."""

    plan: SimWorkload
    process: subprocess.Popen[str]
    tally: TallyFile


def fake_pod(pod: SimPod) -> FakePod:
    """What the container runtime says of a pod."""
    containers = {pod.container_id(name): name for name in pod.containers}
    return FakePod(pod.uid, pod.name, pod.namespace, pod.container_id(""), containers)


def workload_command(plan: SimWorkload, tally: Path, program: Path = PROGRAM) -> list[str]:
    steps = [f"{s.nr:#x}:{int(s.kind)}:{s.times}:{s.failing}" for s in plan.steps]
    numbers = (plan.node.kernel_dev, plan.calls_per_second, plan.wait_microseconds)
    return [str(program), str(tally), *map(str, numbers), *steps]


@contextmanager
def simulated_node(service: OwnService, program: Path = PROGRAM) -> Iterator[list[Running]]:
    """The whole node, running; gone at the end of the block, however that comes.

    What is counted is calls of the file `program`: nodes beside each other need a copy each.
    """
    with ExitStack() as stack:
        stack.enter_context(only_one(service.name))
        mount_bpffs()
        service.remove()
        require_free_port(service.port)
        stack.callback(service.remove)
        sysfs, socket = service.run_directory / "sys", service.run_directory / "cri.sock"
        service.prepare(
            {
                "kernel": {"max_slots": 1024},
                "identity": {"cri_sockets": [str(socket)]},
                "ledger": {"retention_seconds": 60},
                "devices": {"sysfs": str(sysfs), "drivers_directory": str(service.run_directory / "drivers.d")},
            }
        )
        write_sysfs(sysfs, DEVICES)
        service.load_probe("--uprobe", f"{program}:{FUNCTION}")
        runtime = FakeCri(socket, map(fake_pod, PODS))
        runtime.start()
        stack.callback(runtime.stop)
        daemon = stack.enter_context(service.daemon())
        running = [_start(service, i, plan, program) for i, plan in enumerate(WORKLOADS)]
        for each in running:
            stack.callback(each.tally.close)
        yield running
        if daemon.poll() is not None:
            raise KernelError(f"kubenpud ended with exit code {daemon.returncode}")


def _start(service: OwnService, number: int, plan: SimWorkload, program: Path) -> Running:
    tally = TallyFile(service.run_directory / f"tally-{number}")
    command = workload_command(plan, tally.path, program)
    return Running(plan, service.tree.start(plan.cgroup, command, quiet=True), tally)


def report(running: Sequence[Running], rows: Sequence[Row]) -> bool:
    """Prints tallies beside metrics; True when all is equal."""
    tallies = [(r.plan, r.tally.read()) for r in running]
    comparisons = compare(tallies, rows)
    faults = find_faults(tallies, rows)
    print("\nSIMULATED NODE: what the workloads did, by their own tallies, and what the metrics say of them\n")
    print(render_table(HEADER, [c.cells() for c in comparisons]))
    for fault in faults:
        print(fault)
    right = not faults and all(c.equal for c in comparisons)
    print("Equal, call by call and kind by kind." if right else "NOT EQUAL.", flush=True)
    return right


def settled_rows(service: OwnService, running: Sequence[Running]) -> list[Row]:
    """The metrics when they agree with the tallies; the last ones when they do not within seconds.

    Nothing is called meanwhile: only names may still be on their way.
    """
    tallies = [(r.plan, r.tally.read()) for r in running]
    rows: list[Row] = []

    def agree() -> bool:
        rows[:] = fetch(service.url)
        return not find_faults(tallies, rows) and all(c.equal for c in compare(tallies, rows))

    wait_until(agree, SETTLE_SECONDS)
    return rows


def _compare_paused(service: OwnService, running: Sequence[Running]) -> bool:
    tallies = [r.tally for r in running]
    if not pause_all(tallies):
        raise KernelError("a workload does not answer")
    right = report(running, settled_rows(service, running))
    for tally in tallies:
        tally.resume()
    return right


def _compare_stopped(service: OwnService, running: Sequence[Running]) -> bool:
    for each in running:
        each.tally.ask_stop()
    codes = [each.process.wait() for each in running]
    if any(codes):
        raise KernelError(f"workloads ended with exit codes {codes}")
    return report(running, settled_rows(service, running))


def _introduce(service: OwnService) -> None:
    sysfs = service.run_directory / "sys"
    print(
        f"""
SIMULATED NODE: {len(DEVICES)} devices and {len(PODS)} pods that do not exist, counted by the real thing.

  curl -s localhost:{service.port}/metrics | grep ioctl
  .venv/bin/kubenpuctl top --bus {service.bus_address}
  .venv/bin/kubenpuctl pods --bus {service.bus_address}
  .venv/bin/kubenpuctl devices -o wide --sysfs {sysfs} --bus {service.bus_address}
  .venv/bin/kubenpuctl doctor --config.file {service.config}
""",
        flush=True,
    )


def run(port: int, seconds: float | None) -> int:
    if os.geteuid() != 0:
        raise ConfigError("the simulated node loads BPF programs and makes cgroups", "Run it as root: sudo make run")
    if not PROGRAM.is_file():
        raise ConfigError(f"{PROGRAM} is not built", "Run: make build")
    service = OwnService(NAME, port, CgroupTree(cgroup2_mount(), NAME))
    with simulated_node(service) as running:
        try:
            _introduce(service)
            return _show(service, running, seconds)
        finally:
            ignore_signals()  # what follows is the cleaning up


def _show(service: OwnService, running: Sequence[Running], seconds: float | None) -> int:
    if seconds is not None:
        time.sleep(seconds)
        return 0 if _compare_stopped(service, running) else 1
    time.sleep(SHOW_AFTER_SECONDS)
    _compare_paused(service, running)
    print("It goes on until Ctrl-C.", flush=True)
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)  # its children have no end but by us
    print("simulated node: a process of it is dead", file=sys.stderr)
    return 1


def stop(_number: int, _frame: FrameType | None) -> None:
    ignore_signals()
    raise Stopped


def ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def main() -> int:
    parser = argparse.ArgumentParser(description="a node with accelerators and pods that do not exist")
    parser.add_argument("--seconds", type=float, help="run for so long, compare exactly, exit 0 when all is equal")
    parser.add_argument("--port", type=int, default=PORT, help=f"where kubenpud serves its metrics (default: {PORT})")
    args = parser.parse_args()
    for number in SIGNALS:
        signal.signal(number, stop)
    try:
        return run(args.port, args.seconds)
    except KubeNpuError as e:
        print(f"simulated node: {e}", file=sys.stderr)
        return 1
    except Stopped:
        print("\nsimulated node: removed", flush=True)
        return 0 if args.seconds is None else 130


if __name__ == "__main__":
    sys.exit(main())
