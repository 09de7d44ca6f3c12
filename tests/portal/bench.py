#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Figures of the portal, for docs/results/clusters.md: the first page, a change until it is seen, reads of the API, 1,024 nodes on one
page. Without a VM; clusters are stopped, or their nodes fail to start. $KAGE_TOOL: the control tool.
"""
import os
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "control" / "daemon"), str(ROOT / "control" / "portal"), str(Path(__file__).resolve().parent)]
from browser import Browser  # noqa: E402
from daemon_test import Daemon, wait  # noqa: E402
from portal_test import Portal  # noqa: E402

READS, CHANGES, CLUSTERS, NODES = 10_000, 30, 64, 16
TICKS = os.sysconf("SC_CLK_TCK")

SEEN = """async nodes => {
  const {session} = await import('/api.js');
  const begun = performance.now();
  const shown = new Promise(done => {
    const look = () => document.querySelectorAll('tr[data-node]').length === nodes ? done() : requestAnimationFrame(look);
    look();
  });
  await fetch('/v1/clusters/web/scale', {method: 'POST', body: JSON.stringify({nodes}),
    headers: {'Content-Type': 'application/json', 'X-CSRF-Token': session.csrf}});
  const answered = performance.now();
  await shown;
  return [answered - begun, performance.now() - begun];
}"""

DRAWN = """async nodes => {
  const squares = () => document.querySelectorAll('.squares i').length;
  const until = async what => { while (squares() !== what) await new Promise(requestAnimationFrame); };
  location.hash = '#/events';
  await until(0);
  const begun = performance.now();
  location.hash = '#/';
  await until(nodes);
  return performance.now() - begun;
}"""

FRAMES = """async () => {
  const times = [];
  let last = performance.now();
  for (let i = 0; i < 200; ++i) {
    scrollBy(0, i < 100 ? 40 : -40);
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    times.push(now - last);
    last = now;
  }
  return times;
}"""


def percentile(values, percent):
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]


def cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def reads(portal, path):
    """Over one connection, one after the other: a second on the clock, and of the daemon's processor."""
    token = portal.token("bench-" + str(len(path)), "viewer")["Authorization"]
    request = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\n\r\n".encode()
    with portal.connect() as end:
        begun, used, left = time.monotonic(), cpu_s(portal.daemon.process.pid), b""
        for _ in range(READS):
            end.sendall(request)
            while b"\r\n\r\n" not in left:
                left += end.recv(65536)
            head, left = left.split(b"\r\n\r\n", 1)
            assert head.startswith(b"HTTP/1.1 200"), head
            length = int(head.lower().split(b"content-length:")[1].split()[0])
            while len(left) < length:
                left += end.recv(65536)
            left = left[length:]
        took, cpu = time.monotonic() - begun, cpu_s(portal.daemon.process.pid) - used
    print(f"GET {path}: {READS / took:.0f} a second, {READS / cpu:.0f} in a second of the daemon's processor time")


def main():
    with Daemon() as daemon:
        portal = Portal(daemon)
        with Browser() as b:
            opened = [b.open(f"{portal.opened['address']}#login={portal.opened['code']}")["ms"]]
            b.wait("#connection:has-text('Live')")
            first = b.evaluate("performance.getEntriesByType('paint').find(one => one.name === 'first-contentful-paint').startTime")["value"]
            size = b.evaluate("performance.getEntriesByType('resource').reduce((sum, one) => sum + one.transferSize, 0) + "
                              "performance.getEntriesByType('navigation')[0].transferSize")["value"]
            print(f"first page: {size / 1000:.0f} KB, loaded after {opened[0]:.0f} ms, painted after {first:.0f} ms")
            admin = portal.token("admin", "admin")
            assert portal.ask("POST", "/v1/clusters", {"name": "web", "nodes": 1, "accel": "tcg", "memory": 128}, admin).status == 201
            b.open(f"{portal.origin}/#/clusters/web")
            b.wait("tr[data-node]")
            answered, seen = [], []
            for i in range(CHANGES):
                one = b.evaluate(f"({SEEN})({2 - i % 2})")["value"]
                answered.append(one[0])
                seen.append(one[1])
                time.sleep(0.3)  # of a rate, and not of a result
            print(f"a change: answered after {statistics.median(answered):.0f} ms (median), seen in the table after "
                  f"{statistics.median(seen):.0f} ms, p95 {percentile(seen, 95):.0f} ms")
            reads(portal, "/v1/clusters")
            reads(portal, "/v1/clusters/web")
            assert portal.ask("DELETE", "/v1/clusters/web", headers=admin).status == 202
            wait(lambda: portal.ask("GET", "/v1/clusters/web", headers=admin).status == 404, "it is gone")
            for i in range(CLUSTERS):
                name = f"c{i}"
                declared = {"name": name, "nodes": NODES, "accel": "tcg", "memory": 128}
                made = portal.ask("POST", "/v1/clusters", declared, admin)
                assert made.status == 201, made.body
                assert portal.ask("POST", f"/v1/clusters/{name}/stop", headers=admin).status == 200
                time.sleep(0.2)
            b.open(f"{portal.origin}/#/")
            b.until(f"document.querySelectorAll('.squares i').length === {CLUSTERS * NODES}")
            ms = b.evaluate(f"({DRAWN})({CLUSTERS * NODES})")["value"]
            frames = b.evaluate(f"({FRAMES})()")["value"]
            print(f"{CLUSTERS * NODES} nodes in {CLUSTERS} clusters: drawn after {ms:.0f} ms; while it is scrolled a frame takes "
                  f"{statistics.median(frames):.1f} ms (median), p99 {percentile(frames, 99):.1f} ms")
            for i in range(CLUSTERS):
                portal.ask("DELETE", f"/v1/clusters/c{i}", headers=admin)
                time.sleep(0.1)


if __name__ == "__main__":
    main()
