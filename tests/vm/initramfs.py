# SPDX-License-Identifier: Apache-2.0
"""The first root of a guest: a static busybox, the modules that find the disk, and ten lines of shell.

Made from an unpacked Debian root directory, for the one kernel in it. A distribution's own initramfs starts udev and
waits for devices: under emulation that is most of the boot. Refuses nothing; a missing module shows on the console.
"""

from __future__ import annotations

import lzma
import subprocess
from pathlib import Path

MODULES = ("virtio_pci", "virtio_blk", "ext4")

INIT = """\
#!/busybox sh
/busybox mount -t devtmpfs dev /dev
for module in $(/busybox cat /modules); do
    /busybox insmod $module
done
tries=100
until [ -b /dev/vda ] || [ $tries = 0 ]; do
    /busybox sleep 0.1
    tries=$((tries - 1))
done
/busybox mount -t ext4 /dev/vda /root && /busybox mount --move /dev /root/dev
exec /busybox switch_root /root /sbin/init
"""


def write_initramfs(root: Path, release: str, scratch: Path, target: Path) -> None:
    """Write `target`, a cpio archive, from the system unpacked in `root`. `scratch` is an empty directory."""
    for name in ("dev", "root"):
        (scratch / name).mkdir()
    (scratch / "busybox").write_bytes((root / "bin/busybox").read_bytes())
    (scratch / "init").write_text(INIT)
    names = []
    for path in _module_files(root, release):
        name = path.name.removesuffix(".xz")
        data = path.read_bytes()
        (scratch / name).write_bytes(lzma.decompress(data) if path.suffix == ".xz" else data)
        names.append(f"/{name}")
    (scratch / "modules").write_text("\n".join(names) + "\n")
    for name in ("busybox", "init"):
        (scratch / name).chmod(0o755)
    listing = "\n".join(str(path.relative_to(scratch)) for path in sorted(scratch.rglob("*"))) + "\n"
    command = ["cpio", "-o", "-H", "newc", "-F", str(target)]
    subprocess.run(command, check=True, cwd=scratch, input=listing, text=True, stderr=subprocess.DEVNULL)


def _module_files(root: Path, release: str) -> list[Path]:
    """Files to load, dependencies first; what is built into the kernel has none."""
    command = ["modprobe", "-d", str(root), "-S", release, "--show-depends", "-a", *MODULES]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    paths = [Path(words[1]) for line in listing.splitlines() if (words := line.split())[0] == "insmod"]
    return list(dict.fromkeys(paths))
