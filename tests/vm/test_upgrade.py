# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: as test_supervisors.py, but one host has an older release: its own tool, and its own QEMU if KAGE_OLDER_ASSETS
names what its `kagemusha assets` printed. tests/vm/older-release builds it.

A cluster is upgraded by switchovers: the guest that an older release started goes on with this one, and back; and a kill in
between costs nothing that was seen.
"""
import os
import signal

from fixtures import own
from guest_vm import tool
from ha_pair import Pair, committed_count, contiguous, must_continue, wait


class TwoReleases(Pair):
    """Hosts whose name begins with "older" have the older release."""

    def tool(self, name):
        return os.environ["KAGE_OLDER_TOOL"] if name.startswith("older") else tool()

    def variables(self, name):
        older = os.environ.get("KAGE_OLDER_ASSETS")
        return dict(self.environment, KAGE_ASSETS=older) if older and name.startswith("older") else self.environment


pair = own(TwoReleases)


def protected(pair, primary, standby):
    two = pair.start("standby", standby)
    one = pair.start("run", primary)
    two.wait_state("synced")
    one.wait_state("protecting")
    return one, two


def speaks_version_1(newer):
    status = newer.status()
    assert status["protocol_version"] == 1, status
    assert "an older release" in status["peer_differences"], status
    assert any(e["event"] == "peer-differs" for e in newer.events()), newer.said()


def runs(one):
    return one.wait("it runs the VM", lambda s: s["role"] == "primary")


def check_upgrade(pair):
    """upgrade: the guest goes from the older release to this one by a switchover, and is protected again, without an end"""
    older, newer = protected(pair, "older", "newer")
    speaks_version_1(newer)
    committed_count(older)
    older.tell("switchover")
    runs(newer)
    assert older.process.wait(60) == 0, older.said()
    last = older.counts()[-1]
    must_continue(older, newer, last)
    # The other host has this release now, too.
    address = f"unix:{pair.directory}/second"
    second = pair.start("standby", "second", "--listen", address)
    second.wait_state("listening")
    newer.tell("protect", address)
    status = newer.wait_state("protecting")
    assert status["protocol_version"] >= 2 and not status["peer_differences"], status
    contiguous(newer.counts())


def check_downgrade(pair):
    """back: the guest goes from this release to the older one by a switchover"""
    newer, older = protected(pair, "newer", "older")
    speaks_version_1(newer)
    committed_count(newer)
    newer.tell("switchover")
    runs(older)
    assert newer.process.wait(60) == 0, newer.said()
    must_continue(newer, older, newer.counts()[-1])


def check_kills(pair):
    """QEMU killed on either release: the other one goes on, and can be protected by the release that died"""
    for turn, (one, two) in enumerate((("older", "newer"), ("newer2", "older2"))):
        pair.description.write_text(
            pair.description.read_text(encoding="utf-8").replace('"unix:standby', f'"unix:{turn}standby')
            .replace('path = "lease', f'path = "{turn}lease'), encoding="utf-8")
        primary, standby = protected(pair, one, two)
        committed = committed_count(primary)
        os.kill(primary.qemu(), signal.SIGKILL)
        runs(standby)
        must_continue(primary, standby, committed)
        assert primary.process.wait(60) == 0, primary.said()
        address = f"unix:{pair.directory}/again{turn}"
        again = pair.start("standby", f"{one}-again", "--listen", address)
        again.wait_state("listening")
        standby.tell("protect", address)
        standby.wait_state("protecting")
        standby.tell("stop")
        wait(lambda: standby.process.poll() is not None, "it ends")
