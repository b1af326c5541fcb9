# SPDX-License-Identifier: Apache-2.0
"""How a message bus of our own is started: with the policy of the system bus, and ours as it is installed."""

from __future__ import annotations

from pathlib import Path

POLICY = Path(__file__).parents[2] / "systemd/dbus/io.kubenpu.conf"
CONFIG = """\
<busconfig>
  <type>system</type>
  <listen>{address}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <deny own="*"/>
    <deny send_type="method_call"/>
    <allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
    <allow send_destination="org.freedesktop.DBus" send_interface="org.freedesktop.DBus"/>
  </policy>
  <policy user="root">
    <allow own="org.freedesktop.PolicyKit1"/>
    <allow send_destination="org.freedesktop.PolicyKit1"/>
  </policy>
  <include>{policy}</include>
</busconfig>
"""


def bus_command(config: Path, address: str, policy: Path = POLICY) -> list[str]:
    """Writes the configuration; the command prints the address when the bus is there."""
    config.write_text(CONFIG.format(address=address, policy=policy))
    return ["dbus-daemon", "--nofork", f"--config-file={config}", "--print-address=1"]
