# SPDX-License-Identifier: GPL-2.0-or-later
"""
A site with Slurm on one machine: head (slurmctld, slurmdbd, its data base), hosta and hostb (slurmd), made of namespaces
(namespace_host.py). The home of alice, who submits jobs, is the same everywhere.
"""
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ha_pair import wait
from namespace_host import NamespaceHost, add_switch, hosts_file, remove_switch, skip_unless_really_root

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NETWORK = "10.78.0"
ALICE = 4242
SLURM = f"""ClusterName=kage
SlurmctldHost=head({NETWORK}.1)
SlurmUser=slurm
AuthType=auth/munge
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
ReturnToService=2
SlurmdTimeout=10
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmdSpoolDir=/var/spool/slurmd
StateSaveLocation=/var/spool/slurmctld
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=head
NodeName=hosta,hostb CPUs=4 RealMemory=4000 Gres={{gres}} State=UNKNOWN
PartitionName=main Nodes=hosta,hostb OverSubscribe=NO Default=YES State=UP
"""
SLURMDBD = """AuthType=auth/munge
DbdHost=head
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm
PidFile=/run/slurm/slurmdbd.pid
LogFile=/var/log/slurmdbd.log
"""


def cgroup_conf():
    """No control groups. Slurm 22.05 wants some kind of them all the same."""
    said = subprocess.run(["slurmd", "-V"], check=True, stdout=subprocess.PIPE, text=True).stdout
    if int(said.split()[1].split(".")[0]) > 22:
        return "CgroupPlugin=disabled\n"
    return "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "CgroupPlugin=cgroup/v1\n"


class Host(NamespaceHost):
    """With munge, and what Slurm's daemons keep."""

    def __init__(self, site, name, number):
        super().__init__(site.directory, NETWORK, name, number)
        self.site = site
        for folder in ("etc/munge", "etc/slurm", "etc/kagemusha", "var/lib/munge", "var/lib/mysql", "var/spool/slurmd",
                       "var/spool/slurmctld", "logs"):
            (self.disk / folder).mkdir(parents=True)
        for folder, owner in (("etc/munge", "munge"), ("var/lib/munge", "munge"), ("var/lib/mysql", "mysql"),
                              ("var/spool/slurmctld", "slurm")):
            shutil.chown(self.disk / folder, owner, owner)
        for folder in ("etc/munge", "var/lib/munge"):
            (self.disk / folder).chmod(0o700)
        (self.disk / "logs").chmod(0o1777)

    def boot(self):
        self.power_on(HERE / "host", self.site.installed, self.site.home)
        self.must("runuser", "-u", "munge", "--", "munged")


class Site:
    """The hosts and what Slurm is configured with. `installed`: files of ours by their places in /usr."""

    def __init__(self, directory, gres, gres_conf, more="", installed=()):
        self.directory, self.installed = directory, dict(installed)
        self.home = directory / "home"
        self.home.mkdir()
        os.chown(self.home, ALICE, ALICE)
        directory.chmod(0o755)
        add_switch()
        self.hosts = {name: Host(self, name, number) for number, name in enumerate(("head", "hosta", "hostb"), 1)}
        self.head, self.hosta, self.hostb = self.hosts.values()
        names = hosts_file(self.hosts.values())
        key = os.urandom(128)
        for one in self.hosts.values():
            one.write("etc/hosts", names)
            for name in ("passwd", "group"):
                line = f"alice:x:{ALICE}:" + (f"{ALICE}::/home/alice:/bin/bash\n" if name == "passwd" else "\n")
                one.write(f"etc/{name}", Path(f"/etc/{name}").read_text(encoding="utf-8") + line)
            (one.disk / "etc/munge/munge.key").write_bytes(key)
            (one.disk / "etc/munge/munge.key").chmod(0o400)
            shutil.chown(one.disk / "etc/munge/munge.key", "munge", "munge")
            one.write("etc/slurm/slurm.conf", SLURM.format(gres=gres) + more)
            one.write("etc/slurm/gres.conf", gres_conf)
            one.write("etc/slurm/cgroup.conf", cgroup_conf())
        self.head.write("etc/slurm/slurmdbd.conf", SLURMDBD, 0o600)
        shutil.chown(self.head.disk / "etc/slurm/slurmdbd.conf", "slurm", "slurm")

    def start(self):
        for one in self.hosts.values():
            one.boot()
        self.start_head()
        for one in (self.hosta, self.hostb):
            one.start("slurmd", "-D")
        wait(lambda: self.nodes() == {"hosta": "idle", "hostb": "idle"}, "both nodes are idle")

    def start_head(self):
        head = self.head
        head.must("mariadb-install-db", "--user=mysql", "--datadir=/var/lib/mysql", "--auth-root-authentication-method=socket",
                  "--skip-test-db")
        head.start("mariadbd", "--user=mysql", "--skip-networking", "--innodb-buffer-pool-size=32M", "--skip-log-bin")
        wait(lambda: head.run("mariadb-admin", "ping").returncode == 0, "the data base answers")
        head.must("mariadb", "-e", "CREATE DATABASE slurm; CREATE USER slurm@localhost IDENTIFIED VIA unix_socket; "
                                   "GRANT ALL ON slurm.* TO slurm@localhost")
        head.start("runuser", "-u", "slurm", "--", "slurmdbd", "-D")
        wait(lambda: head.run("sacctmgr", "-n", "show", "cluster").returncode == 0, "slurmdbd answers")
        head.start("runuser", "-u", "slurm", "--", "slurmctld", "-D", "-i")
        wait(lambda: head.run("scontrol", "ping").returncode == 0, "slurmctld answers")

    def nodes(self):
        """Their states, by name."""
        return dict(line.split() for line in self.head.run("sinfo", "-hN", "-o", "%N %T").stdout.splitlines() if len(line.split()) == 2)

    def close(self):
        for one in self.hosts.values():
            one.power_off()
        remove_switch()


def really_root(programs=()):
    """A fixture that skips where we are root of a user namespace only: Slurm's daemons run as other users. So do jobs, which call
    these programs."""
    @pytest.fixture(scope="module")
    def there():
        skip_unless_really_root("Slurm's daemons run as other users")
        for program in programs:
            if subprocess.run(["runuser", "-u", "nobody", "--", "test", "-x", program], check=False).returncode != 0:
                pytest.skip(f"jobs run as other users, who may not execute {program}: put this tree where they may")
    return there
