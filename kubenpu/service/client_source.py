# SPDX-License-Identifier: Apache-2.0
"""Device time and memory on their way into the node's picture: the file of kubenpu-clients, and whether it is late.

What nobody looks at any more is not shown: a total that stands still would say that everybody is idle. The rows stay
in the sample, because they keep the names of who is gone. Not for two threads at once: the node has the lock.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from kubenpu.ledger.clients_file import NAME, LatestClients
from kubenpu.model.errors import SourceError
from kubenpu.model.sample import CgroupRecord, KernelSample
from kubenpu.service.sources import Sources

CLIENTS = "clients"
GRACE_NS = 10_000_000_000
BOOT_NS = 60_000_000_000
"""So long after the boot kubenpu-clients may not have looked yet."""


class ClientSource:
    """`join` notes among the sources how kubenpu-clients is."""

    def __init__(self, run_directory: Path, boot_id: str, sources: Sources) -> None:
        self._latest = LatestClients(run_directory / NAME, boot_id)
        self._sources = sources

    def join(self, sample: KernelSample, *, wanted: bool) -> KernelSample:
        """With what kubenpu-clients says. `wanted`: there is a device whose driver has something to say; else it is no
        source where it has never run."""
        begin, reason, found = time.monotonic(), "", None
        try:
            found = self._latest.read()
        except SourceError as e:
            reason = str(e)
        late = found is not None and sample.taken_ns > found.due_ns + GRACE_NS
        if found is not None:
            reason = "kubenpu-clients looks no more" if late else found.trouble
        elif not reason and wanted and sample.taken_ns > BOOT_NS:
            reason = "kubenpu-clients has not run since boot. Run: systemctl enable --now kubenpu-clients"
        if found is not None or reason:
            self._sources.note(CLIENTS, reason, time.monotonic() - begin)
        if found is None:
            return sample
        records = {u.cgroup_id: CgroupRecord(u.cgroup_id, u.path, False, u.first_ns) for u in found.uses if u.cgroup_id}
        generation = 0 if late else found.generation
        cgroups = {**records, **sample.cgroups}
        return replace(sample, clients=found.uses, client_generation=generation, cgroups=cgroups)
