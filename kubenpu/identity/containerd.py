# SPDX-License-Identifier: Apache-2.0
"""The image of a container that nerdctl made: containerd's own API has it, and no file that could be read.

Asks once, with a connection of its own, for a short time. Refuses to wait, and to mind: without an answer a container
has its name nevertheless.
"""

from __future__ import annotations

from pathlib import Path

import grpc

from kubenpu.identity.cri import CHANNEL_OPTIONS, grpc_target
from kubenpu.identity.wire import nested, read_message, read_text, write_text

ASK_SECONDS = 1.0
_GET = "/containerd.services.containers.v1.Containers/Get"


def image_of(socket: Path, namespace: str, container_id: str) -> str:
    """As containerd names it, "" when it does not say. `namespace` is containerd's."""
    with grpc.insecure_channel(grpc_target(socket), options=CHANNEL_OPTIONS) as channel:
        get = channel.unary_unary(_GET)
        try:
            metadata = (("containerd-namespace", namespace),)
            answer = get(write_text(1, container_id), timeout=ASK_SECONDS, metadata=metadata)
            return read_text(nested(read_message(answer), 1), 3)
        except (grpc.RpcError, ValueError):
            return ""
