# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: one host with `kagemusha daemon`, its etcd and its portal; a browser (Debian's Chromium) in which a person makes a cluster
of two protected nodes with Open MPI. What is typed into a node's terminal there computes on both GPUs; all that runs node1's VM is
killed, as when its host dies, while its terminal is open and the job runs, and the picture shows the takeover. $KAGE_SHOTS: a
folder for screenshots.
"""
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures import shared
from guest_vm import tool
from ha_pair import wait
from test_clusters import Lab

sys.path.append(str(Path(__file__).resolve().parent.parent / "portal"))
from browser import Browser, missing, xterm  # noqa: E402

SHOTS = os.environ.get("KAGE_SHOTS")


class Portal(Lab):
    """A host with a portal, and who sits before it."""

    def __init__(self):
        if lacks := missing():
            pytest.skip(lacks)
        if not os.environ.get("KAGE_MPI_JOB"):
            pytest.skip("there is no Open MPI on this host: install libopenmpi-dev")
        super().__init__()
        self.environment["KAGEMUSHA_XTERM"] = xterm()
        self.browser = None

    def start(self):
        super().start()
        opened = json.loads(self.tool("portal", "--port", "0", "--json"))
        self.address = opened["address"]
        self.browser = Browser()
        self.browser.open(f"{self.address}#login={opened['code']}")
        self.browser.wait("#connection:has-text('Live')")

    def tool(self, *words):
        return subprocess.run([tool(), *words], stdout=subprocess.PIPE, env=self.environment, check=True).stdout

    def node(self, name):
        return f"tr[data-node={name}]"

    def go(self, where):
        self.browser.open(f"{self.address}#/{where}")

    def shot(self, name):
        if SHOTS:
            self.browser.shot(f"{SHOTS}/{name}.png")

    def typed(self, command, expected, seconds=300):
        """Types a command into the terminal that is shown, until its output has this."""
        self.browser.click(".terminal")
        self.browser.type(command)
        self.browser.press("Enter")
        self.screen(expected, seconds)

    def screen(self, expected, seconds=300):
        def shown():
            text = self.browser.evaluate("document.querySelector('.xterm-accessibility')?.innerText ?? ''")["value"]
            return expected in text.replace("\xa0", " ")
        try:
            wait(shown, f"the terminal shows {expected}", seconds)
        except AssertionError as error:
            said = self.browser.evaluate("document.querySelector('main').innerText")["value"]
            raise AssertionError(f"{error}: {said[-1500:]}; {self.said()}") from error

    def __exit__(self, *rest):
        if self.browser:
            self.browser.close()
        super().__exit__(*rest)


portal = shared(Portal)


@pytest.mark.story
def check_create(portal):
    """in seven actions or fewer a person has a cluster of two protected nodes with a GPU; of another number, in eight"""
    b = portal.browser
    before = b.actions
    b.click("#new-cluster")
    b.fill("#name", "lab")
    b.check("#protected")
    b.choose("#image", "mpi")
    b.fill("#share", "20")
    b.check("#tcg")
    b.wait(".plan:has-text('Starts 2 VMs and 2 standbys')")
    portal.shot("create")
    b.click("dialog button.main")
    assert b.actions - before <= 7
    for node in ("node1", "node2"):
        b.wait(f"{portal.node(node)} .badge.good", seconds=600)
    portal.shot("protected")
    assert not b.axe()["serious"]


@pytest.mark.story
def check_console(portal):
    """a job of MPI computes on the GPUs of both nodes, from the terminal in the page"""
    program = Path(os.environ["KAGE_MPI_JOB"]).read_bytes()
    wait(lambda: " /shared fuse" in portal.run("node1", "cat", "/proc/mounts"), "node1 has /shared")
    portal.run("node1", "bash", "-c", "cat >/shared/mpi_job; chmod +x /shared/mpi_job", text=program)
    portal.browser.click(f"{portal.node('node1')} a:has-text('Console')")
    portal.screen("bash-")
    # What is typed before mpirun has ended is the job's input.
    portal.typed("cat /etc/hostname; tty; stty size; mpirun /shared/mpi_job sums 4096 1000 2 check && echo do''ne", "done")
    portal.screen("sums processes=2")
    portal.screen("/dev/pts/")
    portal.shot("console")


@pytest.mark.story
def check_takeover(portal):
    """node1's supervisor is killed, and with it QEMU and the GPU's worker: the terminal and the job go on without a gap, and another
    page sees the takeover and the new standby"""
    b = portal.browser
    portal.typed("mpirun /shared/mpi_job halo 256 256 400 50 check >/tmp/halo & "
                 "until grep -q step /tmp/halo; do sleep 0.1; done; echo comp''uting", "computing")
    portal.typed("for i in $(seq 200); do echo n$i; sleep 0.1; done | tail -n 400 >/tmp/counted & sleep 1; echo st''arted", "started")
    b.person = "watcher"
    b.open(f"{portal.address}#login={json.loads(portal.tool('portal', '--json'))['code']}")
    b.wait("#connection:has-text('Live')")
    portal.go("clusters/lab")
    b.wait(f"{portal.node('node1')} .badge.good")
    before = portal.primary("node1")
    slot = before[-1]
    assert "halo" not in portal.run("node1", "cat", "/tmp/halo"), "the job has not ended yet"
    os.kill(portal.supervisors()[before], signal.SIGKILL)
    b.wait(f".events td:has-text('node1 runs on in {'b' if slot == 'a' else 'a'}')")
    portal.shot("takeover")
    for node in ("node1", "node2"):
        b.wait(f"figcaption:has-text('{node}: Time of the shared GPU')")
    b.wait("figcaption:has-text('node2: The standby’s GPU is behind')")
    b.wait(f"{portal.node('node1')} .badge.good", seconds=600)
    assert portal.primary("node1") != before
    b.person = "first"
    portal.typed("wait; echo counted=$(wc -l </tmp/counted); tail -n 1 /tmp/halo", "counted=200")
    portal.screen("halo processes=2")


@pytest.mark.story
def check_drill(portal):
    """a takeover on purpose, from the page, after a question"""
    b = portal.browser
    b.person = "watcher"
    before = portal.primary("node2")
    b.click(f"{portal.node('node2')} button:has-text('Drill')")
    b.click("dialog button.main")
    b.wait("dialog", state="detached")
    b.wait(".events td:has-text('drill of node2 asked for')")
    b.wait(f"{portal.node('node2')} .badge.good", seconds=600)
    wait(lambda: portal.primary("node2") != before, "the other slot runs it")


@pytest.mark.story
def check_scale_and_delete(portal):
    """two nodes become one and then none, from the page; nothing is left on the host"""
    b = portal.browser
    b.click("main button:has-text('Change')")
    b.fill("#nodes", "1")
    b.wait(".plan:has-text('From 2 to 1 nodes')")
    b.click("dialog button.main")
    b.wait(portal.node("node2"), state="detached", seconds=600)
    b.click("main button:has-text('Delete')")
    b.fill("#typed", "lab")
    b.click("dialog button.main")
    b.wait("p:has-text('is not there')", seconds=600)
    wait(lambda: not portal.supervisors() and not portal.network(), "nothing runs any more", 120)
    assert not list((portal.directory / "s" / "clusters").iterdir())
    problems = b.problems()["problems"]
    assert not problems, problems
