#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
The portal's pages in Debian's Chromium, without a VM: nodes are declared whose QEMU is not there, so that their starts fail. Every
view is looked at by axe, in light and dark, wide and narrow. $KAGE_TOOL: the control tool. $KAGE_SHOTS: a folder for screenshots.
"""
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "control" / "daemon"), str(ROOT / "control" / "portal"), str(Path(__file__).resolve().parent)]
from browser import Browser, missing, xterm  # noqa: E402
from daemon_test import Daemon, wait  # noqa: E402
from portal_test import Portal  # noqa: E402


def shot(browser, name):
    if os.environ.get("KAGE_SHOTS"):
        browser.shot(str(Path(os.environ["KAGE_SHOTS"]) / f"{name}.png"))


def looked_at(browser, name):
    """axe finds nothing serious, in light and dark, wide and narrow; nothing sticks out of a telephone's width."""
    for dark in (False, True):
        browser.scheme(dark)
        for width in (1100, 390):
            browser.size(width, 800)
            found = browser.axe()["serious"]
            assert not found, (name, dark, width, found)
            wide = browser.evaluate("document.documentElement.scrollWidth - innerWidth")["value"]
            assert wide <= 0, (name, width, wide)
            shot(browser, f"{name}-{'dark' if dark else 'light'}-{width}")
    browser.scheme(False)
    browser.size(1100, 800)
    problems = browser.problems()["problems"]
    assert not problems, problems


def log_in(browser, person, user):
    browser.person = person
    browser.open(browser.portal.origin)
    browser.fill("#user", user)
    browser.fill("#password", f"{user}-password")
    browser.press("Enter")
    browser.wait("h1:has-text('Clusters')")


def check_login(browser, portal):
    """the printed link logs in once and leaves the address; a wrong password says so; pages need no more than 200 KB"""
    browser.open(portal.origin)
    browser.wait("h1:has-text('Log in')")
    looked_at(browser, "login")
    browser.fill("#user", "ann")
    browser.fill("#password", "wrong-password")
    browser.press("Enter")
    assert "do not fit" in browser.see(".problem:not(:empty)")
    browser.open(f"{portal.opened['address']}#login={portal.opened['code']}")
    browser.wait("h1:has-text('Clusters')")
    assert "login" not in browser.evaluate("location.href")["value"]
    browser.wait("#connection:has-text('Live')")
    size = browser.evaluate("performance.getEntriesByType('resource').reduce((sum, one) => sum + one.transferSize, 0)")["value"]
    assert size < 200_000, size
    cookie = browser.cookies()["cookies"][0]
    assert cookie["httpOnly"] and cookie["secure"] and cookie["sameSite"] == "Strict", cookie


def check_create(browser, portal):
    """a cluster is made with a plan first, by keyboard alone; what does not fit can't be made; a failed node says why"""
    browser.press("Tab")
    for _ in range(20):
        if "New cluster" in browser.focused()["text"]:
            break
        browser.press("Tab")
    browser.press("Enter")
    browser.wait("dialog[open]")
    assert "INPUT" in browser.focused()["text"]
    looked_at(browser, "create")
    browser.type("web")
    browser.fill("#memory", "1000000")
    assert "no host has room" in browser.see(".plan:has-text('It does not fit')")
    assert browser.attribute("dialog button.main", "disabled")["value"] is not None
    browser.fill("#memory", "200")
    browser.check("#protected")
    text = browser.see(".plan:has-text('Starts 2 VMs and 2 standbys')")
    assert "800 MiB" in text, text
    browser.press("Enter")
    browser.wait("h1:has-text('web')")
    browser.wait("tr[data-node=node2] .badge.bad")
    assert "ended with status 125" in browser.text("tr[data-node=node2]")["text"]
    browser.wait(".events td:has-text('node1 is failed')")
    looked_at(browser, "cluster")

    def shown():
        browser.click("tr[data-node=node2] button:has-text('Log')")
        browser.wait("dialog .log", state="attached")
        if "busybox" in browser.text("dialog .log")["text"]:
            return True
        browser.click("dialog button:has-text('Close')")
        browser.wait("dialog", state="detached")
        return False
    wait(shown, "why the start failed")  # each try to start begins a log of its own
    looked_at(browser, "log")
    browser.click("dialog button:has-text('Close')")
    browser.wait("dialog", state="detached")
    wait(lambda: "node1 failed" in browser.attribute("svg.topology", "aria-label")["value"], "the picture's words")


def check_two(browser, portal):
    """of two administrators the second one is told, and loses nothing; both see at once what the first one did"""
    log_in(browser, "second", "ann")
    browser.open(f"{portal.origin}/#/clusters/web")
    browser.click("button:has-text('Change')")
    browser.wait("dialog[open] .plan:has-text('It fits')")
    browser.person = "first"
    browser.click("button:has-text('Change')")
    browser.fill("#nodes", "3")
    browser.wait(".plan:has-text('From 2 to 3 nodes')")
    browser.click("dialog button.main")
    browser.wait("tr[data-node=node3]")
    browser.person = "second"
    browser.wait("tr[data-node=node3]")
    browser.fill("#nodes", "1")
    browser.wait(".plan:has-text('From 3 to 1 nodes')")
    browser.click("dialog button.main")
    assert "Somebody else has changed" in browser.see("dialog .problem:not(:empty)")
    browser.press("Escape")
    browser.wait("dialog", state="detached")
    assert browser.count("tr[data-node]")["count"] == 3
    browser.person = "first"


def check_logins(browser, portal):
    """the form asks who logs in by ssh only where there is a server for it; what it can't read it says; what was declared is shown again"""
    keys = []
    for comment in ("ann at home", "elsewhere"):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", f"{folder}/key"], check=True)
            keys.append(Path(f"{folder}/key.pub").read_text(encoding="utf-8").strip())
    browser.click("button:has-text('Change')")
    browser.wait("dialog[open] .plan:has-text('It fits')")
    assert not browser.evaluate("document.querySelector('#users').checkVisibility()")["value"]
    browser.choose("#image", "mpi")
    browser.fill("#users", "ann")
    assert "key" in browser.see(".plan .problem")
    users = f"ann {keys[0]}\nbob {keys[1]}\nann {keys[1]}"
    browser.fill("#users", users)
    browser.fill("#ssh-port", "2222")
    browser.fill("#ssh-address", "somewhere")
    assert "ssh-address" in browser.see(".plan .problem:has-text('ssh-address')")
    browser.fill("#ssh-address", "127.0.0.2")
    browser.wait(".plan:has-text('It fits')")
    looked_at(browser, "logins")
    browser.click("dialog button.main")
    browser.wait("dialog", state="detached")

    def declared():
        return json.loads(portal.kage("cluster", "show", "web", "--json").stdout)["declaration"]
    assert declared()["image"] == "mpi"
    assert declared()["users"] == [{"name": "ann", "keys": keys}, {"name": "bob", "keys": [keys[1]]}], declared()
    assert declared()["network"]["ssh-port"] == 2222 and declared()["network"]["ssh-address"] == "127.0.0.2"
    browser.click("button:has-text('Change')")
    browser.wait("dialog[open] .plan:has-text('It fits')")
    shown = browser.evaluate("document.querySelector('#users').value")["value"].splitlines()
    assert sorted(shown) == sorted(users.splitlines()), shown
    browser.choose("#image", "")
    browser.wait(".plan:has-text('It fits')")
    browser.click("dialog button.main")
    browser.wait("dialog", state="detached")
    assert not declared().get("image") and not declared().get("users") and not declared()["network"].get("ssh-port"), declared()


def check_viewer(browser, portal):
    """a viewer is shown nothing that he may not do; who is removed is logged out"""
    log_in(browser, "viewer", "vera")
    assert browser.count("#new-cluster")["count"] == 0
    browser.open(f"{portal.origin}/#/clusters/web")
    browser.wait("tr[data-node=node1]")
    assert browser.count("main button")["count"] == 0
    assert portal.kage("portal", "remove-user", "vera").returncode == 0
    browser.wait("h1:has-text('Log in')")
    browser.person = "first"


def check_pages(browser, portal):
    """hosts, events, people, a console of a node that is not there, an address that is none; Japanese; back and reload"""
    browser.click("nav a:has-text('Hosts')")
    text = browser.see("tr[data-host=localhost]:has-text('ready')")
    assert "and 3 standbys" in text and "free of" in text, text
    looked_at(browser, "hosts")
    browser.click("nav a:has-text('Events')")
    browser.wait("td:has-text('node1 is failed')")
    looked_at(browser, "events")
    browser.click("nav a:has-text('People')")
    browser.wait("td:has-text('/v1/clusters')")
    looked_at(browser, "people")
    browser.click("button:has-text('Add token')")
    browser.fill("#account", "ci")
    browser.press("Enter")
    assert "kage_" in browser.see("code")
    browser.choose("#language", "ja")
    browser.wait("h1:has-text('利用者')")
    assert browser.evaluate("document.documentElement.lang")["value"] == "ja"
    looked_at(browser, "people-ja")
    browser.click("nav a:has-text('ホスト')")
    browser.wait("tr[data-host=localhost]")
    looked_at(browser, "hosts-ja")
    browser.click("nav a:has-text('クラスタ')")
    browser.wait("li.cluster")
    looked_at(browser, "clusters-ja")
    browser.choose("#language", "en")
    browser.open(f"{portal.origin}/#/clusters/web/node1")
    browser.wait("[role=status]:has-text('not up yet'), [role=status]:has-text('connection was lost')")
    browser.wait(".xterm")
    looked_at(browser, "console")
    browser.back()
    browser.open(f"{portal.origin}/#/clusters/none")
    browser.wait("p:has-text('is not there')")
    browser.reload()
    browser.wait("p:has-text('is not there')")


def check_markup(browser, portal):
    """markup in names, users and errors is text; nothing of it runs"""
    evil = "<img src=x onerror=document.title='owned'>"
    browser.evaluate(f"fetch('/v1/clusters/' + encodeURIComponent({evil!r}))")
    browser.open(f"{portal.origin}/#/clusters/{evil}")
    browser.wait("h1:has-text('Clusters')")
    browser.click("#new-cluster")
    browser.fill("#name", evil)
    browser.evaluate(f"document.querySelector('#name').removeAttribute('pattern'); document.querySelector('#name').value = {evil!r};"
                     "document.querySelector('#name').dispatchEvent(new Event('input', {bubbles: true}))")
    assert "<img" in browser.see(".plan .problem")
    browser.press("Escape")
    assert "owned" not in browser.evaluate("document.title")["value"]
    assert browser.count("img[src=x]")["count"] == 0


def check_connection(browser, portal):
    """the daemon is killed: the page says so, and goes on by itself when a daemon is there again and its user logs in"""
    browser.open(f"{portal.origin}/#/")
    browser.wait("li.cluster")
    portal.daemon.kill()
    browser.wait("#connection.lost")
    portal.daemon.start()
    browser.wait("h1:has-text('Log in')")  # sessions end with the daemon
    log_in(browser, "first", "ann")
    browser.wait("li.cluster[data-name=web]")


def check_delete(browser, portal):
    """stop, start and delete, each with its question; a wrong name deletes nothing"""
    browser.open(f"{portal.origin}/#/clusters/web")
    browser.click("main button:has-text('Stop')")
    browser.click("dialog button.main")
    browser.wait("main .title .badge:has-text('stopped')")
    browser.click("main button:has-text('Start')")
    browser.wait("main .title .badge:has-text('starting')")
    browser.click("main button:has-text('Delete')")
    browser.fill("#typed", "wex")
    assert browser.attribute("dialog button.main", "disabled")["value"] is not None
    browser.fill("#typed", "web")
    browser.click("dialog button.main")
    browser.wait("p:has-text('is not there')")
    wait(lambda: "web" not in portal.kage("cluster", "list").stdout, "it is deleted")


def main():
    if lacks := missing():
        print(f"skipped: {lacks}")
        return 77
    os.environ["KAGEMUSHA_XTERM"] = xterm()
    with Daemon() as daemon:
        portal = Portal(daemon)
        for user, role in (("ann", "admin"), ("vera", "viewer")):
            assert portal.kage("portal", "add-user", user, "--role", role, text=f"{user}-password\n").returncode == 0
        with Browser() as browser:
            browser.portal = portal
            for check in (check_login, check_create, check_two, check_logins, check_viewer, check_pages, check_markup, check_connection,
                          check_delete):
                before = time.monotonic()
                try:
                    check(browser, portal)
                except Exception:
                    shot(browser, "failed")
                    print(browser.evaluate("document.body.innerText")["value"][:2000], browser.problems(), flush=True)
                    raise
                finally:
                    if sys.exc_info()[0]:  # what outlives a daemon must not outlive us
                        portal.kage("cluster", "delete", "web", "--wait")
                print(f"ok: {check.__doc__.strip()} ({time.monotonic() - before:.1f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
