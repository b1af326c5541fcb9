# SPDX-License-Identifier: Apache-2.0
"""Tests on real kernels: emulated guests with real pods on real DRM devices.

How to add a case: write a test in cases/ as anywhere else. It runs in every amd64 guest, as root, in /opt/kubenpu, with
the product installed as by a package. Fixtures: `virtio` and `vgem` (DRM devices), `runtime` (containerd). Pods come
from `guest.pods.pod`, workloads without pods from `guest.tally.run`, cgroups of any name from `guest.handmade`, devices
that nobody has here from `guest.fake`, waiting from `guest.wait.until`. `@pytest.mark.guests("trixie73")` limits a case
to guests that can do it: a skip is a failure. `@pytest.mark.every_machine` adds the arm64 guests, which have no
container runtime: `fake_cri` and `handmade.pod` do there; `@pytest.mark.guests("trixie-gl")` means the guest in which
programs draw (`guest.mesa`). `@pytest.mark.deadline(300)` gives a case more than 180 seconds. What a case starts it
ends. The host collects these files too: import the product inside the test, or use its commands.

    pytest tests/vm -k 'trixie and flood'               one guest, some cases; image and boot included
    python3 -m tests.vm.rig trixie -- 'uname -r'        any command in a guest, for development
    build/vm/GUEST/                                     what the last run left: console, journal, output, results

How long things take under emulation on two cores: an image 70-120 s (once), a boot 20 s, a pod 1.5 s, a container 1.5 s
with crun and 3 s with runc.
"""
