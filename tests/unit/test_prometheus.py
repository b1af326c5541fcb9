# SPDX-License-Identifier: Apache-2.0
"""What a scrape says: golden text, names and labels, absence instead of zero, and hostile label values."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Metric as Family
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from kubenpu.exporters.metrics import METRICS
from kubenpu.exporters.prometheus import Exposition, ViewCollector, write_text
from kubenpu.model.allocation import Allocation, Allocations
from kubenpu.model.device import Device, Node, Visibility
from kubenpu.model.identity import Owner, OwnerKind
from kubenpu.model.sample import ZERO, Counts, HookStatus
from kubenpu.model.text import MAX_LABEL_CHARACTERS
from kubenpu.model.view import ClientTotals, ClientUsage, DeviceUsage, SourceStatus, Usage, View

GOLDEN = Path(__file__).parent.parent / "golden"
IGPU, NPU, ODD, GPU = "0000:00:02.0", "0000:00:0b.0", "odd-device", "0000:01:00.0"
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
POD = Owner(OwnerKind.POD, namespace="shop", pod="web-0", container="main", pod_uid="u1")
HOST = Owner(OwnerKind.HOST, unit="ssh.service")
LOST = Owner(OwnerKind.UNKNOWN, pod_uid="u9", container_id="c9")
TABLES = {
    "i915": {"submit": Visibility.ALWAYS},
    "intel_vpu": {"submit": Visibility.PARTLY, "wait": Visibility.ALWAYS},
    "display": {"submit": Visibility.NONE},
    "doorbell": {"submit": Visibility.NEVER, "memory": Visibility.PARTLY, "wait": Visibility.NEVER},
}


def counts(*calls: int, wait_ns: int = 0, work: int = 0) -> Counts:
    calls = calls + (0,) * (7 - len(calls))
    return Counts(calls, tuple(n // 10 for n in calls), wait_ns, work)


VIEW = View(
    version="0.1.0",
    node="node-1",
    simulated=False,
    counting_since=1700000000.25,
    devices=(
        Device(IGPU, "drm", "i915", "i915", "8086:5917", 0, (Node("dri/card1", 226, 1),), "/sys/x"),
        Device(ODD, "accel", None, None, None, None, (), "/sys/y"),
    ),
    usage=(
        Usage(POD, IGPU, "i915", counts(100, 20, 0, 0, 7, wait_ns=1_500_000_000, work=250), 1700000100.5, True),
        Usage(HOST, ODD, None, counts(0, 0, 0, 0, 0, 0, 12), 1700000200.0, False),
        Usage(LOST, IGPU, "i915", counts(3), 1700000300.0, False),
        Usage(Owner(OwnerKind.UNKNOWN), IGPU, "i915", counts(2, 1), 1700000300.0, True),
    ),
    device_usage=(
        DeviceUsage(IGPU, "i915", counts(140, 21, 0, 0, 7), counts(30), {"cells-full": 5}, 0, 1700000000.25),
        DeviceUsage(ODD, None, counts(0, 0, 0, 0, 0, 0, 12), ZERO, {"cells-full": 0}, -1, 1700000000.25),
    ),
    clients=(
        ClientUsage(POD, IGPU, (("render", 2_500_000_000), ("copy", 0)), (("system0", 4096),), 1, 10**9),
        ClientUsage(HOST, NPU, (), (("memory", 1 << 20),), 0, 10**9),
        ClientUsage(HOST, IGPU, (("render", 1_000_000),), (), 0, 10**9),
        ClientUsage(LOST, IGPU, (("render", 5_000_000),), (("system0", 7),), 2, 10**9),
    ),
    client_totals=(ClientTotals(NPU, (), 0), ClientTotals(IGPU, (("render", 3_506_000_000), ("copy", 0)), 4)),
    hooks=(HookStatus("drm_ioctl", "fentry", "", 5), HookStatus("file_ioctl", "off", "no such device", 5)),
    sources=(SourceStatus("counters", True, 0.0005), SourceStatus("cri:containerd", False, 2.0, "down")),
    dropped={"cells-full": 5},
    slots_used=4,
    slots_max=8192,
    index_rebuilds=1,
    retired_early=2,
    dbus_dropped=3,
    allocations=Allocations(
        (
            Allocation("shop", "web-0", "main", "gpu.intel.com/i915", "card1-0", "", IGPU, "u1", 1700000000.0),
            Allocation("shop", "web-1", "main", "gpu.x.example", "pool/mystery", "shop/claim", None, "", None),
        ),
        {"shop/web-0/main": (IGPU,), "shop/web-1/main": (None,)},
    ),
)


def visibility_of(vendor: str | None) -> dict[str, Visibility]:
    return TABLES.get(vendor or "", {})


def work_of(vendor: str | None) -> str | None:
    return "jobs" if vendor == "i915" else None


def render(view: View, accept: str = "") -> str:
    reasons = ("cells-full", "no-device")
    return Exposition(lambda: view, visibility_of, reasons, work_of).render(accept)[1].decode("utf-8")


def parse(text: str, accept: str = "") -> list[Family]:
    if accept:
        return list(openmetrics_parser.text_string_to_metric_families(text))  # type: ignore[no-untyped-call]
    return list(text_string_to_metric_families(text))


def samples(view: View) -> list[Sample]:
    return [sample for family in parse(render(view)) for sample in family.samples]


def select(view: View, name: str, **labels: str) -> dict[str, float]:
    """Values of one metric by kind, or under "" without."""
    return {
        sample.labels.get("kind", ""): sample.value
        for sample in samples(view)
        if sample.name == name and labels.items() <= sample.labels.items()
    }


def assert_unique(found: Iterable[Sample]) -> None:
    keys = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in found]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(("name", "accept"), [("scrape.txt", ""), ("scrape.openmetrics", PROMETHEUS_3)])
def test_golden_scrape(name: str, accept: str) -> None:
    text = render(VIEW, accept)
    if "KUBENPU_UPDATE_GOLDEN" in os.environ:
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text()


def test_no_label_set_appears_twice_and_no_family_either() -> None:
    for families in (parse(render(VIEW, accept), accept) for accept in ("", PROMETHEUS_3)):
        assert_unique(sample for family in families for sample in family.samples)
        assert len({family.name for family in families}) == len(families)


def test_the_output_is_what_the_table_says() -> None:
    table = {metric.name: metric for metric in METRICS}
    found = samples(
        dataclasses.replace(VIEW, usage=(*VIEW.usage, Usage(HOST, IGPU, "i915", counts(1), 1700000300.0, True)))
    )
    assert {sample.name for sample in found} == set(table)
    for sample in found:
        assert set(sample.labels) <= set(table[sample.name].labels)
    for metric in METRICS:
        assert metric.type in {"counter", "gauge"}
        assert metric.name.endswith("_total") == (metric.type == "counter")
        assert metric.help.endswith(".")


def test_one_device_given_twice_under_names_that_are_cut_alike_is_one_series() -> None:
    assert VIEW.allocations is not None
    gpu = VIEW.allocations.all[0]
    twins = tuple(gpu._replace(device_id="x" * MAX_LABEL_CHARACTERS + end) for end in "ab")
    view = dataclasses.replace(VIEW, allocations=Allocations((*twins, gpu, gpu._replace(pod_uid="u2")), {}))
    found = [sample for sample in samples(view) if sample.name == "kubenpu_device_allocated"]
    assert_unique(found)
    assert [sample.value for sample in found] == [1, 1]


def test_who_was_given_what_is_absent_where_nobody_tells() -> None:
    view = dataclasses.replace(VIEW, allocations=None)
    assert "kubenpu_device_allocated" not in {sample.name for sample in samples(view)}


def test_every_kind_of_a_seen_workload_is_there_from_the_start() -> None:
    calls = select(VIEW, "kubenpu_ioctl_total", pod="web-0", namespace="shop", container="main", device=IGPU)
    assert calls == {"submit": 100, "alloc": 20, "free": 0, "map": 0, "wait": 7, "context": 0, "other": 0}
    assert select(VIEW, "kubenpu_ioctl_errors_total", pod="web-0")["submit"] == 10
    assert select(VIEW, "kubenpu_ioctl_wait_seconds_total", pod="web-0") == {"": 1.5}


def test_work_is_told_in_the_unit_of_the_driver_and_only_where_it_has_one() -> None:
    assert samples_of("kubenpu_submitted_work_total") == [({"work": "jobs", "vendor": "i915"}, 250)]
    fresh = dataclasses.replace(VIEW, usage=(Usage(HOST, IGPU, "i915", counts(1), 1700000300.0, True),))
    assert samples_of("kubenpu_host_submitted_work_total", fresh) == [({"work": "jobs", "vendor": "i915"}, 0)]
    off = dataclasses.replace(
        VIEW, hooks=(HookStatus("drm_ioctl", "off", "", 5), HookStatus("file_ioctl", "lsm", "", 5))
    )
    assert samples_of("kubenpu_submitted_work_total", off) == []


@pytest.mark.parametrize("hooks", [("drm_ioctl", "file_ioctl"), ("file_ioctl",)])
def test_work_is_known_of_a_device_whose_other_calls_end_unseen(hooks: tuple[str, ...]) -> None:
    both = (HookStatus("drm_ioctl", "fentry", "", 5), HookStatus("file_ioctl", "lsm", "", 5))
    view = dataclasses.replace(VIEW, hooks=both, usage=(dataclasses.replace(VIEW.usage[0], hooks=hooks),))
    assert len(samples_of("kubenpu_submitted_work_total", view)) == ("drm_ioctl" in hooks)
    assert select(view, "kubenpu_ioctl_errors_total") == {}


def samples_of(name: str, view: View = VIEW) -> list[tuple[dict[str, str], float]]:
    found = [sample for sample in samples(view) if sample.name == name]
    return [({key: sample.labels[key] for key in ("work", "vendor")}, sample.value) for sample in found]


@pytest.mark.parametrize(
    ("vendor", "codes"),
    [
        ("i915", {"submit": 1.0}),
        ("intel_vpu", {"submit": 0.5, "wait": 1.0}),
        ("doorbell", {"submit": 0.0, "memory": 0.5, "wait": 0.0}),
        ("display", {}),
        (None, {}),
    ],
)
def test_visibility_is_a_code_per_device_and_absent_where_nobody_knows(
    vendor: str | None, codes: dict[str, float]
) -> None:
    view = dataclasses.replace(VIEW, devices=(Device(NPU, "accel", None, vendor, None, None, (), "/sys/x"),))
    found = [sample for sample in samples(view) if sample.name == "kubenpu_device_visibility"]
    assert {sample.labels["what"]: sample.value for sample in found} == codes
    assert {sample.labels["device"] for sample in found} <= {NPU}


@pytest.mark.parametrize(
    ("vendor", "shown"), [("i915", True), ("intel_vpu", True), ("doorbell", False), ("display", False), (None, False)]
)
def test_submissions_nobody_can_see_have_no_series(vendor: str | None, shown: bool) -> None:
    view = dataclasses.replace(VIEW, usage=(Usage(POD, NPU, vendor, counts(0, 5), 1.0, True),))
    for name in ("kubenpu_ioctl_total", "kubenpu_ioctl_errors_total"):
        kinds = select(view, name, device=NPU, vendor=vendor or "-")
        assert ("submit" in kinds, len(kinds)) == (shown, 6 + shown)


def test_a_counted_submission_is_shown_whatever_the_table_says() -> None:
    view = dataclasses.replace(VIEW, usage=(Usage(POD, NPU, "doorbell", counts(4), 1.0, True),))
    assert select(view, "kubenpu_ioctl_total", device=NPU)["submit"] == 4


def test_unattributed_calls_are_added_up_per_device() -> None:
    assert select(VIEW, "kubenpu_unattributed_ioctls", device=IGPU)["submit"] == 5
    assert select(VIEW, "kubenpu_unattributed_ioctls", device=ODD)["other"] == 0


PLAIN = ("file_ioctl",)
LSM = HookStatus("file_ioctl", "lsm", "", 5)


@pytest.mark.parametrize("hooks", [PLAIN, ("drm_ioctl", "file_ioctl")])
def test_how_calls_end_has_no_series_where_nobody_sees_it(hooks: tuple[str, ...]) -> None:
    usage = Usage(POD, GPU, "nvidia", counts(0, 40, wait_ns=7), 1.0, True, hooks)
    device = DeviceUsage(GPU, "nvidia", counts(0, 40), ZERO, {}, 0, 1.0, hooks)
    view = dataclasses.replace(VIEW, usage=(usage,), device_usage=(device,), hooks=(*VIEW.hooks[:1], LSM))
    assert select(view, "kubenpu_ioctl_total", device=GPU)["alloc"] == 40
    assert select(view, "kubenpu_device_ioctl_total", device=GPU)["alloc"] == 40
    assert select(view, "kubenpu_attribution_imbalance", device=GPU) == {"": 0}
    for name in ("kubenpu_ioctl_errors_total", "kubenpu_ioctl_wait_seconds_total"):
        assert select(view, name, device=GPU) == {}


@pytest.mark.parametrize("hooks", [PLAIN, ("drm_ioctl", "file_ioctl")])
def test_a_hook_that_is_off_takes_only_its_own_devices_along(hooks: tuple[str, ...]) -> None:
    """Those too that another hook sees some calls of: of the rest there would be zeros."""
    usage = (Usage(POD, GPU, "nvidia", counts(0, 40), 1.0, True, hooks), *VIEW.usage)
    view = dataclasses.replace(VIEW, usage=usage)
    assert select(view, "kubenpu_ioctl_total", device=GPU) == {}
    assert select(view, "kubenpu_ioctl_total", device=IGPU)["alloc"] == 20
    off = dataclasses.replace(VIEW, usage=usage, hooks=(HookStatus("drm_ioctl", "off", "no drm", 5), LSM))
    assert select(off, "kubenpu_ioctl_total", device=GPU).get("alloc") == (40 if hooks == PLAIN else None)
    assert select(off, "kubenpu_ioctl_total", device=IGPU) == {}


def test_a_hook_without_a_device_is_not_shown() -> None:
    view = dataclasses.replace(VIEW, hooks=(HookStatus("file_ioctl", "off", "no such device", 5, needed=False),))
    assert select(view, "kubenpu_hook_up", hook="file_ioctl") == {}


def test_pods_host_departed_unattributed_and_losses_are_the_device_total() -> None:
    parts = {
        "kubenpu_ioctl_total",
        "kubenpu_host_ioctl_total",
        "kubenpu_departed_ioctl_total",
        "kubenpu_unattributed_ioctls",
        "kubenpu_events_dropped_total",
    }
    total = sum(sample.value for sample in samples(VIEW) if sample.name in parts)
    assert total == sum(sample.value for sample in samples(VIEW) if sample.name == "kubenpu_device_ioctl_total")


def test_time_and_memory_of_whom_and_of_what() -> None:
    """Of who has no name only the device's total tells; a driver that tells nothing of a kind has no series of it."""
    time = {tuple(sample.labels.values()): sample.value for sample in samples(VIEW) if "engine_seconds" in sample.name}
    assert time == {
        ("main", IGPU, "render", "shop", "web-0"): 2.5,
        ("main", IGPU, "copy", "shop", "web-0"): 0,
        (IGPU, "render", "ssh.service"): 0.001,
        (IGPU, "render"): 3.506,
        (IGPU, "copy"): 0,
    }
    memory = {tuple(sample.labels.values()): sample.value for sample in samples(VIEW) if "memory_bytes" in sample.name}
    assert memory == {("main", IGPU, "shop", "web-0", "system0"): 4096, (NPU, "memory", "ssh.service"): 1 << 20}


def test_two_pods_of_one_name_are_one_series() -> None:
    again = dataclasses.replace(POD, pod_uid="u2")
    twin = Usage(again, IGPU, "i915", counts(1), 1699999999.0, True)
    view = dataclasses.replace(VIEW, usage=(*VIEW.usage, twin))
    assert select(view, "kubenpu_ioctl_total", pod="web-0")["submit"] == 101


def test_without_a_hook_there_is_no_ioctl_series() -> None:
    off = tuple(dataclasses.replace(hook, mechanism="off") for hook in VIEW.hooks)
    view = dataclasses.replace(VIEW, hooks=off, counting_since=None, dropped={}, slots_used=0, slots_max=0)
    names = {sample.name for sample in samples(view)}
    assert not [name for name in names if "ioctl" in name or "imbalance" in name or "events" in name]
    assert "kubenpu_counting_since_seconds" not in names
    assert "kubenpu_slots_max" not in names
    assert select(view, "kubenpu_hook_up", hook="drm_ioctl", mechanism="off") == {"": 0}
    assert select(view, "kubenpu_simulated") == {"": 0}


def test_every_known_loss_has_a_number() -> None:
    assert select(VIEW, "kubenpu_events_dropped_total", reason="cells-full") == {"": 5}
    assert select(VIEW, "kubenpu_events_dropped_total", reason="no-device") == {"": 0}


def test_a_simulated_node_says_so() -> None:
    assert select(dataclasses.replace(VIEW, simulated=True), "kubenpu_simulated") == {"": 1}


@pytest.mark.parametrize("accept", ["", PROMETHEUS_3])
def test_start_times_are_no_series(accept: str) -> None:
    assert "_created" not in render(VIEW, accept)


HOSTILE = [
    'a"} 1\nfake{x="',
    "\n",
    "\\",
    "\\n",
    "\x00",
    "\udcff",
    "\ud800",
    "x" * 4096,
    "\r\x1b[31m",
    "\u2028",
    "é",
    "",
]


@pytest.mark.parametrize("accept", ["", PROMETHEUS_3])
def test_hostile_labels_make_one_series_each(accept: str) -> None:
    owners = [Owner(OwnerKind.POD, namespace="n", pod=text, container="c") for text in HOSTILE]
    owners += [Owner(OwnerKind.HOST, unit=text) for text in HOSTILE]
    usage = tuple(Usage(owner, IGPU, "i915", counts(1), 1.0, True) for owner in owners)
    text = render(dataclasses.replace(VIEW, usage=usage, node="\udcff\n", dropped={"\n": 1}), accept)
    found = [sample for family in parse(text, accept) for sample in family.samples]
    assert_unique(found)
    pods = {s.labels["pod"]: s.value for s in found if s.name == "kubenpu_ioctl_total" and s.labels["kind"] == "submit"}
    # a newline is shown as the two characters that one of the other values consists of: those two are one series
    assert sum(pods.values()) == len(HOSTILE)
    assert len(pods) == len(HOSTILE) - 1
    assert pods["\\n"] == 2
    assert all(len(pod) <= MAX_LABEL_CHARACTERS and pod.isprintable() for pod in pods)
    assert "fake{" not in [line[:5] for line in text.splitlines()]


@settings(deadline=None)
@given(st.lists(st.text(st.characters(codec=None), max_size=30), max_size=5))
def test_any_text_is_a_label(texts: list[str]) -> None:
    usage = tuple(
        Usage(Owner(OwnerKind.POD, namespace=t, pod=t, container=t), IGPU, t, counts(1), 1.0, True) for t in texts
    )
    view = dataclasses.replace(VIEW, usage=usage)
    registry = CollectorRegistry()
    registry.register(ViewCollector(lambda: view, visibility_of))
    assert write_text(registry) == generate_latest(registry)
    found = samples(view)
    assert_unique(found)
    assert sum(s.value for s in found if s.name == "kubenpu_ioctl_total") == len(texts)


def test_equal_gauges_are_not_added_up() -> None:
    view = dataclasses.replace(VIEW, devices=VIEW.devices * 2, sources=VIEW.sources * 2)
    assert select(view, "kubenpu_device_info", device=IGPU) == {"": 1}
    assert select(view, "kubenpu_source_up", source="counters") == {"": 1}
