# SPDX-License-Identifier: Apache-2.0
"""`make bench`: measures on this machine, now, and prints figures and ratios. Judges nothing."""

from __future__ import annotations

import os
import statistics
import sys
import time

from tests.bench import body, daemon, history


def main() -> int:
    if os.geteuid() != 0:
        print("Run it as root: sudo make bench", file=sys.stderr)
        return 1
    print(f"{time.strftime('%Y-%m-%d')}, {os.uname().release} {os.uname().machine}, {os.cpu_count()} CPUs\n")
    _print_cost()
    _print_full_rate()
    _print_daemon()
    _print_history()
    return 0


def _print_cost() -> None:
    found = body.cost()
    base = found[0].ns
    print(f"{'one call, one thread':62}{'ns':>8}{'ratio':>8}")
    for figure in found:
        print(f"{figure.name:62}{figure.ns:8.1f}{figure.ns / base:8.2f}")


def _print_full_rate() -> None:
    print(f"\n{'all threads at full rate':62}{'ns':>8}{'ratio':>8}{'lost':>12}")
    for threads in (1, 2):
        ours, peer = body.full_rate(threads)
        for figure in (ours, peer):
            lost = (figure.lost or 0) / figure.made
            print(f"{figure.name:62}{figure.ns:8.1f}{figure.ns / ours.ns:8.2f}{lost:11.1%}")


def _print_daemon() -> None:
    print()
    with daemon.prepared() as service:
        starts = []
        for _ in range(5):
            with daemon.started(service) as running:
                starts.append(running.ready_s)
        print(f"{'kubenpud, start to READY, seconds':62}{statistics.median(starts):8.2f}")
        with daemon.started(service) as running:
            daemon.scrape(service.url)
            print(f"{'kubenpud, RSS when idle, no D-Bus, no runtime, MiB':62}{running.status('VmRSS') / 1024:8.1f}")
            idle, busy, rate = daemon.idle_and_flood(service, running)
            print(f"{'kubenpud, share of a core when idle':62}{idle:8.4f}")
            print(f"{f'kubenpud, share of a core at {rate:,.0f} counted calls a second':62}{busy:8.4f}")
        daemon.fill(service)
        with daemon.started(service) as running:
            for name, accept in (("text", "text/plain"), ("OpenMetrics", "application/openmetrics-text;version=1.0.0")):
                took = [daemon.scrape(service.url, accept) for _ in range(7)]
                ms = statistics.median(ms for ms, _ in took)
                peer = daemon.peer_scrape()
                label = f"scrape, {name}, {took[0][1]:,} series, ms (ratio: to objects kept per series)"
                print(f"{label:62}{ms:8.1f}{ms / peer:8.2f}")
            print(f"{'kubenpud, RSS after those scrapes, MiB':62}{running.status('VmRSS') / 1024:8.1f}")


def _print_history() -> None:
    found = history.measure()
    print()
    print(f"{f'history, a minute in which {history.PODS} pods called, ms of CPU time':62}{found.cpu_ms:8.1f}")
    print(f"{'the same, share of a core':62}{found.cpu_ms / 60_000:8.5f}")
    print(f"{'the same, KiB in the file':62}{found.bytes / 1024:8.1f}")
    print(f"{f'report over {history.MINUTES} such minutes, ms':62}{found.report_ms:8.1f}")


if __name__ == "__main__":
    sys.exit(main())
