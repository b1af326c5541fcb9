# SPDX-License-Identifier: Apache-2.0
"""Batch systems: which job a cgroup path belongs to. Slurm, HTCondor, Nomad and PBS, whose paths have the job's id.

Pure, and only for the places at the root where these systems make their cgroups as root: the same names further down
may be anybody's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_FORMS = tuple(
    (system, re.compile(pattern, re.DOTALL))
    for system, pattern in (
        # A node with several slurmd has their names in it. Since 26.05 a job is named by its SLUID.
        ("slurm", r"system\.slice/(?:[^/]+_)?slurmstepd\.scope/(?:job_(?P<id>[0-9]+)|(?P<sluid>s[0-9A-Z]{13}))(?:/|$)"),
        ("slurm", r"slurm(?:_[^/]+)?/uid_[0-9]+/job_(?P<id>[0-9]+)(?:/|$)"),
        # The path has the slot, not the job; what comes before is the directory that jobs are executed in.
        ("htcondor", r"(?:system\.slice/)?htcondor/(?:[^/]*_)?(?P<id>slot[0-9_]+@[^/]+?)(?:\.slice|\.scope)?(?:/|$)"),
        ("nomad", rf"nomad(?:\.slice)?/(?:(?:share|reserve)\.slice/)?(?P<id>{_UUID}\.[^/]+?)(?:\.scope)?(?:/|$)"),
        ("pbs", r"pbs_jobs\.service/job(?:s|id)/(?P<id>[^/]+)(?:/|$)"),
    )
)
LONGEST = 1024
"""As much of a path as the forms can need: four names of 255 characters and what is between them."""


def find_job(segments: Sequence[str]) -> tuple[str, int] | None:
    """The name of the job, such as `slurm:123`, and how many segments it takes to tell; None: it is of no job."""
    path = "/".join(segments[:4])[:LONGEST]
    for system, form in _FORMS:
        if match := form.match(path):
            name = next(filter(None, match.groups()))
            return f"{system}:{name}", match[0].rstrip("/").count("/") + 1
    return None
