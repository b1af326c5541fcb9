# SPDX-License-Identifier: Apache-2.0
"""kubenpud: reads the pinned totals, resolves owners, serves metrics, D-Bus, Varlink. Loads no program, needs no right.

One asyncio loop waits for the bell (a new cgroup), for uevents (devices), and for the clock; blocking work runs in
one worker thread, each scrape in its own. Nothing polls faster than every few seconds, however many calls are counted.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sdnotify

from kubenpu import __version__
from kubenpu.config.log import set_up_logging
from kubenpu.config.reload import plan_reload
from kubenpu.config.settings import Settings, parse_daemon_arguments, read_settings
from kubenpu.devices.watch import DeviceWatch
from kubenpu.exporters.prometheus import Exposition
from kubenpu.exporters.web import WebServer
from kubenpu.exporters.web_access import OPEN
from kubenpu.exporters.web_listen import passed_for_metrics
from kubenpu.exporters.web_pages import node_routes
from kubenpu.identity.index import cgroup_mount
from kubenpu.kernel.bpf import Bell
from kubenpu.kernel.store import LOSS_REASONS
from kubenpu.model.errors import AddressError, ConfigError, KubeNpuError, SourceError
from kubenpu.model.view import OPTIONAL_SOURCES
from kubenpu.service.event_loop import asyncio
from kubenpu.service.history import History
from kubenpu.service.node import Node

if TYPE_CHECKING:
    from kubenpu.exporters.dbus import DbusServer
    from kubenpu.exporters.picture import Pictures
    from kubenpu.exporters.varlink import VarlinkServer
    from kubenpu.exporters.web_access_file import AccessFile

log = logging.getLogger(__name__)
TIDY_SECONDS = 5.0
RESCAN_SECONDS = 60.0
SETTLE_SECONDS = 2.0  # a module tells of itself before it has made its devices
KUBELET_SECONDS = 30.0
STEPS = ("rescan", "tidy", "resolve", "allocations", "record")
IDLE_SECONDS = 5.0  # a cgroup that got its cell later than its name does not ring the bell again


class Daemon:
    """The event loop around one Node. `read_again` reads the settings from where they came from."""

    def __init__(self, settings: Settings, node: Node, read_again: Callable[[], Settings]) -> None:
        self._settings = settings
        self._read_again = read_again
        self._node = node
        self._history = History(node, settings)
        self._notify = sdnotify.SystemdNotifier()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="work")
        self._wake = asyncio.Event()
        self._stopping = False
        self._due: dict[str, float] = {"reload": math.inf, "settled": math.inf, **dict.fromkeys(STEPS, 0.0)}
        self._bell: Bell | None = None
        self._watch: DeviceWatch | None = None
        self._status = ""
        self._server: WebServer | None = None
        self._reload_trouble = ""
        self._dbus: DbusServer | None = None
        self._serving: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. Raises KubeNpuError when the metrics cannot be served at all."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self.request_reload, loop)
        try:
            server = self._server = self._make_server()
            self._watch_devices(loop)
            await self._work(loop, ("rescan", "tidy"))
            server.start()
            self._serve_interfaces(loop)
            self._notify.notify("READY=1")
            log.info("kubenpud %s serves %s: %s", __version__, server.describe(), self._node.summary())
            while not self._stopping:
                await self._work(loop, [n for n, at in self._due.items() if at <= loop.time()])
                await self._sleep(loop)
        finally:
            self._notify.notify("STOPPING=1")
            await self._stop_interfaces()
            if self._server is not None:
                self._server.stop()
            self._worker.shutdown()
            self._history.close()
            if self._watch is not None:
                self._watch.close()
            self._node.close()

    def _make_server(self) -> WebServer:
        """Not listening yet. Raises KubeNpuError when what is configured for it cannot be had."""
        exposition = Exposition(self._node.view, self._node.visibility, LOSS_REASONS, self._node.work_of)
        about = "SIMULATED NODE: these devices and workloads do not exist." if self._node.simulated else ""
        routes = node_routes(self._settings.telemetry_path, exposition.render, self._not_ready, about)
        access = self._read_access()
        log.info("metrics: %s", (access.current if access is not None else OPEN).describe())
        passed = passed_for_metrics(self._settings.systemd_socket)
        return WebServer(self._settings.listen_addresses, routes, access, passed)

    def _read_access(self) -> AccessFile | None:
        if not self._settings.web_config_file:
            return None
        from kubenpu.exporters.web_access_file import AccessFile  # noqa: PLC0415 - OpenSSL, likewise

        return AccessFile(Path(self._settings.web_config_file))

    def _not_ready(self) -> str:
        """Why /-/ready is not 200, "" when it is."""
        sources = self._node.view().sources
        return "; ".join(f"{s.source}: {s.reason}" for s in sources if not s.up and s.source not in OPTIONAL_SOURCES)

    def request_reload(self, loop: asyncio.AbstractEventLoop) -> None:
        """Reads the settings again as soon as the worker thread has time."""
        self._due["reload"] = loop.time()
        self._wake.set()

    def _stop(self) -> None:
        self._stopping = True
        self._wake.set()

    async def _sleep(self, loop: asyncio.AbstractEventLoop) -> None:
        delay = max(0.0, min(self._due.values()) - loop.time())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), delay)
        self._wake.clear()

    async def _work(self, loop: asyncio.AbstractEventLoop, names: Sequence[str]) -> None:
        """Does what is due, in the worker thread, and says when it is due next."""
        steps: dict[str, Callable[[], float]] = {
            "reload": self._reload,
            "rescan": partial(self._rescan, RESCAN_SECONDS),
            "settled": partial(self._rescan, math.inf),
            "tidy": self._tidy,
            "resolve": self._resolve,
            "allocations": self._ask_kubelet,
            "record": self._history.step,
        }
        for name in names:
            self._due[name] = math.inf  # what becomes due while the step runs stays due
            pause = await loop.run_in_executor(self._worker, steps[name])
            self._due[name] = min(self._due[name], loop.time() + pause)
        self._listen_to_bell(loop)
        if "rescan" in names:
            self._follow_tables(loop)
        if names:
            self._tell_systemd()
            if self._dbus is not None:
                self._dbus.changed()

    def _serve_interfaces(self, loop: asyncio.AbstractEventLoop) -> None:
        """What is not asked for is not imported: that is megabytes."""
        from kubenpu.exporters.picture import Pictures  # noqa: PLC0415

        pictures = Pictures(self._node)
        if self._settings.dbus_address:
            from kubenpu.exporters.dbus import DbusServer  # noqa: PLC0415

            self._dbus = DbusServer(self._node, pictures, self._settings.dbus_address, self.reload, self._history.usage)
            self._start(loop, "dbus", self._dbus.run())
        if self._settings.varlink_address:
            try:
                self._start(loop, "varlink", self._make_varlink(pictures).run())
            except KubeNpuError as e:
                self._note("varlink", str(e))

    def _make_varlink(self, pictures: Pictures) -> VarlinkServer:
        try:
            from kubenpu.exporters.varlink import VarlinkServer, open_listeners  # noqa: PLC0415
        except ModuleNotFoundError as e:
            if (e.name or "").partition(".")[0] != "varlink":
                raise
            raise SourceError("the library python3-varlink is missing", "Install it, or empty varlink.address") from e
        return VarlinkServer(self._node, pictures, open_listeners(self._settings.varlink_address))

    def _start(self, loop: asyncio.AbstractEventLoop, source: str, serving: Coroutine[Any, Any, None]) -> None:
        task = loop.create_task(serving, name=source)
        task.add_done_callback(self._on_end)
        self._serving.append(task)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """It ends when it is cancelled; anything else is a mistake of ours, which must not be silent."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("%s is no longer served: %s", task.get_name(), error, exc_info=error)
            self._note(task.get_name(), f"{type(error).__name__}: {error}")

    def _note(self, source: str, reason: str) -> None:
        """In the worker: the node may be busy, and the loop waits for nothing but events."""
        self._worker.submit(self._node.note_source, source, reason, 0.0)

    async def _stop_interfaces(self) -> None:
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    async def reload(self) -> None:
        """For whoever asks over D-Bus: what SIGHUP does. SourceError when settings or devices cannot be read."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._worker, self._reload)
        if self._reload_trouble:
            raise SourceError(self._reload_trouble)
        await loop.run_in_executor(self._worker, self._node.reload)

    def _reload(self) -> float:
        """All of it or nothing: an unusable file leaves what is in force. Driver tables are read again in any case."""
        self._notify.notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            plan = plan_reload(self._settings, self._read_again())
            if self._server is not None:
                self._server.reload()
        except KubeNpuError as e:
            self._reload_trouble = f"reload failed, what was in force stays: {e}"
            log.error("%s", self._reload_trouble)
        else:
            self._reload_trouble = ""
            self._settings = plan.settings
            self._node.apply(plan.settings)
            self._history.apply(plan.settings)
            if not {"log.level", "log.format"}.isdisjoint(plan.applied):
                set_up_logging(plan.settings.log_level, plan.settings.log_format)
            log.log(logging.WARNING if plan.waiting else logging.INFO, "reload: %s", plan.describe())
        self._due |= dict.fromkeys(("rescan", "resolve", "allocations"), 0.0)
        self._notify.notify("READY=1")
        return math.inf

    def _rescan(self, pause: float) -> float:
        self._node.rescan_devices()
        return pause

    def _tidy(self) -> float:
        self._node.open()
        self._node.tidy()
        return TIDY_SECONDS

    def _resolve(self) -> float:
        wait = self._node.resolve()
        return IDLE_SECONDS if wait is None else min(wait, IDLE_SECONDS)

    def _ask_kubelet(self) -> float:
        self._node.ask_kubelet()
        return KUBELET_SECONDS

    def _tell_systemd(self) -> None:
        status = "; ".join(filter(None, (self._node.summary(), self._reload_trouble)))
        self._notify.notify("WATCHDOG=1")
        if status != self._status:
            self._notify.notify(f"STATUS={status}")
            self._status = status

    def _listen_to_bell(self, loop: asyncio.AbstractEventLoop) -> None:
        """Follows the node to another bell when the pins were made anew; the new fd may have the old number."""
        bell = self._node.bell()
        if bell is not self._bell:
            self._leave_bell(loop)
            if bell is not None:
                loop.add_reader(bell.fd, self._on_bell, loop)
            self._bell = bell

    def _leave_bell(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._bell is not None:
            loop.remove_reader(self._bell.fd)
            self._bell = None

    def _on_bell(self, loop: asyncio.AbstractEventLoop) -> None:
        """A new cgroup. The bell rings until the node silences it, in the worker: it is not listened to until then."""
        self._leave_bell(loop)
        self._due["resolve"] = loop.time()
        self._wake.set()

    def _watch_devices(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._watch = DeviceWatch(self._node.event_subsystems())
        except SourceError as e:
            log.warning("%s", e)
            return
        loop.add_reader(self._watch.fileno(), self._on_device, loop)

    def _on_device(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._watch is None:
            return
        try:
            changed = self._watch.drain()
        except SourceError as e:
            log.warning("%s", e)
            loop.remove_reader(self._watch.fileno())
            self._watch.close()
            self._watch = None
            changed = True
        if changed:
            self._scan_now(loop)

    def _scan_now(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due["rescan"] = loop.time()
        self._due["settled"] = loop.time() + SETTLE_SECONDS
        self._wake.set()

    def _follow_tables(self, loop: asyncio.AbstractEventLoop) -> None:
        """Driver tables that were read now may know nodes of further classes."""
        if self._watch is not None and self._watch.follow(self._node.event_subsystems()):
            self._scan_now(loop)


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        options = parse_daemon_arguments(arguments)
        settings = read_settings(options)
        set_up_logging(settings.log_level, settings.log_format)
        mount = cgroup_mount(settings.cgroup_root)
        node = Node(settings, mount)
        asyncio.run(Daemon(settings, node, lambda: read_settings(options)).run())
    except KubeNpuError as e:
        return _give_up(e)
    return 0


def _give_up(error: KubeNpuError) -> int:
    """Says why, to systemd too, and by the exit code whether another start may do better."""
    log.error("%s", error)
    sdnotify.SystemdNotifier().notify(f"STATUS={' '.join(str(error).split())}")
    lasting = isinstance(error, ConfigError) and not isinstance(error, AddressError)
    return os.EX_CONFIG if lasting else 1


if __name__ == "__main__":
    sys.exit(main())
