# SPDX-License-Identifier: Apache-2.0
"""What is kept of a name that a cluster, a container runtime or a workload chose. Its input is hostile by assumption.

Refuses nothing and raises nothing: every text becomes a name that is safe as a label value, in a log line and on a
terminal. Names that differ within the limit stay different.
"""

from __future__ import annotations

from kubenpu.model.text import printable

NAMESPACE_MAX = 63
POD_MAX = 253
CONTAINER_MAX = 63
UNIT_MAX = 255
LABEL_MAX = 253
IMAGE_MAX = 255


def clean_name(text: str, limit: int) -> str:
    """The first `limit` characters of the name, each that is not printable as an escape.

    The limits are those of Kubernetes for names (253), namespaces and containers (63), and of the kernel for cgroups
    (255). A value of a label has at most 63 characters, one of an annotation any number.
    """
    return printable(text[:limit])
