# SPDX-License-Identifier: Apache-2.0
"""Guest images: built from images.toml once, then kept in a cache outside the tree.

Owns the cache directory (KUBENPU_VM_CACHE, else /var/cache/kubenpu-vm). An image is a directory named after the guest
and the hash of its recipe and of the code that builds it: `root.img` (ext4), `vmlinuz`, `initrd.img` and `kernel`
(its release). It is complete or absent; images of older recipes of the same guest are removed. The test module
(module/) is compiled inside for the image's kernel: `modprobe fakeaccel`. An image of another machine is unpacked and
takes its configuration from one of this; its module is compiled in a root of its suite for this machine, which is
thrown away. Needs root, mmdebstrap, mke2fs and debugfs. Refuses to touch a booted image: guests run on snapshots of it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.vm import initramfs

RECIPES = Path(__file__).with_name("images.toml")
MODULE = Path(__file__).with_name("module")
JOB_UNIT = "kubenpu-job.service"
FREE_BYTES = 2 << 30
MACHINE = "x86_64"  # of guests that do not say
DEBIAN_NAMES = {"aarch64": "arm64", "x86_64": "amd64"}
TRIPLETS = {"aarch64": "aarch64-linux-gnu"}
MERGE_USR = "--hook-dir=/usr/share/mmdebstrap/hooks/maybe-merged-usr"

# Runs the job that the host left in the share; the machine is off when it ends, however it ends.
JOB_UNIT_TEXT = """\
[Unit]
Description=Job of the host
After=multi-user.target
SuccessAction=poweroff-force
FailureAction=poweroff-force

[Service]
Type=exec
Environment=HOME=/root
ExecStart=/usr/lib/kubenpu-job
"""
JOB_SCRIPT = """\
#!/bin/sh -e
modprobe -a 9pnet_virtio virtio_console
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 share /mnt
udevadm settle --exit-if-exists=/dev/virtio-ports/job
sh /mnt/job <>/dev/virtio-ports/job >&0 2>&1 || echo "job: exit status $?" >/dev/console
sync
umount -l /mnt
"""

COPY_MODULE = f"copy-in {shlex.quote(str(MODULE))} /usr/src"
# While these run /proc is mounted in the new root, which objtool of newer kernels needs.
MODULE_HOOKS = (
    COPY_MODULE,
    'release=$(basename "$1"/boot/vmlinuz-*); release=${release#vmlinuz-}; '
    'chroot "$1" make -s -C "/lib/modules/$release/build" M=/usr/src/module modules '
    '&& install -D -m 644 -t "$1/lib/modules/$release/updates" "$1"/usr/src/module/*.ko '
    '&& chroot "$1" depmod "$release"',
)
# The headers of the other machine want its compiler beside them: so they are unpacked and no more.
CROSS_MODULE_HOOKS = (
    COPY_MODULE,
    'cd "$1/root" && APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get -qq -o APT::Sandbox::User=root '
    'download "linux-headers-$RELEASE:{machine}"',
    'chroot "$1" dpkg --unpack --force-depends --recursive /root',
    'chroot "$1" make -s -C "/usr/src/linux-headers-$RELEASE" M=/usr/src/module ARCH={machine} '
    "CROSS_COMPILE={triplet}- modules",
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything an image is made of."""

    name: str
    mirror: str
    serial: int
    suite: str
    more_suites: tuple[str, ...]
    packages: tuple[str, ...]
    exclude: tuple[str, ...]
    mask: tuple[str, ...]
    machine: str
    configuration_of: str | None
    module_with: tuple[str, ...]

    @property
    def digest(self) -> str:
        files = (Path(__file__), Path(initramfs.__file__), *sorted(MODULE.iterdir()))
        code = "".join(file.read_text() for file in files)
        text = json.dumps(asdict(self), sort_keys=True) + code
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Image:
    """A finished image on disk. `build_seconds` is None when it came from the cache."""

    name: str
    machine: str
    root: Path
    kernel: Path
    initrd: Path
    kernel_release: str
    build_seconds: float | None


def read_recipes() -> dict[str, Recipe]:
    data = tomllib.loads(RECIPES.read_text())
    return {
        name: Recipe(
            name=name,
            mirror=data["mirror"],
            serial=data["serial"],
            suite=guest["suite"],
            more_suites=tuple(guest["more_suites"]),
            packages=(
                *data["packages"],
                *data["for_unpacked" if "configuration_of" in guest else "for_installed"],
                *guest["packages"],
            ),
            exclude=tuple(data["exclude"]),
            mask=tuple(data["mask"]),
            machine=guest.get("machine", MACHINE),
            configuration_of=guest.get("configuration_of"),
            module_with=tuple(guest.get("module_with", ())),
        )
        for name, guest in data["guest"].items()
    }


def ensure(name: str) -> Image:
    """The image of this guest, built now if the cache has none."""
    recipe = read_recipes()[name]
    cache = Path(os.environ.get("KUBENPU_VM_CACHE", "/var/cache/kubenpu-vm"))
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / f"{name}-{recipe.digest}"
    began = time.monotonic()
    with locked(cache / f".{name}.lock"):
        built = not target.is_dir()
        if built:
            print(f"building image {target} ...", flush=True)
            _build(recipe, target)
            print(f"built {target} in {time.monotonic() - began:.0f} s", flush=True)
            _remove_older(cache, name, keep=target)
    return Image(
        name=name,
        machine=recipe.machine,
        root=target / "root.img",
        kernel=target / "vmlinuz",
        initrd=target / "initrd.img",
        kernel_release=(target / "kernel").read_text().strip(),
        build_seconds=time.monotonic() - began if built else None,
    )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits for whoever has it."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_older(cache: Path, name: str, keep: Path) -> None:
    for old in cache.glob(f"{name}-*"):
        if old != keep and old.name.rpartition("-")[0] == name:
            shutil.rmtree(old)


def _build(recipe: Recipe, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{recipe.name}-", dir=target.parent) as scratch:
        root, done = Path(scratch, "root"), Path(scratch, "image")
        done.mkdir()
        if recipe.configuration_of is None:
            _bootstrap(recipe, root, "minbase", recipe.packages, hooks=MODULE_HOOKS)
        else:
            architecture = f"--architectures={DEBIAN_NAMES[recipe.machine]}"
            _bootstrap(recipe, root, "extract", recipe.packages, architecture, MERGE_USR)
            _cross_build_module(recipe, root, Path(scratch, "builder"))
            _take_configuration(ensure(recipe.configuration_of), root)
        _configure(recipe, root)
        _extract_kernel(root, Path(scratch), done)
        _make_file_system(root, done / "root.img")
        done.rename(target)


def _bootstrap(
    recipe: Recipe,
    root: Path,
    variant: str,
    packages: Sequence[str],
    *options: str,
    hooks: Sequence[str] = (),
    **environment: str,
) -> None:
    sources = [f"deb {recipe.mirror} {suite} main" for suite in (recipe.suite, *recipe.more_suites)]
    command = ["mmdebstrap", "--quiet", "--mode=root", f"--variant={variant}", f"--include={','.join(packages)}"]
    command += [f"--dpkgopt=path-exclude={pattern}" for pattern in recipe.exclude]
    command += [f"--customize-hook={hook}" for hook in hooks]
    command += ["--aptopt=Acquire::Languages none", *options]
    command += [recipe.suite, str(root), *sources]
    # INITRD=No: the kernel package then makes no initramfs; ours is smaller and boots faster.
    environment = {**os.environ, "INITRD": "No", **environment}
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, env=environment)


def _cross_build_module(recipe: Recipe, root: Path, builder: Path) -> None:
    """Compiles the test module for the kernel that is unpacked in `root`, and puts it there."""
    release, machine = _kernel_release(root), DEBIAN_NAMES[recipe.machine]
    hooks = [hook.format(machine=machine, triplet=TRIPLETS[recipe.machine]) for hook in CROSS_MODULE_HOOKS]
    both = f"--architectures={DEBIAN_NAMES[MACHINE]},{machine}"
    _bootstrap(recipe, builder, "minbase", recipe.module_with, both, hooks=hooks, RELEASE=release)
    target = root / "lib/modules" / release / "updates"
    target.mkdir()
    for module in (builder / "usr/src/module").glob("*.ko"):
        shutil.copy(module, target)


def _kernel_release(root: Path) -> str:
    (modules,) = (root / "lib/modules").iterdir()
    return modules.name


def _take_configuration(source: Image, root: Path) -> None:
    """What maintainer scripts would have made: /etc as they left it in another image, /mnt, and the list of modules."""
    shutil.rmtree(root / "etc")
    (root / "mnt").mkdir(exist_ok=True)
    subprocess.run(["debugfs", "-R", f"rdump /etc {root}", source.root], check=True, capture_output=True)
    (root / "etc/ld.so.cache").unlink()
    subprocess.run(["depmod", "-b", root, _kernel_release(root)], check=True)


def _configure(recipe: Recipe, root: Path) -> None:
    (root / "etc/hostname").write_text(f"{recipe.name}\n")
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost {recipe.name}\n")
    (root / "etc/fstab").write_text("")
    journal = root / "etc/systemd/journald.conf.d/kubenpu.conf"
    journal.parent.mkdir(parents=True, exist_ok=True)
    journal.write_text("[Journal]\nStorage=volatile\nRateLimitBurst=0\n")
    units = root / "etc/systemd/system"
    (units / JOB_UNIT).write_text(JOB_UNIT_TEXT)
    (root / "usr/lib/kubenpu-job").write_text(JOB_SCRIPT)
    (root / "usr/lib/kubenpu-job").chmod(0o755)
    (units / "kubenpu-rig.target").write_text(f"[Unit]\nRequires=multi-user.target\nWants={JOB_UNIT}\n")
    (units / "default.target").unlink(missing_ok=True)
    (units / "default.target").symlink_to("kubenpu-rig.target")
    (units / "multi-user.target.wants/containerd.service").unlink(missing_ok=True)
    for stamp in ("etc/.updated", "var/.updated"):  # newer than /usr: no first-boot updates
        (root / stamp).touch()
    for unit in recipe.mask:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")


def _extract_kernel(root: Path, scratch: Path, done: Path) -> None:
    release = _kernel_release(root)
    places = (root / f"boot/vmlinuz-{release}", root / "lib/modules" / release / "vmlinuz")  # the latter since 7.0
    shutil.copy(next(filter(Path.exists, places)), done / "vmlinuz")
    (done / "kernel").write_text(f"{release}\n")
    tree = scratch / "initramfs"
    tree.mkdir()
    initramfs.write_initramfs(root, release, tree, done / "initrd.img")


def _make_file_system(root: Path, image: Path) -> None:
    used = subprocess.run(["du", "-sx", "--block-size=1", root], check=True, capture_output=True, text=True)
    with image.open("wb") as file:
        file.truncate(int(used.stdout.split()[0]) + FREE_BYTES)
    options = ["-q", "-t", "ext4", "-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard", "-m", "0"]
    subprocess.run(["mke2fs", *options, "-d", root, image], check=True)
