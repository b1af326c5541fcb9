# SPDX-License-Identifier: Apache-2.0
"""Ioctl numbers as the kernel's own headers give them: downloads linux-libc-dev of several Debian suites, compiles a
program for each header and reads what it prints.

`python -m tests.integration.kernel_headers` writes tests/fixtures/headers.json. Downloads are kept for a day in the
cache of the guests; the apt of this machine keeps its own lists and packages. Installs nothing.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from kubenpu.model.device import DriverTable
from tests.vm.image import read_recipes

CACHE = Path("/var/cache/kubenpu-vm/headers")
FIXTURE = Path(__file__).parents[1] / "fixtures" / "headers.json"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SUITES = ("bookworm", "trixie", "trixie-backports")
MAX_AGE_S = 24 * 3600
COMMAND_TIMEOUT_S = 300
# Headers of drivers that have a table, and the table.
TABLES = {
    "drm/amdgpu_drm.h": "amdgpu",
    "drm/amdxdna_accel.h": "amdxdna",
    "drm/armada_drm.h": "armada-drm",
    "drm/asahi_drm.h": "asahi",
    "drm/drm.h": "drm",
    "drm/ethosu_accel.h": "ethosu",
    "drm/etnaviv_drm.h": "etnaviv",
    "drm/exynos_drm.h": "exynos",
    "drm/habanalabs_accel.h": "habanalabs",
    "drm/i915_drm.h": "i915",
    "drm/ivpu_accel.h": "intel_vpu",
    "drm/lima_drm.h": "lima",
    "drm/msm_drm.h": "msm",
    "drm/nouveau_drm.h": "nouveau",
    "drm/nova_drm.h": "nova-drm",
    "drm/omap_drm.h": "omapdrm",
    "drm/panfrost_drm.h": "panfrost",
    "drm/panthor_drm.h": "panthor",
    "drm/pvr_drm.h": "powervr",
    "drm/qaic_accel.h": "qaic",
    "drm/qxl_drm.h": "qxl",
    "drm/radeon_drm.h": "radeon",
    "drm/rocket_accel.h": "rocket",
    "drm/tegra_drm.h": "tegra",
    "drm/v3d_drm.h": "v3d",
    "drm/vc4_drm.h": "vc4",
    "drm/vgem_drm.h": "vgem",
    "drm/virtgpu_drm.h": "virtio_gpu",
    "drm/vmwgfx_drm.h": "vmwgfx",
    "drm/xe_drm.h": "xe",
    "linux/dma-heap.h": "dma_heap",
    "linux/kfd_ioctl.h": "amdkfd",
    "linux/vfio.h": "vfio-pci",
    "misc/fastrpc.h": "fastrpc",
    "misc/habanalabs.h": "habanalabs",
}
PREFIXES = {
    "linux/dma-heap.h": "DMA_HEAP_IOCTL_",
    "linux/kfd_ioctl.h": "AMDKFD_IOC_",
    "linux/vfio.h": "VFIO_",
    "misc/fastrpc.h": "FASTRPC_IOCTL_",
    "misc/habanalabs.h": "HL_IOCTL_",
}
# Calls that no table names on purpose: they count as other, or their number has a name already.
UNNAMED = {
    "drm/drm.h": (
        "what is left of drivers that are gone; 7.3 answers none of them",
        "ADD_BUFS ADD_CTX ADD_MAP AGP_ACQUIRE AGP_ALLOC AGP_BIND AGP_ENABLE AGP_FREE AGP_INFO AGP_RELEASE AGP_UNBIND "
        "CONTROL DMA FREE_BUFS GET_CTX GET_MAP GET_SAREA_CTX INFO_BUFS IRQ_BUSID LOCK MAP_BUFS MARK_BUFS MODESET_CTL "
        "MOD_CTX NEW_CTX RES_CTX RM_CTX RM_MAP SET_SAREA_CTX SG_ALLOC SG_FREE SWITCH_CTX UNLOCK",
    ),
    "drm/i915_drm.h": (
        "second names; the table has the one that the driver answers",
        "I915_GEM_CONTEXT_CREATE I915_GEM_EXECBUFFER2 I915_GEM_MMAP_GTT",
    ),
    "drm/vmwgfx_drm.h": ("second names, and a version", "VMW_ALLOC_BO VMW_HANDLE_CLOSE VMW_EXECBUF_VERSION"),
    "linux/vfio.h": (
        "POWER, and files that migration hands out",
        "EEH_PE_OP IOMMU_SPAPR_REGISTER_MEMORY IOMMU_SPAPR_UNREGISTER_MEMORY IOMMU_SPAPR_TCE_CREATE "
        "IOMMU_SPAPR_TCE_GET_INFO IOMMU_SPAPR_TCE_REMOVE MIG_GET_PRECOPY_INFO",
    ),
}
# Headers below drm/ that belong to no driver, or to drivers before mode setting, which no kernel has any more.
NO_DRIVER = {f"drm/{name}.h" for name in ("drm_fourcc", "drm_mode", "drm_ras", "drm_sarea")} | {
    f"drm/{name}_drm.h" for name in ("i810", "mga", "r128", "savage", "sis", "via")
}
# Gives indices of calls only.
VMWGFX = "drm/vmwgfx_drm.h"
DRM_COMMAND_BASE = 0x40

# Of a call: type byte, number, size of the argument.
Numbers = dict[str, tuple[int, int, int]]


def read_numbers(suite: str) -> tuple[str, dict[str, Numbers]]:
    """The version of the kernel of a suite, and the calls of each of its headers."""
    version, include = _unpacked(suite)
    there = (header for header in TABLES if (include / header).exists())
    return version, {header: _print_numbers(include, header, _names(include, header)) for header in there}


def read_unknown_headers(suite: str) -> set[str]:
    """Headers that have no table, of DRM and accel drivers."""
    include = _unpacked(suite)[1]
    return {str(path.relative_to(include)) for path in (include / "drm").glob("*.h")} - set(TABLES) - NO_DRIVER


def complaints(tables: Iterable[DriverTable], headers: Mapping[str, Numbers]) -> list[str]:
    """Calls of a header that a table does not name, or names with another number or with a larger argument."""
    by_name = {table.name: table for table in tables}
    lines = []
    for header, numbers in headers.items():
        rules = [rule for interface in by_name[TABLES[header]].interfaces for rule in interface.ioctls]
        unnamed = {_prefix(header) + name for name in UNNAMED.get(header, ("", ""))[1].split()}
        for name, (type_byte, nr, size) in numbers.items():
            named = [rule for rule in rules if rule.name == name]
            if not named and name not in unnamed:
                lines.append(f"{header}: {name} ({type_byte:#x}, {nr:#x}) has no entry in {TABLES[header]}.toml")
            for rule in named:
                if (rule.type, rule.nr) != (type_byte, nr):
                    lines.append(f"{header}: {name} is ({type_byte:#x}, {nr:#x})")
                if rule.argument is not None and rule.argument.size > size:
                    lines.append(f"{header}: the argument of {name} has {size} bytes")
    return lines


def _prefix(header: str) -> str:
    return PREFIXES.get(header, "DRM_IOCTL_")


def _names(include: Path, header: str) -> list[str]:
    text = (include / header).read_text()
    prefix = _prefix(header)
    macros = re.findall(rf"^#define\s+({prefix}\w+)\s+(?:\\\n\s*)?\w*_?IO\w*\s*\(", text, re.M)
    enumerators = re.findall(r"^\s+(DRM_IOCTL_\w+)\s*=", text, re.M)
    return sorted({*macros, *enumerators})


def _print_numbers(include: Path, header: str, names: list[str]) -> Numbers:
    if header == VMWGFX:
        indices = re.findall(
            r"^#define\s+DRM_VMW_(?!PARAM_|MAX_)(\w+)\s+(\d+)\s*$", (include / header).read_text(), re.M
        )
        return {f"DRM_IOCTL_VMW_{name}": (ord("d"), DRM_COMMAND_BASE + int(index), 0) for name, index in indices}
    prints = "".join(f'printf("{name} %lu\\n", (unsigned long)({name}));\n' for name in names)
    # 6.1 and others leave it to the kernel's own build to remove this mark
    includes = "".join(f"#include <{each}>\n" for each in ("stdio.h", "linux/ioctl.h", "linux/types.h", header))
    text = f"#define __user\n{includes}int main(void)\n{{\n{prints}return 0;\n}}\n"
    with tempfile.TemporaryDirectory() as directory:
        program, source = Path(directory) / "print", Path(directory) / "print.c"
        source.write_text(text)
        places = [f"-I{include}", f"-I{include}/x86_64-linux-gnu"]
        subprocess.run(["gcc", "-w", *places, "-o", program, source], check=True, timeout=COMMAND_TIMEOUT_S)
        output = subprocess.run([program], check=True, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
    lines = (line.split() for line in output.stdout.splitlines())
    return {name: _parts(int(cmd)) for name, cmd in lines}


def _parts(cmd: int) -> tuple[int, int, int]:
    return cmd >> 8 & 0xFF, cmd & 0xFF, cmd >> 16 & 0x3FFF


def _unpacked(suite: str) -> tuple[str, Path]:
    """Version and include directory of linux-libc-dev as that suite has it."""
    home = CACHE / suite
    stamp = home / "version"
    if not stamp.exists() or time.time() - stamp.stat().st_mtime > MAX_AGE_S:
        _download(suite, home)
    return stamp.read_text(), home / "root/usr/include"


def _download(suite: str, home: Path) -> None:
    for directory in ("state/lists/partial", "cache/archives/partial"):
        (home / directory).mkdir(parents=True, exist_ok=True)
    mirror = next(iter(read_recipes().values())).mirror
    (home / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror} {suite} main\n")
    _apt(home, "apt-get", "update")
    package = _fetch(home, "linux-libc-dev")
    if not (home / "root/usr/include/drm").exists():
        # Debian 12 leaves these to libdrm, whose copy is older than the kernel
        found = _apt(home, "apt-cache", "pkgnames", "linux-headers-").split()
        names = (name for name in found if re.fullmatch(r"linux-headers-[\d.-]+-common", name))
        name = max(names, key=lambda name: [int(number) for number in re.findall(r"\d+", name)])
        _fetch(home, name)
        (home / "root/usr/include/drm").symlink_to(home / "root/usr/src" / name / "include/uapi/drm")
    (home / "version").write_text(package.name.split("_")[1])


def _fetch(home: Path, name: str) -> Path:
    """Downloads and unpacks a package."""
    for old in home.glob(f"{name}_*.deb"):
        old.unlink()
    _apt(home, "apt-get", "download", name)
    (package,) = home.glob(f"{name}_*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, home / "root"], check=True, timeout=COMMAND_TIMEOUT_S)
    return package


def _apt(home: Path, program: str, *arguments: str) -> str:
    options = {
        "Dir::Etc::SourceList": home / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State": home / "state",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": home / "cache",
        "APT::Architecture": "amd64",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    command = [program, "-qq", *(f"-o{key}={value}" for key, value in options.items()), *arguments]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, cwd=home, timeout=COMMAND_TIMEOUT_S
    ).stdout


def merge(releases: dict[str, dict[str, Numbers]]) -> Iterator[tuple[str, dict[str, object]]]:
    """Per header, per call: its numbers, and the size of its argument by version."""
    for header in sorted({header for headers in releases.values() for header in headers}):
        calls: dict[str, dict[str, object]] = {}
        for version, headers in releases.items():
            for name, (type_byte, nr, size) in headers.get(header, {}).items():
                call = calls.setdefault(name, {"type": type_byte, "nr": nr, "size": {}})
                assert (call["type"], call["nr"]) == (type_byte, nr), f"{name} has another number in {version}"
                assert isinstance(call["size"], dict)
                call["size"][version] = size
        yield header, dict(sorted(calls.items()))


def fixture() -> dict[str, dict[str, Numbers]]:
    """What main() wrote: per version, the calls of each header."""
    document = json.loads(FIXTURE.read_text())
    releases: dict[str, dict[str, Numbers]] = {version: {} for version in document["versions"]}
    for header, calls in document["headers"].items():
        for name, call in calls.items():
            for version, size in call["size"].items():
                releases[version].setdefault(header, {})[name] = (call["type"], call["nr"], size)
    return releases


def main() -> None:
    releases = dict(read_numbers(suite) for suite in SUITES)
    headers = {header: {name: json.dumps(call) for name, call in calls.items()} for header, calls in merge(releases)}
    lines = json.dumps({"versions": list(releases), "headers": headers}, indent=1)
    # one line per call: what json.dumps made of the inner documents are strings that hold JSON
    FIXTURE.write_text(re.sub(r'": "(\{.*\})"', lambda m: f'": {m[1]}'.replace(r"\"", '"'), lines) + "\n")


if __name__ == "__main__":
    main()
