# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: one host with `kagemusha daemon`, its etcd and its portal; a browser (Debian's Chromium) in which a person makes a cluster
of two protected nodes. What is typed into a node's terminal there computes on the GPU; node1's QEMU is killed while its terminal is
open, and the picture shows the takeover. $KAGE_SHOTS: a folder for screenshots.
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
    """in eight actions or fewer a person has a cluster of two protected nodes with a GPU"""
    b = portal.browser
    b.click("#new-cluster")
    b.fill("#name", "lab")
    b.fill("#memory", "400")
    b.check("#protected")
    b.check("#tcg")
    b.wait(".plan:has-text('Starts 2 VMs and 2 standbys')")
    portal.shot("create")
    b.click("dialog button.main")
    for node in ("node1", "node2"):
        b.wait(f"{portal.node(node)} .badge.good", seconds=600)
    portal.shot("protected")
    assert not b.axe()["serious"]


@pytest.mark.story
def check_console(portal):
    """a program computes on the GPU from the terminal in the page"""
    program = Path(os.environ["KAGE_CL_JOB"]).read_bytes()
    portal.run("node1", "bash", "-c", "cat >/tmp/cl_job; chmod +x /tmp/cl_job", text=program)
    portal.browser.click(f"{portal.node('node1')} a:has-text('Console')")
    portal.screen("bash-")
    portal.typed("cat /etc/hostname; tty; stty size; /tmp/cl_job add 100000 && echo do''ne", "done")
    portal.screen("/dev/pts/")
    portal.shot("console")


@pytest.mark.story
def check_takeover(portal):
    """node1's QEMU is killed: the terminal goes on without a gap, and another page sees the takeover and the new standby"""
    b = portal.browser
    portal.typed("for i in $(seq 200); do echo n$i; sleep 0.1; done | tail -n 400 >/tmp/counted & sleep 1; echo st''arted", "started")
    b.person = "watcher"
    b.open(f"{portal.address}#login={json.loads(portal.tool('portal', '--json'))['code']}")
    b.wait("#connection:has-text('Live')")
    portal.go("clusters/lab")
    b.wait(f"{portal.node('node1')} .badge.good")
    before = portal.primary("node1")
    slot = before[-1]
    os.kill(portal.qemu(before), signal.SIGKILL)
    b.wait(f".events td:has-text('node1 runs on in {'b' if slot == 'a' else 'a'}')")
    portal.shot("takeover")
    b.wait(f"{portal.node('node1')} .badge.good", seconds=600)
    assert portal.primary("node1") != before
    b.person = "first"
    portal.typed("wait; echo counted=$(wc -l </tmp/counted)", "counted=200")


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
