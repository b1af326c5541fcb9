# SPDX-License-Identifier: Apache-2.0
"""Every driver table through the real DRM core: N calls of each listed ioctl on a pretended device are N calls counted.

The tables are read as data: a new one is driven without a change here. Devices come from tests/vm/module.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.vm.guest import fake, handmade, pods, service, tally, wait
from tests.vm.guest.fake import FakeDevice
from tests.vm.guest.pods import Runtime

if TYPE_CHECKING:
    from kubenpu.model.device import Interface

pytestmark = pytest.mark.usefixtures("counting")

MODEL_DRIVER = "i915"
SUBMIT, WAIT = 0x69, 0x6C  # of that driver
REAL = {"virtio_gpu", "vgem"}  # these have devices of their own in a guest, and cases in test_counting.py
CLASSES = ("drm", "accel")


@dataclass(frozen=True, slots=True)
class Table:
    """A driver's table, and how the module is to pretend its device: NAME, or /NAME without a driver."""

    name: str
    pretence: str
    kinds: Mapping[int, str]


def tables(subsystem: str) -> list[Table]:
    from kubenpu.devices.tables import load_tables

    found = []
    for table in load_tables(Path("/nonexistent")).tables:
        interface = table.interface(subsystem)
        if interface is not None and table.name not in REAL:
            names = interface.uevent_drivers or [f"/{interface.sysfs_names[0].replace('*', '1')}"]
            found.append(Table(table.name, names[0], {rule.nr: rule.kind.label for rule in interface.ioctls}))
    return found


def core_kinds() -> dict[int, str]:
    from kubenpu.devices.tables import load_tables

    core = load_tables(Path("/nonexistent")).core
    return {rule.nr: rule.kind.label for interface in core.interfaces for rule in interface.ioctls}


def script(nrs: Sequence[int]) -> str:
    """Each number, in counts that tell neighbours apart, and one number that no table has."""
    return ",".join(f"{nr:#x}:{1 + index % 5}" for index, nr in enumerate(sorted({*nrs, 0x9F})))


def device_of(pretence: str, among: Sequence[FakeDevice]) -> FakeDevice:
    """The first device pretended so."""
    name = pretence.removeprefix("/")
    driver = "" if pretence.startswith("/") else name
    places = [one for one in among if one.driver == driver and f"{one.address}.".startswith(f"{name}.")]
    assert places, f"no device of {pretence} among {among}"
    return places[0]


@pytest.fixture(params=CLASSES)
def pretended(request: pytest.FixtureRequest) -> Iterator[list[tuple[Table, FakeDevice]]]:
    """A device for each table of a subsystem."""
    wanted = tables(request.param)
    names = list(dict.fromkeys(table.pretence for table in wanted))
    with fake.loaded(**{request.param: names}):
        found = fake.devices()
        pairs = [(table, device_of(table.pretence, found)) for table in wanted]
        fake.wait_until_known(*(device.address for _, device in pairs))
        yield pairs
    wait.until("the hook of nouveau off, by itself", lambda: service.mechanism("file_ioctl") == "off", 60)


@pytest.mark.guests("trixie73")  # the tables are data; the function that all calls pass is tried on each kernel
@pytest.mark.deadline(300)
def test_every_table_in_a_pod_and_outside(runtime: Runtime, pretended: list[tuple[Table, FakeDevice]]) -> None:
    with pods.pod(runtime, "all-drivers") as pod:
        nodes = [node for _, device in pretended for node in device.nodes]
        container = pod.run("main", ["--hold"], devices=nodes)
        for table, device in pretended:
            kinds = {0x9F: "other", **table.kinds}
            words = ["--node", device.nodes[-1], "--do", script(list(table.kinds))]
            inside = handmade.run(container.cgroup, *words, "--threads", "2")
            outside = tally.run(*words)
            labels = {"device": device.address, "vendor": table.name}
            service.assert_exact(inside, kinds, device.address, vendor=table.name, pod=pod.name, container="main")
            wait.until("the unit", lambda on=labels: service.counted("kubenpu_host_ioctl_total", **on))  # type: ignore[misc]
            host = service.counted("kubenpu_host_ioctl_total", **labels)
            total = service.counted("kubenpu_device_ioctl_total", **labels)
            assert host == service.by_kind(outside.calls, kinds), table.name
            assert total == service.by_kind((inside + outside).calls, kinds), table.name
        assert container.stop() == 0
    service.assert_conserved()


@pytest.fixture
def model() -> Iterator[list[FakeDevice]]:
    """Two devices of one driver, known and counting."""
    with fake.loaded(drm=[MODEL_DRIVER, MODEL_DRIVER]):
        found = [one for one in fake.devices() if one.driver == MODEL_DRIVER]
        fake.wait_until_known(*(one.address for one in found))
        yield found


def total(address: str) -> dict[str, int]:
    return service.counted("kubenpu_device_ioctl_total", device=address)


def counted(device: FakeDevice) -> dict[str, int]:
    return total(device.address)


def grown(device: FakeDevice, before: Mapping[str, int]) -> dict[str, int]:
    return {kind: n - before.get(kind, 0) for kind, n in counted(device).items() if n != before.get(kind, 0)}


@pytest.mark.every_machine
def test_every_call_of_the_core(model: list[FakeDevice]) -> None:
    """Most of them fail with an empty argument; calls and errors are exact, kind by kind."""
    device, kinds = model[0], core_kinds()
    with handmade.cgroup("/system.slice/core-calls.service"):
        words = ["--node", device.nodes[0], "--do", ",".join(f"{nr:#x}:3" for nr in sorted(kinds))]
        done = handmade.run("/system.slice/core-calls.service", *words)
        unit = {"unit": "core-calls.service", "device": device.address}
        wait.until("the unit", lambda: service.counted("kubenpu_host_ioctl_total", **unit))
        assert service.counted("kubenpu_host_ioctl_total", **unit) == service.by_kind(done.calls, kinds)
        assert service.counted("kubenpu_host_ioctl_errors_total", **unit) == service.by_kind(done.error, kinds)
    assert 0 < done.total_errors < done.total
    service.assert_conserved()


@pytest.mark.every_machine
def test_nodes_of_one_device_and_devices_of_one_driver(model: list[FakeDevice]) -> None:
    one, two = model
    before = [counted(one), counted(two)]
    done = tally.run("--node", one.nodes[0], "--do", f"{SUBMIT:#x}:10")
    done += tally.run("--node", one.nodes[1], "--do", f"{SUBMIT:#x}:20", "--threads", "4")
    other = tally.run("--node", two.nodes[1], "--do", f"{SUBMIT:#x}:7")
    assert grown(one, before[0]) == {"submit": done.total} == {"submit": 90}
    assert grown(two, before[1]) == {"submit": other.total} == {"submit": 7}


# Not where a kprobe has few places for returns, which calls that wait keep: what it misses is declared.
@pytest.mark.guests("bookworm", "trixie", "trixie73", "trixie-arm64", "trixie73-arm64")
def test_calls_that_fail_and_calls_that_wait(model: list[FakeDevice]) -> None:
    device = model[1]
    fake.set_parameter("err_nr", SUBMIT)
    fake.set_parameter("slow_nr", WAIT)
    fake.set_parameter("slow_ms", 50)
    with handmade.cgroup("/system.slice/slow-calls.service"):
        began = time.monotonic()
        words = ["--node", device.nodes[1], "--do", f"{SUBMIT:#x}:11,{WAIT:#x}:4,0x5b:3", "--threads", "3"]
        done = handmade.run("/system.slice/slow-calls.service", *words)
        elapsed = time.monotonic() - began
        unit = {"unit": "slow-calls.service", "device": device.address}
        wait.until("the unit", lambda: service.counted("kubenpu_host_ioctl_total", **unit))
        assert {nr: n for nr, n in done.error.items() if n} == {SUBMIT: 33}
        assert service.counted("kubenpu_host_ioctl_errors_total", **unit) == {"submit": 33}
        waited = service.value("kubenpu_host_ioctl_wait_seconds_total", **unit)
    assert 12 * 0.05 <= waited <= 3 * elapsed


NVIF, PUSHBUF, CPU_PREP = 0x47, 0x81, 0x82


@pytest.mark.every_machine
def test_nouveaus_object_call_which_does_not_pass_drm_ioctl() -> None:
    """Exact by the kind that its argument says, of 32-bit programs and with any type byte, too. What passes drm_ioctl
    is not counted twice. How calls end is not known of all, so it is shown of none."""
    new = ["--argument", bytes((0, 2)).hex()]
    unmap = ["--argument", bytes((0, 8)).hex()]
    made = (
        ("context", ["--do", f"{NVIF:#x}:300", "--threads", "4", *new]),
        ("context", ["--do", f"{NVIF:#x}:30", "--compat", *new]),
        ("context", ["--do", f"{NVIF:#x}:3", "--type", "Z", *new]),
        ("map", ["--do", f"{NVIF:#x}:70", "--threads", "2", *unmap]),
        ("other", ["--do", f"{NVIF:#x}:5,0x9f:4"]),
        ("submit", ["--do", f"{PUSHBUF:#x}:11", "--threads", "2"]),
        ("wait", ["--do", f"{CPU_PREP:#x}:6"]),
    )
    with fake.loaded(drm=["nouveau"]), handmade.cgroup("/system.slice/object-calls.service"):
        (gpu,) = (one for one in fake.devices() if one.driver == "nouveau")
        wait.until("the hook, by itself", lambda: service.mechanism("file_ioctl") == service.BEST_FILE_MECHANISM, 60)
        fake.wait_until_known(gpu.address)
        fake.set_parameter("err_nr", PUSHBUF)
        wanted: dict[str, int] = {}
        for node in gpu.nodes:
            for kind, words in made:
                done = handmade.run("/system.slice/object-calls.service", "--node", node, *words)
                wanted[kind] = wanted.get(kind, 0) + done.total
        fake.set_parameter("err_nr", -1)
        unit = {"unit": "object-calls.service", "device": gpu.address}
        wait.until("the unit", lambda: service.counted("kubenpu_host_ioctl_total", **unit))
        assert service.counted("kubenpu_host_ioctl_total", **unit) == wanted
        assert service.counted("kubenpu_device_ioctl_total", device=gpu.address) == wanted
        assert not service.select(service.rows(), "kubenpu_host_ioctl_errors_total", **unit)
        assert not service.select(service.rows(), "kubenpu_host_ioctl_wait_seconds_total", **unit)
        service.assert_conserved()
    wait.until("the hook off, by itself", lambda: service.mechanism("file_ioctl") == "off", 60)


def test_odd_events_change_nothing(model: list[FakeDevice]) -> None:
    """Events that somebody made up: a device that is said to be gone, and is not; keys that mean nothing."""
    device = model[0]
    entry = Path("/sys/class/drm", Path(device.nodes[1]).name)
    before, known = counted(device), service.devices()
    done = tally.NOTHING
    for event in ("remove", "add", "change 11111111-2222-3333-4444-555555555555 WEDGED=rebind DRIVER=xe", "offline"):
        (entry / "uevent").write_text(event)
        (entry / "device/uevent").write_text(event)
        done += tally.run("--node", device.nodes[1], "--do", f"{SUBMIT:#x}:100")
    subprocess.run(["udevadm", "settle"], check=True)
    assert service.devices() == known
    assert grown(device, before) == {"submit": done.total}
    service.assert_conserved()


def test_the_driver_comes_and_goes_under_load() -> None:
    """rmmod in the gaps between programs that use the device. The label stays, as it is the PCI address."""
    address = fake.PCI[0]
    parameters = {"pci": [f"{MODEL_DRIVER}@{address}"], "drm": [f"{MODEL_DRIVER}@{address}"]}
    fake.load(**parameters)
    fake.wait_until_known(address)
    (device,) = (one for one in fake.devices() if one.address == address)
    before, unknown = counted(device), service.dropped()["device_unknown"]
    # One thread: a program of two whose second finds no device would make calls and tell none.
    command = f"while :; do {tally.WORKLOAD} --node {device.nodes[1]} --do {SUBMIT:#x}:50 2>/dev/null; done"
    with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, text=True) as load:
        for _ in range(5):
            wait.until("a gap", _try_unload, 20, 0.002)
            fake.load(**parameters)
        load.terminate()
        assert load.stdout is not None
        done = tally.total(tally.parse(line) for line in load.stdout.read().splitlines())
    assert done.total > 500
    fake.unload()
    wait.until("its end", lambda: address not in service.devices(), 10)
    # What was called before kubenpud knew the device again has no rule, and says so. It may also have looked while the
    # PCI function had no driver, and then a moment's calls have no kind.
    lost = service.dropped()["device_unknown"] - unknown
    assert sum(grown(device, before).values()) + lost == done.total
    assert grown(device, before).keys() <= {"submit", "other"}
    service.stop()  # the losses go with the counters: other cases expect none
    service.start()


def _try_unload() -> bool:
    return subprocess.run(["rmmod", fake.MODULE], check=False, capture_output=True).returncode == 0


# Classes that are the kernel's own: the module cannot make devices of them.
FOREIGN = ("accel", "misc", "vfio")


@pytest.mark.guests("trixie")  # the tables are data; how such calls are seen is tried on each kernel
@pytest.mark.deadline(300)
def test_every_table_of_a_character_device() -> None:
    """Each interface of each table on a node of its name: every listed call, exact by kind."""
    wanted = list(_interfaces())
    names = {name: sysfs_class for name, sysfs_class, _, _ in wanted}
    nodes = [f"{name.replace('/', '!')}:0:0:{sysfs_class}" for name, sysfs_class in names.items()]
    with fake.loaded(chr=nodes):
        wait.until("the hook, by itself", lambda: service.mechanism("file_ioctl") == "lsm", 60)
        for name, _, vendor, interface in wanted:
            address = name.replace("/", "!")
            fake.wait_until_known(address)
            before, steps, expected = total(address), [], dict[str, int]()
            for index, rule in enumerate(interface.ioctls):
                cmd = rule.cmd if rule.cmd is not None else rule.type << 8 | rule.nr
                count = 1 + index % 3
                steps.append(f"={cmd:#x}:{count}")
                expected[rule.kind.label] = expected.get(rule.kind.label, 0) + count
            done = tally.run("--node", f"/dev/{name}", "--do", ",".join(steps))
            assert done.total == sum(expected.values())
            grown_by = {kind: n - before.get(kind, 0) for kind, n in total(address).items()}
            assert {kind: n for kind, n in grown_by.items() if n} == expected, vendor
    wait.until("the hook off, by itself", lambda: service.mechanism("file_ioctl") == "off", 60)


@pytest.mark.guests("trixie")  # of udev, which has a slash where sysfs has an exclamation mark
def test_a_node_in_a_directory_brings_its_hook() -> None:
    with fake.loaded(chr=["tenstorrent!0:0:0:tenstorrent"]):
        wait.until("the hook, by itself", lambda: service.mechanism("file_ioctl") == "lsm", 60)
        fake.wait_until_known("tenstorrent!0")
        before = sum(total("tenstorrent!0").values())
        done = tally.run("--node", "/dev/tenstorrent/0", "--type", "0xfa", "--do", "0x0:15")
        assert sum(total("tenstorrent!0").values()) - before == done.total == 15
    wait.until("the hook off, by itself", lambda: service.mechanism("file_ioctl") == "off", 60)


def _interfaces() -> Iterator[tuple[str, str, str, Interface]]:
    """Name below /dev, class, table, interface; one node for each interface that a pretended device can have."""
    from kubenpu.devices.tables import load_tables

    for table in load_tables(Path("/nonexistent")).tables:
        for interface in table.interfaces:
            for match in interface.nodes:
                if match.devname and match.minors is None and match.sysfs_class not in FOREIGN and interface.ioctls:
                    name = match.devname.replace("[0-9]*", "0").replace("*", "0")
                    if not name.startswith(("vfio/", "dma_heap/")):
                        yield name, match.sysfs_class or name.split("/")[0].rstrip("0"), table.name, interface
                        break
