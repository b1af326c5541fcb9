# SPDX-License-Identifier: Apache-2.0
"""A recorder that is killed again and again, whatever it is doing: nothing is lost and nothing counted twice."""

from __future__ import annotations

import mmap
import struct
import subprocess
import sys
from pathlib import Path

from tests.fakes.history_rig import GPU, MINUTE_MS, WEB, Rig, some

KILLS = 12
ROOT = Path(__file__).parents[2]
# Counts in memory that outlives it, as the kernel does, and stores as fast as it can.
RECORDING = """
import mmap, struct, sys
from pathlib import Path
from tests.fakes.history_rig import GPU, WEB, Rig, some

rig = Rig(Path(sys.argv[1]))
with open(sys.argv[2], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 8)
while True:
    (calls,) = struct.unpack("Q", memory[:])
    memory[:] = struct.pack("Q", calls + 1)
    rig.totals[WEB, GPU] = rig.devices[GPU] = some(calls + 1)
    rig.first_ns[WEB, GPU] = 1
    rig.boot_ms = rig.counting_ms + calls
    rig.recorder.record(rig.snapshot())
    print(end=".", flush=True)
"""


def test_a_recorder_that_is_killed(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_bytes(bytes(8))
    command = [sys.executable, "-c", RECORDING, str(tmp_path / "usage.db"), str(counter)]
    for stored in range(KILLS):
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
            assert process.stdout is not None
            assert process.stdout.read(stored + 1) == b"." * (stored + 1)
            process.kill()
    with counter.open("r+b") as file, mmap.mmap(file.fileno(), 8) as memory:
        (calls,) = struct.unpack("Q", memory[:])
    assert calls >= KILLS * (KILLS + 1) / 2
    rig = Rig(tmp_path / "usage.db", boot_ms=10 * MINUTE_MS + calls)
    rig.totals[WEB, GPU] = rig.devices[GPU] = some(calls)
    rig.first_ns[WEB, GPU] = 1
    rig.step()
    assert rig.submits() == {"device": calls, "unattributed": 0, "web-0": calls}
    rig.recorder.close()
