# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: head (slurmctld, slurmdbd with MariaDB, etcd), hosta and hostb (slurmd), made of namespaces (slurm_site.py), with the
files and commands of docs/slurm.md. alice submits jobs; the power of a host can be cut.
"""
import os
import re

import pytest

from etcd import ETCD
from fixtures import mounts_of_its_own, namespace, needs, shared
from guest_vm import tool
from ha_pair import wait
from job_site import JobSite
from slurm_site import really_root

network, root, mounts = namespace("net"), really_root([tool()]), mounts_of_its_own()
slurmctld, slurmd, slurmdbd = (needs(f"/usr/sbin/{name}", name) for name in ("slurmctld", "slurmd", "slurmdbd"))
munge, mariadb, etcd = needs("/usr/sbin/munged", "munge"), needs("/usr/sbin/mariadbd", "mariadb-server"), needs(ETCD, "etcd-server")
pytestmark = [pytest.mark.story, pytest.mark.usefixtures("network", "root", "mounts", "slurmctld", "slurmd", "slurmdbd", "munge", "mariadb", "etcd")]
site = shared(JobSite)
COUNT = """count=0
while [ $count -lt $1 ]; do
    count=$((count + 1))
    echo line $count
    sleep 0.1
done
exit 7
"""


def contiguous(site, job, most=None):
    """The lines of a counting job, each once and in order; how many."""
    numbers = [int(line) for line in re.findall(r"^line (\d+)$", site.output(job), re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1)), f"lost or repeated: {numbers}"
    assert most is None or len(numbers) == most, site.output(job)[-1000:]
    return len(numbers)


def check_site(site):
    """the site of docs/slurm.md: Slurm's daemons, its data base, two idle nodes with GPUs of our kinds"""
    site.start()
    site.script("count.sh", COUNT)
    assert "gpu:kage:1" in site.head.must("sinfo", "-h", "-o", "%G")


def check_refusals(site):
    """what can't be is refused when it is submitted, with a sentence"""
    cases = {("sbatch", "--protect", "count.sh"): "--protect is for jobs with a GPU: give --gres",
             ("sbatch", "--protect", "--gres=gpu:kage:1", "-N3", "count.sh"): "leave -N out",
             ("srun", "--protect", "--gres=gpu:kage:1", "true"): "--protect is for sbatch",
             ("sbatch", "--gres=gpu:other:1", "count.sh"): "Requested node configuration is not available"}
    for words, sentence in cases.items():
        done = site.alice(*words)
        assert done.returncode != 0 and sentence in done.stdout, (words, done.stdout)


def check_job(site):
    """steps of a job with a share of a GPU run in its VM, with their output, their status, the GPU's time in the accounting"""
    site.bring(os.environ["KAGE_CL_JOB"], "cl_job")
    site.script("steps.sh", "echo number $SLURM_JOB_ID\nsrun ./cl_job add 5000000 && echo computed\n"
                            "srun bash -c 'echo to errors >&2; echo $SLURM_JOB_ID $0 $(uname -r) $(id -u); exit 5' word\n")
    done = site.alice("salloc", "--gres=shard:4", "./steps.sh")
    assert done.returncode == 5, done.stdout
    job = int(re.search(r"^number (\d+)$", done.stdout, re.MULTILINE)[1])
    assert "computed" in done.stdout and "to errors" in done.stdout, done.stdout
    assert re.search(rf"^{job} word 6\.[0-9.]+\S* 0$", done.stdout, re.MULTILINE), done.stdout
    site.wait_clean(site.hosta, site.hostb)
    used = wait(lambda: re.search(r"gpu_seconds=([0-9.]+) on host[ab]", site.accounted(job, "admincomment")[-1]), "accounting")
    assert float(used[1]) > 0
    assert "gres/shard=4" in site.accounted(job, "alloctres")[-1]


def check_node_dies(site):
    """the first node of a protected job dies: the job goes on, its output has everything once, and Slurm knows the truth"""
    job = site.submit("--protect", "--gres=gpu:kage:1", "count.sh", "400")
    now = site.wait_state(job, "RUNNING")
    assert now["NodeList"] in ("hosta,hostb", "host[a-b]"), now
    wait(lambda: contiguous(site, job) > 20, "it counts", 600)
    assert "gpu_seconds" not in site.admin_comment(job)
    site.note(job, "a word of somebody else\n")
    noted = contiguous(site, job)
    wait(lambda: contiguous(site, job) > noted + 20, "it counts on")
    site.hosta.power_off()
    before = contiguous(site, job)
    wait(lambda: contiguous(site, job) > before + 20, "it counts on")
    wait(lambda: site.nodes()["hosta"].startswith("down"), "Slurm shows the node as down")
    now = wait(lambda: site.job(job) if site.job(job)["NodeList"] == "hostb" else None, "the job has the other node only")
    assert now["JobState"] == "RUNNING", now
    assert "the VM went on on hostb" in site.admin_comment(job)
    now = site.wait_state(job, "FAILED")
    assert now["ExitCode"] == "7:0", now
    contiguous(site, job, 400)
    assert site.output(job).count("a word of somebody else\n") == 1
    site.wait_clean(site.hostb)
    records = site.accounted(job, "state,nodelist,alloctres")
    assert any("hosta" in one and "gres/gpu=2" in one for one in records), records
    assert records[-1].startswith("FAILED|hostb|") and "gres/gpu=1" in records[-1], records


def check_node_returns(site):
    """the node that died is used again"""
    site.hosta.boot()
    site.hosta.start("slurmd", "-D")
    wait(lambda: site.nodes()["hosta"] == "idle", "it is idle")
    assert not site.left(site.hosta)


@pytest.mark.long
def check_qemu_dies(site):
    """the QEMU of a protected job dies and its node lives: the job goes on in its standby"""
    job = site.submit("--protect", "--gres=gpu:kage:1", "count.sh", "300")
    wait(lambda: contiguous(site, job) > 20, "it counts", 600)
    site.hosta.must("pkill", "-KILL", "-f", "^[^ ]*qemu-system")
    now = site.wait_state(job, "FAILED")
    assert now["ExitCode"] == "7:0", now
    contiguous(site, job, 300)
    site.wait_clean(site.hosta, site.hostb)
    assert site.nodes() == {"hosta": "idle", "hostb": "idle"}


@pytest.mark.long
def check_standby_dies(site):
    """the second node of a protected job dies: the job goes on where it is"""
    job = site.submit("--protect", "--gres=gpu:kage:1", "count.sh", "400")
    wait(lambda: contiguous(site, job) > 20, "it counts", 600)
    site.hostb.power_off()
    now = site.wait_state(job, "FAILED")
    assert now["ExitCode"] == "7:0", now
    contiguous(site, job, 400)
    site.wait_clean(site.hosta)
    site.hostb.boot()
    site.hostb.start("slurmd", "-D")
    wait(lambda: site.nodes()["hostb"] == "idle", "it is idle")


@pytest.mark.long
def check_prolog_killed(site):
    """the prolog is killed while it makes the VM: nothing is left, the node is drained by Slurm, the job is queued again"""
    job = site.submit("--gres=gpu:kage:1", "-w", "hosta", "count.sh", "5")
    wait(lambda: any("qemu-system" in one for one in site.left(site.hosta)), "a VM is being made")
    site.hosta.must("pkill", "-KILL", "-f", "^/bin/sh [^ ]*/slurm/prolog")
    site.wait_clean(site.hosta)
    wait(lambda: site.nodes()["hosta"].startswith("drain"), "Slurm drains the node")
    site.head.must("scontrol", "update", "nodename=hosta", "state=resume")
    site.head.run("scontrol", "release", str(job))
    now = site.wait_state(job, "FAILED")
    assert now["ExitCode"] == "7:0", now
    contiguous(site, job, 5)


@pytest.mark.long
def check_vm_lost(site):
    """the QEMU of a job without protection dies: the job fails, and says why"""
    job = site.submit("--gres=gpu:kage:1", "count.sh", "2000")
    wait(lambda: contiguous(site, job) > 20, "it counts", 600)
    host = site.hosts[site.job(job)["NodeList"]]
    host.must("pkill", "-KILL", "-f", "^[^ ]*qemu-system")
    site.wait_state(job, "FAILED")
    assert "the VM of this job was lost" in site.output(job), site.output(job)[-500:]
    site.wait_clean(host)


@pytest.mark.long
def check_cancelled(site):
    """a job is cancelled while it runs: nothing is left"""
    job = site.submit("--gres=shard:2", "count.sh", "5000")
    wait(lambda: contiguous(site, job) > 5, "it counts", 600)
    site.alice("scancel", str(job))
    site.wait_state(job, "CANCELLED")
    site.wait_clean(site.hosta, site.hostb)


@pytest.mark.long
def check_no_place_for_a_standby(site):
    """a drained node: a protected job waits, and runs when the node is back"""
    site.head.must("scontrol", "update", "nodename=hostb", "state=drain", "reason=test")
    job = site.submit("--protect", "--gres=gpu:kage:1", "count.sh", "5")
    now = wait(lambda: site.job(job) if site.job(job)["Reason"] != "None" else None, "Slurm says why it waits")
    assert now["JobState"] == "PENDING" and "hostb" in now["Reason"] or "DRAINED" in now["Reason"], now
    site.head.must("scontrol", "update", "nodename=hostb", "state=resume")
    assert site.wait_state(job, "FAILED")["ExitCode"] == "7:0"


@pytest.mark.long
def check_held(site):
    """what the prolog refuses is held with a sentence, and no node is drained: an arbiter that does not answer"""
    site.etcd.freeze()
    job = site.submit("--protect", "--gres=gpu:kage:1", "count.sh", "5")
    wait(lambda: "the VM did not start" in site.admin_comment(job) or "is not protecting" in site.admin_comment(job), "a sentence", 900)
    wait(lambda: site.job(job)["JobState"] == "PENDING", "it is held")
    assert "held" in site.job(job)["Reason"].lower(), site.job(job)
    site.etcd.freeze(False)
    site.wait_clean(site.hosta, site.hostb)
    assert site.nodes() == {"hosta": "idle", "hostb": "idle"}
    site.head.must("scontrol", "release", str(job))
    assert site.wait_state(job, "FAILED")["ExitCode"] == "7:0"
