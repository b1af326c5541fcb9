# SPDX-License-Identifier: Apache-2.0
"""fdinfo of every driver that says something, in the layout in which its kernel prints it; and of those that do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.devices.fdinfo import MAX_NAMES, parse_fdinfo
from kubenpu.model.fdinfo import Fdinfo, Ticks

KIB, MIB = 1 << 10, 1 << 20
INO = 7081
HEAD = f"pos:\t0\nflags:\t02100002\nmnt_id:\t29\nino:\t{INO}\n"


def text(driver: str, client: int, *lines: str) -> str:
    return HEAD + "".join(f"{line}\n" for line in (f"drm-driver:\t{driver}", f"drm-client-id:\t{client}", *lines))


I915_61 = text(
    "i915",
    4,
    "drm-pdev:\t0000:00:02.0",
    "drm-engine-render:\t9288864723 ns",
    "drm-engine-copy:\t2035071108 ns",
    "drm-engine-video:\t0 ns",
    "drm-engine-capacity-video:\t2",
    "drm-engine-video-enhance:\t0 ns",
)
I915_612 = text(
    "i915",
    57,
    "drm-pdev:\t0000:00:02.0",
    "drm-total-system0:\t90 MiB",
    "drm-shared-system0:\t16 MiB",
    "drm-active-system0:\t0",
    "drm-resident-system0:\t70112 KiB",
    "drm-purgeable-system0:\t2228 KiB",
    "drm-total-stolen-system0:\t0",
    "drm-resident-stolen-system0:\t0",
    "drm-engine-render:\t8801234567 ns",
)
XE = text(
    "xe",
    204,
    "drm-pdev:\t0000:83:00.0",
    "drm-total-system:\t0",
    "drm-resident-system:\t0",
    "drm-total-vram0:\t1043 MiB",
    "drm-active-vram0:\t1000 MiB",
    "drm-resident-vram0:\t1040 MiB",
    "drm-cycles-bcs:\t771200",
    "drm-total-cycles-bcs:\t99120045112",
    "drm-cycles-ccs:\t45010077000",
    "drm-total-cycles-ccs:\t99120045112",
    "drm-engine-capacity-ccs:\t4",
)
XE_VF = text("xe", 9, "drm-pdev:\t0000:83:00.1", "drm-total-vram0:\t64 MiB", "drm-resident-vram0:\t64 MiB")
AMDGPU_61 = text("amdgpu", 33, "pasid:\t32782", "drm-memory-vram:\t2048 KiB", "drm-memory-gtt: \t64 KiB")
AMDGPU_612 = text(
    "amdgpu",
    33,
    "drm-pdev:\t0000:c3:00.0",
    "pasid:\t32782",
    "drm-memory-vram:\t884736 KiB",
    "drm-memory-gtt: \t4096 KiB",
    "drm-memory-cpu: \t0 KiB",
    "amd-evicted-vram:\t12 KiB",
    "amd-requested-vram:\t884736 KiB",
    "drm-shared-vram:\t8192 KiB",
    "drm-engine-gfx:\t55123000111 ns",
    "drm-engine-dec:\t100 ns",
    "drm-engine-dec:\t11 ns",
)
AMDGPU_73 = text(
    "amdgpu",
    41,
    "drm-pdev:\t0000:05:00.0",
    "pasid:\t9",
    "drm-total-vram:\t62464 MiB",
    "drm-resident-vram:\t62460 MiB",
    "drm-total-doorbell:\t8 KiB",
    "drm-memory-vram:\t63963136 KiB",
)
PANFROST = text(
    "panfrost",
    2,
    "drm-engine-fragment:\t1846584880 ns",
    "drm-cycles-fragment:\t1424359409",
    "drm-maxfreq-fragment:\t799999987 Hz",
    "drm-curfreq-fragment:\t799999987 Hz",
    "drm-total-memory:\t290 MiB",
    "drm-resident-memory:\t290 MiB",
)
PANTHOR_OFF = text(
    "panthor",
    12,
    "drm-maxfreq-panthor:\t1000000000 Hz",
    "drm-curfreq-panthor:\t300000000 Hz",
    "panthor-resident-memory:\t9112 KiB",
    "drm-total-memory:\t20 MiB",
    "drm-resident-memory:\t20 MiB",
)
V3D = text(
    "v3d",
    3,
    "drm-engine-bin: \t120034000 ns",
    "v3d-jobs-bin: \t812 jobs",
    "drm-engine-csd: \t0 ns",
    "v3d-jobs-csd: \t0 jobs",
    "drm-total-memory:\t33 MiB",
)
MSM = text(
    "msm",
    6,
    "drm-engine-gpu:\t77000111222 ns",
    "drm-cycles-gpu:\t41000999111",
    "drm-maxfreq-gpu:\t1100000000 Hz",
)
IVPU = text("intel_vpu", 15, "drm-pdev:\t0000:00:0b.0", "drm-total-memory:\t268 MiB", "drm-resident-memory:\t268 MiB")
AMDXDNA = text(
    "amdxdna_accel_driver",
    880,
    "amdxdna_accel_driver-heap-alloc:\t64 KiB",
    "drm-total-memory:\t65664 KiB",
    "drm-shared-memory:\t0",
)
ETNAVIV = text("etnaviv", 5, "drm-total-memory:\t4 MiB", "drm-resident-memory:\t4100 KiB", "drm-purgeable-memory:\t0")


@pytest.mark.parametrize(
    ("given_text", "expected"),
    [
        pytest.param(
            I915_61,
            Fdinfo(4, {"render": 9288864723, "copy": 2035071108, "video": 0, "video-enhance": 0}, {}, {}, {"video": 2}),
            id="i915-6.1",
        ),
        pytest.param(
            I915_612,
            Fdinfo(57, {"render": 8801234567}, {}, {"system0": 70112 * KIB, "stolen-system0": 0}),
            id="i915-6.12",
        ),
        pytest.param(
            XE,
            Fdinfo(
                204,
                {},
                {"bcs": Ticks(771200, 99120045112), "ccs": Ticks(45010077000, 99120045112)},
                {"system": 0, "vram0": 1040 * MIB},
                {"ccs": 4},
            ),
            id="xe",
        ),
        pytest.param(XE_VF, Fdinfo(9, {}, {}, {"vram0": 64 * MIB}), id="xe-virtual-function"),
        pytest.param(AMDGPU_61, Fdinfo(33, {}, {}, {"vram": 2048 * KIB, "gtt": 64 * KIB}), id="amdgpu-6.1"),
        pytest.param(
            AMDGPU_612,
            Fdinfo(
                33,
                {"gfx": 55123000111, "dec": 111},
                {},
                {"vram": 884736 * KIB, "gtt": 4096 * KIB, "cpu": 0},
                {"gfx": 64, "dec": 64},
            ),
            id="amdgpu-6.12",
        ),
        pytest.param(AMDGPU_73, Fdinfo(41, {}, {}, {"vram": 62460 * MIB, "doorbell": 8 * KIB}), id="amdgpu-7.3-rocm"),
        pytest.param(
            PANFROST,
            Fdinfo(2, {"fragment": 1846584880}, {}, {"memory": 290 * MIB}, {"fragment": 2}),
            id="panfrost",
        ),
        pytest.param(PANTHOR_OFF, Fdinfo(12, {}, {}, {"memory": 20 * MIB}), id="panthor-profiling-off"),
        pytest.param(V3D, Fdinfo(3, {"bin": 120034000, "csd": 0}, {}, {"memory": 33 * MIB}), id="v3d"),
        pytest.param(MSM, Fdinfo(6, {"gpu": 77000111222}, {}, {}), id="msm"),
        pytest.param(IVPU, Fdinfo(15, {}, {}, {"memory": 268 * MIB}), id="intel_vpu"),
        pytest.param(AMDXDNA, Fdinfo(880, {}, {}, {"memory": 65664 * KIB}), id="amdxdna"),
        pytest.param(ETNAVIV, Fdinfo(5, {}, {}, {"memory": 4100 * KIB}), id="etnaviv"),
    ],
)
def test_of_each_driver(given_text: str, expected: Fdinfo) -> None:
    assert parse_fdinfo(given_text, INO) == expected


@pytest.mark.parametrize(
    "given_text",
    [
        pytest.param(HEAD, id="no DRM at all, as of nouveau, rocket, nvidia"),
        pytest.param("", id="a device that was unplugged"),
        pytest.param(text("i915", 4).replace("drm-client-id", "drm-client"), id="no identity"),
        pytest.param(text("i915", 4).replace("drm-driver", "driver"), id="no driver"),
        pytest.param(text("i915", 4).replace(f"ino:\t{INO}", "ino:\t1"), id="another file by now"),
        pytest.param(text("i915", 4).replace("id:\t4", "id:\t-4"), id="no number"),
    ],
)
def test_what_is_no_client(given_text: str) -> None:
    assert parse_fdinfo(given_text, INO) is None


@pytest.mark.parametrize(
    "line",
    [
        "drm-engine-render:\t12",
        "drm-engine-render:\t12 ms",
        "drm-engine-render:\t-12 ns",
        "drm-engine-render:\t1e3 ns",
        "drm-engine-render:\t" + "9" * 21 + " ns",
        "drm-engine-render:\t١٢ ns",
        "drm-engine-:\t12 ns",
        "drm-engine-a b:\t12 ns",
        "drm-engine-" + "x" * 33 + ":\t12 ns",
        "drm-cycles-rcs:\t12",
        "drm-total-vram:\t12 TiB",
        "drm-total-vram:",
        "drm-total-vram 12",
        "xdrm-total-vram:\t12",
    ],
)
def test_lines_that_do_not_keep_their_promise(line: str) -> None:
    assert parse_fdinfo(text("i915", 4, line), INO) == Fdinfo(4, {}, {}, {})


@pytest.mark.parametrize(
    "lines",
    [
        ("drm-engine-render:\t9223372036854775808 ns",),
        ("drm-engine-render:\t99999999999999999999 ns",),
        ("drm-engine-render:\t9223372036854775807 ns", "drm-engine-render:\t1 ns"),
        ("drm-cycles-rcs:\t1", "drm-total-cycles-rcs:\t9223372036854775808"),
        ("drm-resident-vram:\t18446744073709547520",),
        ("drm-resident-vram:\t18014398509481980 KiB",),
    ],
)
def test_numbers_that_cannot_be_are_absent_and_said(lines: tuple[str, ...]) -> None:
    assert parse_fdinfo(text("i915", 4, *lines), INO) == Fdinfo(4, {}, {}, {}, absurd=1)


def test_largest_number_and_largest_identity() -> None:
    largest = (1 << 63) - 1
    found = parse_fdinfo(text("i915", largest, f"drm-engine-render:\t{largest} ns"), INO)
    assert found == Fdinfo(largest, {"render": largest}, {}, {})
    assert parse_fdinfo(text("i915", largest + 1), INO) is None


@pytest.mark.parametrize(("capacity", "engines"), [("0", {}), ("1", {}), ("7 ns", {}), ("99999", {"render": 1024})])
def test_a_capacity_that_cannot_be(capacity: str, engines: dict[str, int]) -> None:
    found = parse_fdinfo(text("i915", 4, f"drm-engine-capacity-render:\t{capacity}"), INO)
    assert found == Fdinfo(4, {}, {}, {}, engines)


def test_the_first_identity_counts() -> None:
    """What comes later may be an application's text."""
    found = parse_fdinfo(text("i915", 4, "drm-client-name:\tx: y", "drm-client-id:\t5", "ino:\t1"), INO)
    assert found is not None
    assert found.client_id == 4


def test_names_are_bounded() -> None:
    found = parse_fdinfo(text("i915", 4, *(f"drm-engine-e{n}:\t1 ns" for n in range(1000))), INO)
    assert found is not None
    assert len(found.engine_ns) == MAX_NAMES


@given(st.text(alphabet=st.sampled_from("drm-engincyclstotaviu0123456789: \t\nKMB"), max_size=300))
def test_any_text_is_taken(anything: str) -> None:
    found = parse_fdinfo(HEAD + "drm-driver:\tx\ndrm-client-id:\t1\n" + anything, INO)
    assert found is None or all(n >= 0 for n in (*found.engine_ns.values(), *found.memory.values()))
