# SPDX-License-Identifier: Apache-2.0
"""The ladder of mechanisms over a kernel that is not there: order, reasons, and what is left when a step fails."""

from __future__ import annotations

import errno
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from kubenpu.kernel import layout
from kubenpu.kernel.attach import Target, detach, explain, unload
from kubenpu.kernel.hooks import DRM_IOCTL, FILE_IOCTL, HOOKS, Hook, Mechanism
from kubenpu.kernel.pins import Pins
from kubenpu.model.errors import KernelError
from kubenpu.model.sample import HookStatus
from tests.fakes.fake_libbpf import ATTACHED_NS, COMMON, SHAPE, FakeKernel, FakeProbe, SigKill
from tests.unit.test_kernel_support import GOOD

BODIES = {"drm_ioctl_enter_body", "drm_ioctl_exit_body"}
LADDER = DRM_IOCTL.ladder
HOOK_OF = {"fentry": "fentry_hook", "kprobe.multi": "kretprobe_hook", "kprobe": "kretprobe_hook"}


def hook_pins(probe: FakeProbe) -> set[str]:
    """Everything that is pinned but the maps that hold counts and names."""
    return probe.names() - {*COMMON, *FILE_IOCTL.maps}


def clean(kernel: FakeKernel, probe: FakeProbe) -> None:
    """Nothing is attached and nothing of an attempt is left; the counters stay."""
    assert kernel.attached() == []
    assert hook_pins(probe) == set()
    assert {"cells", "rules"} <= probe.names()


# ---- the ladder ----


def test_the_best_mechanism_is_taken_without_a_word(kernel: FakeKernel, probe: FakeProbe) -> None:
    assert probe.load() == HookStatus("drm_ioctl", "fentry", "", ATTACHED_NS)
    assert [(link.program, link.mechanism) for link in kernel.attached()] == [
        ("fentry_hook", "fentry"),
        ("fexit_hook", "fentry"),
    ]
    assert probe.names() >= BODIES
    assert not [step for step in kernel.steps if "kprobe" in step]


def test_the_cheapest_mechanism_comes_first() -> None:
    assert LADDER == ("fentry", "kprobe.multi", "kprobe")


def test_the_ladder_goes_down_one_by_one_and_keeps_every_reason(kernel: FakeKernel, probe: FakeProbe) -> None:
    expected = []
    for name, following in itertools.pairwise((*LADDER, "off")):
        kernel.refuse[f"{name} {HOOK_OF[name]}"] = errno.ENOENT
        unload(probe.pins)
        kernel.links.clear()
        status = probe.load()
        expected.append(f"{name}: cannot {name} {HOOK_OF[name]}: number 2")
        assert (status.mechanism, status.reason) == (following, "; ".join(expected))
        assert kernel.mechanism() == following
    clean(kernel, probe)


def test_the_second_side_that_fails_takes_the_first_one_off(kernel: FakeKernel, probe: FakeProbe) -> None:
    kernel.refuse = {"fentry fexit_hook": 95, "kprobe.multi kprobe_hook": 95, "kprobe kprobe_hook": 95}
    assert probe.load().mechanism == "off"
    assert [link.mechanism for link in kernel.links] == list(LADDER)  # each got as far as its first side
    clean(kernel, probe)


def test_a_call_is_counted_from_its_end_on_with_kprobes(kernel: FakeKernel, probe: FakeProbe) -> None:
    """The return side first: a return probe that finds no start is told apart, a start without return is not."""
    probe.load("kprobe")
    assert [link.at_return for link in kernel.attached()] == [True, False]


@pytest.mark.parametrize("name", LADDER)
def test_a_forced_mechanism_is_the_only_one_tried(kernel: FakeKernel, probe: FakeProbe, name: str) -> None:
    assert probe.load(name).mechanism == name == kernel.mechanism()
    unload(probe.pins)
    kernel.refuse[f"{name} {HOOK_OF[name]}"] = errno.EPERM
    status = probe.load(name)
    assert status.mechanism == "off"
    assert status.reason.startswith(f"{name}: ")
    assert ";" not in status.reason
    assert {link.mechanism for link in kernel.links} == {name}
    clean(kernel, probe)


def test_what_the_kernel_rules_out_is_not_even_tried(kernel: FakeKernel, probe: FakeProbe) -> None:
    status = replace(probe, facts=replace(GOOD, preemption="rt", kprobes=False)).load()
    assert status.mechanism == "off"
    assert [reason.partition(":")[0] for reason in status.reason.split("; ")] == list(LADDER)
    assert "preemption model rt" in status.reason
    assert [step for step in kernel.steps if step.startswith("load")] == ["load nothing"]
    clean(kernel, probe)


def test_without_drm_the_maps_are_there_and_the_hook_waits(kernel: FakeKernel, probe: FakeProbe) -> None:
    absent = replace(probe, facts=replace(GOOD, drm=False, drm_btf=False))
    assert absent.load() == HookStatus("drm_ioctl", "off", "drm is not loaded", 5)
    assert absent.load("kprobe").reason == "drm is not loaded"
    clean(kernel, probe)
    assert probe.load().mechanism == "fentry"


def test_a_uprobe_needs_no_drm_and_fails_for_its_own_reason(kernel: FakeKernel, probe: FakeProbe) -> None:
    absent = replace(probe, facts=replace(GOOD, drm=False, drm_btf=False))
    target = Target("knpu_call", Path("/bin/true"))
    assert "needs the binary" in absent.load("uprobe").reason
    assert absent.load("uprobe", target=target).mechanism == "uprobe"
    assert kernel.mechanism() == "uprobe"
    unload(probe.pins)
    kernel.refuse["uprobe uretprobe_hook"] = errno.ENOENT
    status = absent.load("uprobe", target=target)
    assert (status.mechanism, status.reason) == ("off", "uprobe: cannot uprobe uretprobe_hook: number 2")
    clean(kernel, probe)


@pytest.mark.parametrize(
    ("code", "words"),
    [(524, "no trampolines to attach to (-524)"), (3, "(-3)"), (errno.EPERM, "cannot load fentry: number 1")],
)
def test_known_errors_are_put_into_words(kernel: FakeKernel, probe: FakeProbe, code: int, words: str) -> None:
    kernel.refuse["load fentry"] = code
    status = probe.load()
    assert status.mechanism == "kprobe.multi"
    assert status.reason.startswith("fentry: ")
    assert words in status.reason
    assert "\n" not in status.reason


def test_an_error_without_errno_speaks_for_itself() -> None:
    assert explain(KernelError("the self-test counted 0 calls\nmore")) == "the self-test counted 0 calls"


# ---- what cannot be used at all ----


def test_an_object_of_another_version_is_refused_before_any_map_is_made(kernel: FakeKernel, probe: FakeProbe) -> None:
    kernel.structs_found = {}
    with pytest.raises(KernelError, match="does not fit this program") as caught:
        probe.load()
    assert "same package" in caught.value.remedy
    assert probe.names() == set()


def test_pinned_maps_of_another_shape_are_refused(kernel: FakeKernel, probe: FakeProbe) -> None:
    probe.load()
    kernel.shape = replace(SHAPE, value_size=16)
    with pytest.raises(KernelError, match="pinned map rules has another shape") as caught:
        probe.load()
    assert "Restart kubenpu-probe" in caught.value.remedy
    assert kernel.mechanism() == "fentry"  # the old code goes on counting


def test_a_kernel_that_loads_nothing(kernel: FakeKernel, probe: FakeProbe) -> None:
    kernel.refuse = dict.fromkeys(("load fentry", "load kprobe", "load nothing"), errno.EINVAL)
    with pytest.raises(KernelError, match="cannot load nothing") as caught:
        probe.load()
    assert caught.value.remedy == ""
    with pytest.raises(KernelError) as caught:
        replace(probe, facts=replace(GOOD, release="5.15.0-91-generic")).load()
    assert caught.value.remedy == "Kernel 5.15.0-91-generic is too old: use 6.1 or later"


def test_a_failing_self_test_attaches_nothing(kernel: FakeKernel, probe: FakeProbe) -> None:
    kernel.refuse["self-test"] = errno.EBADMSG
    with pytest.raises(KernelError, match="self-test"):
        probe.load()
    assert kernel.links == []


# ---- replacing ----


def test_a_second_load_replaces_the_code_and_attaches_nothing(kernel: FakeKernel, probe: FakeProbe) -> None:
    probe.load("kprobe.multi")
    links, names, before = kernel.attached(), probe.names(), len(kernel.steps)
    status = probe.load(since_ns=9)
    assert (status.mechanism, status.since_ns) == ("kprobe.multi", 9)
    assert "replaced" in status.reason
    assert kernel.attached() == links
    assert probe.names() == names
    assert {f"reuse {name}" for name in names & set(COMMON)} <= set(kernel.steps[before:])
    assert kernel.steps[before:].count("update a map entry") == 2


def test_pinned_cells_keep_their_number(kernel: FakeKernel, probe: FakeProbe) -> None:
    """max_slots may change between two loads, the map cannot."""
    probe.load()
    assert kernel.constants[-1]["knpu_cells_mask"] == 63
    assert kernel.steps.count(f"cells has {layout.DEVICE_SLOTS + 64}") == 1
    kernel.shape = replace(SHAPE, max_entries=layout.DEVICE_SLOTS + 256)
    probe.load()
    assert kernel.constants[-1]["knpu_cells_mask"] == 255


@pytest.mark.parametrize(("storage", "left_out"), [(True, "cgroup_cells_by_id"), (False, "cgroup_cells")])
def test_cgroup_storage_or_a_hash(kernel: FakeKernel, probe: FakeProbe, storage: bool, left_out: str) -> None:
    kernel.storage = storage
    probe.load()
    assert left_out not in probe.names()
    assert kernel.constants[-1]["knpu_cgroup_storage"] == storage


@pytest.mark.parametrize(("lockdown", "names"), [("none", 1), ("integrity", 1), ("confidentiality", 0)])
def test_names_are_captured_where_the_kernel_may_be_read(
    kernel: FakeKernel, probe: FakeProbe, lockdown: str, names: int
) -> None:
    replace(probe, facts=replace(GOOD, lockdown=lockdown)).load("fentry")
    assert kernel.constants[-1]["knpu_capture_names"] == names


# ---- whatever fails, whenever it is killed ----


def test_one_failing_step_leaves_one_mechanism_or_none(kernel: FakeKernel, tmp_path: Path) -> None:
    """Every step of a load in turn: the next rung, or an error; and the load after it finds nothing in its way."""
    for step in itertools.count(1):
        probe = FakeProbe(Pins(tmp_path / str(step)), GOOD)
        kernel.count, kernel.fail_at, kernel.links = 0, step, []
        try:
            told = probe.load().mechanism
        except KernelError:
            told = "off"
        assert kernel.mechanism() == told
        assert (hook_pins(probe) == set()) is (told == "off")
        steps, kernel.fail_at = kernel.count, 0
        assert probe.load().mechanism == kernel.mechanism() != "off"
        if steps < step:
            break
    assert step > 15


@pytest.mark.parametrize("first", LADDER)
def test_a_load_that_is_killed_is_made_good_by_the_next(kernel: FakeKernel, tmp_path: Path, first: str) -> None:
    for step in itertools.count(1):
        probe = FakeProbe(Pins(tmp_path / str(step)), GOOD)
        kernel.count, kernel.kill_at, kernel.links = 0, step, []
        try:
            probe.load(first)
        except SigKill:
            kernel.kill_at = 0
            status = probe.load()
            assert status.mechanism == kernel.mechanism()
            assert status.mechanism in (first, "fentry")
            assert len([name for name in probe.names() if "_by_" in name]) == 1
            assert probe.names() >= BODIES
        else:
            break
    assert step > 15


def test_a_replacement_that_is_killed_or_fails_leaves_the_hook_on(kernel: FakeKernel, probe: FakeProbe) -> None:
    probe.load("kprobe")
    links = kernel.attached()
    for step in range(1, 40):
        for kernel.fail_at, kernel.kill_at in ((step, 0), (0, step)):
            kernel.count = 0
            try:
                probe.load()
            except (KernelError, SigKill):
                pass
            else:
                assert kernel.count < step
            assert kernel.attached() == links


@pytest.mark.parametrize("lost", ["drm_ioctl_enter_link", "drm_ioctl_exit_link", "drm_ioctl_by_kprobe"])
def test_a_hook_that_lost_a_pin_is_attached_anew(kernel: FakeKernel, probe: FakeProbe, lost: str) -> None:
    """Without both links it is half a hook, without the mark nobody knows what replaces it."""
    probe.load("kprobe")
    (probe.pins.root / lost).unlink()
    assert probe.load().mechanism == "fentry" == kernel.mechanism()


def test_detach_keeps_the_totals_and_unload_nothing(kernel: FakeKernel, probe: FakeProbe) -> None:
    probe.load()
    detach(probe.pins, DRM_IOCTL)
    assert kernel.attached() == []
    assert hook_pins(probe) == BODIES  # for calls that are in the hook now
    detach(probe.pins, DRM_IOCTL)
    assert probe.load().mechanism == "fentry"
    unload(probe.pins)
    assert kernel.attached() == []
    assert not probe.pins.directory.exists()


@pytest.mark.parametrize(
    ("hook", "mechanism"), [pytest.param(h, m, id=f"{h.name}-{m.name}") for h in HOOKS for m in h.mechanisms]
)
def test_every_mechanism_has_a_hook_and_a_body_for_each_side(hook: Hook, mechanism: Mechanism) -> None:
    programs = {mechanism.program(side, part) for side in mechanism.sides for part in ("body", "hook")}
    assert len(programs) == 2 * len(mechanism.sides)
    assert set(hook.required) <= set(mechanism.sides) <= set(hook.sides)


# ---- a second hook ----


@pytest.fixture
def both(kernel: FakeKernel, probe: FakeProbe) -> FakeProbe:
    """The first one is attached; this loads the second."""
    assert probe.load().mechanism == "fentry"
    return replace(probe, hook=FILE_IOCTL)


def test_two_hooks_know_nothing_of_each_other(kernel: FakeKernel, both: FakeProbe) -> None:
    assert both.load() == HookStatus("file_ioctl", "lsm", "", ATTACHED_NS)
    assert [link.program for link in kernel.attached("file_ioctl")] == ["lsm_compat_hook", "lsm_hook"]
    assert (kernel.mechanism(), kernel.mechanism("file_ioctl")) == ("fentry", "lsm")
    detach(both.pins, FILE_IOCTL)
    assert (kernel.mechanism(), kernel.mechanism("file_ioctl")) == ("fentry", "off")
    assert set(FILE_IOCTL.maps) <= both.names()
    assert both.load().mechanism == "lsm"
    detach(both.pins, DRM_IOCTL)
    assert (kernel.mechanism(), kernel.mechanism("file_ioctl")) == ("off", "lsm")


def test_a_side_that_the_kernel_does_not_have_is_left_out(kernel: FakeKernel, both: FakeProbe) -> None:
    kernel.sides["file_ioctl"] = 1
    assert replace(both, facts=replace(GOOD, drm=False, drm_btf=False)).load().mechanism == "lsm"
    assert [link.program for link in kernel.attached("file_ioctl")] == ["lsm_hook"]
    assert both.load().reason.startswith("replaced")


@pytest.mark.parametrize("missing", ["nodes", "file_ioctl_enter_body"])
def test_without_a_map_of_its_own_a_hook_is_attached_anew(kernel: FakeKernel, both: FakeProbe, missing: str) -> None:
    """A new array of bodies would not be the one that the attached hook jumps to."""
    both.load()
    both.pins.map(missing).unlink()
    assert both.load() == HookStatus("file_ioctl", "lsm", "", ATTACHED_NS)
    assert (kernel.mechanism(), kernel.mechanism("file_ioctl")) == ("fentry", "lsm")


def test_whatever_fails_in_the_second_hook_the_first_one_stays(kernel: FakeKernel, both: FakeProbe) -> None:
    first = kernel.attached()
    for step in itertools.count(1):
        kernel.count, kernel.fail_at = 0, step
        try:
            told = both.load().mechanism
        except KernelError:
            told = kernel.mechanism("file_ioctl")
        assert (kernel.mechanism("file_ioctl"), kernel.attached()) == (told, first)
        steps, kernel.fail_at = kernel.count, 0
        detach(both.pins, FILE_IOCTL)
        if steps < step:
            break
    assert step > 15
