# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: two hosts, hosta and hostb, made of namespaces (nodes.py), each with corosync, Pacemaker, and the agent and the fencing
command of `pacemaker/` where the package puts them. The VM is the counting guest. Configured is what docs/pacemaker.md says, with
its commands as they stand there.

One story: hosts die, freeze, are cut off and put into standby mode one after the other. Whichever host runs the VM, its guest counts
on, and Pacemaker says where.
"""
import pytest

from fixtures import mounts_of_its_own, namespace, needs, shared
from ha_pair import wait
from nodes import really_root
from vm_cluster import AGENT, FENCE, VmCluster

network, root, mounts = namespace("net"), really_root(), mounts_of_its_own()
corosync, pacemaker = needs("/usr/sbin/corosync", "corosync"), needs("/usr/sbin/pacemakerd", "pacemaker")
tester, crm = needs("/usr/sbin/ocf-tester", "resource-agents"), needs("/usr/sbin/crm", "crmsh")
pytestmark = [pytest.mark.usefixtures("network", "root", "mounts", "corosync", "pacemaker", "tester", "crm"), pytest.mark.story]
cluster = shared(VmCluster)


def check_no_quorum(cluster):
    """a node that has not seen the other one since its start has no quorum: it fences nobody, and says so"""
    cluster.hosta.boot()
    wait(lambda: cluster.hosta.run("crm_node", "--name").returncode == 0, "Pacemaker answers")
    done = cluster.hosta.run(FENCE, "hosta", "hostb")
    assert done.returncode == 1 and "has no quorum: it may not fence hostb" in done.stdout, done.stdout
    cluster.hostb.boot()
    cluster.wait_members()
    done = cluster.hosta.run(FENCE, "--check")
    assert done.returncode == 1 and "no fence device for hostb" in done.stdout, done.stdout
    done = cluster.hosta.run(FENCE, "--check", "hostb", "hostc")
    assert done.returncode == 1 and "hosta, is neither hostb nor hostc" in done.stdout, done.stdout
    cluster.configure(f"crm configure primitive power stonith:fence_power_switch params socket={cluster.directory}/power "
                      "pcmk_host_list='hosta hostb' pcmk_host_check=static-list")
    wait(lambda: cluster.hosta.run(FENCE, "--check").returncode == 0, "the device is there")
    assert not cluster.switch.said, "somebody was fenced"


def check_bad_descriptions(cluster):
    """a description that is not there, or that asks another arbiter, is refused with a sentence; what can't run is stopped"""
    hosta = cluster.hosta
    cases = {"": "the parameter 'description' is missing",
             "/etc/kagemusha/none.toml": "none.toml is not on this host: copy the VM's description",
             "/etc/kagemusha/locked.toml": 'is not "fence": Pacemaker would not be asked'}
    hosta.write("etc/kagemusha/locked.toml", 'name = "web"\n[arbiter]\nkind = "lock"\n')
    for description, sentence in cases.items():
        done = cluster.agent(hosta, "validate-all", description)
        assert done.returncode in (5, 6) and sentence in done.stdout, (description, done.returncode, done.stdout)
        assert cluster.agent(hosta, "stop", description).returncode == 0
        assert cluster.agent(hosta, "monitor", description).returncode == 7, "a probe"
    hosta.write("etc/kagemusha/wrong.toml", (hosta.disk / "etc/kagemusha/web.toml").read_text(encoding="utf-8") + "colour = 3\n")
    done = cluster.agent(hosta, "start", "/etc/kagemusha/wrong.toml")
    assert done.returncode == 1 and "colour" in done.stdout, "the supervisor's own words: " + done.stdout


def check_ocf_tester(cluster):
    """ocf-tester starts, promotes, demotes and stops the VM twice and finds nothing"""
    said = cluster.hosta.must("ocf-tester", "-n", "web", "-o", "description=/etc/kagemusha/web.toml", AGENT)
    assert "passed all tests" in said, said
    assert not cluster.status(cluster.hosta), "it left a supervisor"


def check_protected(cluster):
    """the commands of docs/pacemaker.md, as they stand there: the VM runs on one node, protected by the other"""
    cluster.configure(*cluster.document("sh"))
    primary = cluster.wait_protected()
    cluster.wait_promoted(primary)
    assert not cluster.switch.said, "nobody is fenced at a start"


def check_host_dies(cluster):
    """everything on the primary's host is killed: the guest goes on, the host is fenced, Pacemaker promotes where it runs"""
    before, after = cluster.roles()
    committed = cluster.committed(before)
    before.power_off()
    cluster.wait_runs(after)
    cluster.wait_promoted(after)
    cluster.went_on(before, after, committed)
    assert ("reboot", before.name) in cluster.switch.said, "and fenced"
    assert ("reboot", after.name) not in cluster.switch.said


def check_host_returns(cluster):
    """the host that died comes back as the standby, by itself"""
    dead = next(one for one in cluster.nodes.values() if not one.has_power())
    dead.boot()
    other = cluster.wait_protected()
    assert other is not dead
    cluster.wait_promoted(other)
    wait(lambda: cluster.shows("Unpromoted", dead), f"Pacemaker shows {dead.name} as unpromoted")


def check_node_standby(cluster):
    """`crm node standby`: the VM moves without a loss; `crm node online`: it is protected again"""
    before, after = cluster.roles()
    committed = cluster.committed(before)
    cluster.switch.said.clear()
    before.must("crm", "node", "standby", before.name)
    cluster.wait_promoted(after)
    cluster.went_on(before, after, committed)
    assert "handed over" in cluster.status(after)["last_takeover"], cluster.status(after)
    wait(lambda: not cluster.status(before), "nothing of the VM is left on the node")
    after.must("crm", "node", "online", before.name)
    assert cluster.wait_protected() is after
    cluster.went_on(before, after, committed)
    assert not cluster.switch.said, "nobody is fenced for it"


@pytest.mark.long
def check_qemu_dies(cluster):
    """the primary's QEMU dies: the standby goes on at once, without asking; Pacemaker follows, and nobody is fenced"""
    before, after = cluster.roles()
    committed = cluster.committed(before)
    before.must("kill", "-KILL", str(cluster.status(before)["qemu_pid"]))
    cluster.wait_runs(after)
    cluster.wait_promoted(after)
    assert cluster.wait_protected() is after, "its host is the standby now"
    assert not cluster.switch.said, "nobody is fenced for it"
    cluster.went_on(before, after, committed)


@pytest.mark.long
def check_switchover_by_hand(cluster):
    """`kagemusha switchover` by a person: Pacemaker follows"""
    before, after = cluster.roles()
    committed = cluster.committed(before)
    before.must("kagemusha", "switchover", "web")
    cluster.wait_runs(after)
    cluster.wait_promoted(after)
    assert cluster.wait_protected() is after
    cluster.went_on(before, after, committed)


@pytest.mark.long
def check_agent_killed(cluster):
    """the agent is killed in the middle of a demotion: the VM is lost in no case, and protected again"""
    before, after = cluster.roles()
    committed = cluster.committed(before)
    before.must("crm", "node", "standby", before.name)
    before.must("bash", "-c", "until kill -KILL $(pgrep -f '^/bin/sh [^ ]*kagemusha/vm demote'); do sleep 0.02; done 2>/dev/null")
    cluster.wait_runs(after)
    cluster.went_on(before, after, committed)
    after.must("crm", "node", "online", before.name)
    after.must("crm", "resource", "cleanup", "web")
    assert cluster.wait_protected() is after
    cluster.wait_promoted(after)
    cluster.went_on(before, after, committed)


@pytest.mark.long
def check_maintenance(cluster):
    """maintenance mode: a takeover happens all the same; afterwards Pacemaker finds the VM where it runs"""
    before, after = cluster.roles()
    committed = cluster.committed(before)
    before.must("crm", "configure", "property", "maintenance-mode=true")
    before.must("kill", "-KILL", str(cluster.status(before)["qemu_pid"]))
    cluster.wait_runs(after)
    cluster.went_on(before, after, committed)
    before.must("crm", "configure", "property", "maintenance-mode=false")
    cluster.wait_promoted(after)
    assert cluster.wait_protected() is after
    cluster.went_on(before, after, committed)


@pytest.mark.long
def check_disabled(cluster):
    """the resource is stopped: so is the VM, in order; started again, it runs where it ran last"""
    primary, _ = cluster.roles()
    primary.must("crm", "resource", "stop", "web-clone")
    wait(lambda: not any(cluster.status(one) for one in cluster.nodes.values()), "the VM and its standby have ended")
    assert not cluster.switch.said, "nobody is fenced for it"
    primary.must("crm", "resource", "start", "web-clone")
    assert cluster.wait_protected() is primary


@pytest.mark.long
def check_frozen(cluster):
    """supervisor and QEMU of the primary stand still: its host is fenced, then the standby goes on"""
    before, after = cluster.roles()
    committed = cluster.committed(before)
    status = cluster.status(before)
    cluster.switch.said.clear()
    before.must("kill", "-STOP", str(status["pid"]), str(status["qemu_pid"]))
    cluster.wait_runs(after)
    assert ("reboot", before.name) in cluster.switch.said and not before.has_power(), "fenced before it goes on"
    check_host_returns(cluster)
    cluster.went_on(before, after, committed)


@pytest.mark.long
def check_cut(cluster):
    """the nodes hear nothing of each other, both have quorum: the standby's is fenced, the VM stays where it is"""
    primary, standby = cluster.roles()
    cluster.switch.said.clear()
    count = cluster.counts(primary)[-1]
    cluster.part()
    wait(lambda: not standby.has_power(), "the standby's node is fenced")
    wait(lambda: cluster.status(primary).get("state") == "alone", "the VM goes on alone")
    wait(lambda: cluster.counts(primary)[-1] > count + 50, "it counts on")
    assert ("reboot", primary.name) not in cluster.switch.said
    cluster.part(False)
    check_host_returns(cluster)


@pytest.mark.long
def check_switch_without_power(cluster):
    """the power switch fails, too: the standby waits, says why, and goes on when a fencing has succeeded"""
    before, after = cluster.roles()
    committed = cluster.committed(before)
    cluster.switch.works = False
    before.power_off()
    wait(lambda: "did not cut the primary off" in str(cluster.status(after).get("waiting_for")), "the standby says why it waits")
    assert cluster.status(after)["role"] == "standby"
    cluster.switch.works = True
    cluster.wait_runs(after)
    check_host_returns(cluster)
    cluster.went_on(before, after, committed)
