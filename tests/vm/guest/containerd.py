# SPDX-License-Identifier: Apache-2.0
"""The guest's container runtime: Debian's containerd with a handler per OCI runtime and cgroup driver, and an image.

Owns /etc/containerd/config.toml and the running containerd.service. There is no registry and no CNI: the image is
built here around the static busybox and the workload, and pods live in the node's network.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path

from tests.vm.guest import tally

PROGRAM = Path("/usr/bin/containerd")
SOCKET = Path("/run/containerd/containerd.sock")
IMAGE = "kubenpu.test/workload:1"
CRI = 'plugins."io.containerd.grpc.v1.cri"'
OCI_RUNTIMES = ("crun", "runc")  # crun starts a container in less than half of runc's time under emulation
CRUN_SUBGROUP = "run.oci.systemd.subgroup"  # annotation: name of the cgroup that crun adds below a systemd scope
DRIVERS = ("systemd", "cgroupfs")

CONFIG = f"""\
version = 2
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]
[{CRI}]
sandbox_image = "{IMAGE}"
[{CRI}.containerd]
default_runtime_name = "{OCI_RUNTIMES[0]}-{DRIVERS[0]}"
"""
HANDLER = """\
[{cri}.containerd.runtimes.{oci}-{driver}]
runtime_type = "io.containerd.runc.v2"
container_annotations = ["{annotation}"]
[{cri}.containerd.runtimes.{oci}-{driver}.options]
BinaryName = "{oci}"
SystemdCgroup = {systemd}
"""


def start() -> None:
    """Start containerd with our configuration and give it the image. Returns when it answers."""
    handlers = [
        HANDLER.format(
            cri=CRI, oci=oci, driver=driver, annotation=CRUN_SUBGROUP, systemd=str(driver == "systemd").lower()
        )
        for oci in OCI_RUNTIMES
        for driver in DRIVERS
    ]
    Path("/etc/containerd/config.toml").write_text(CONFIG + "".join(handlers))
    subprocess.run(["systemctl", "restart", "containerd"], check=True)
    with tempfile.NamedTemporaryFile(suffix=".tar") as archive:
        archive.write(docker_archive())
        archive.flush()
        command = ["ctr", "--namespace", "k8s.io", "images", "import", archive.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def docker_archive() -> bytes:
    """IMAGE as `docker save` writes it."""
    layer = _tar({"bin/busybox": Path("/bin/busybox").read_bytes(), "bin/workload": tally.WORKLOAD.read_bytes()}, 0o755)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/bin/workload"], "Cmd": ["--hold"], "Env": ["PATH=/bin"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    config_text = json.dumps(config).encode()
    config_name = f"{hashlib.sha256(config_text).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]).encode()
    return _tar({config_name: config_text, "layer.tar": layer, "manifest.json": manifest}, 0o644)


def _tar(files: dict[str, bytes], mode: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), mode
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()
