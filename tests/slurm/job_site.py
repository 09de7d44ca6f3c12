# SPDX-License-Identifier: GPL-2.0-or-later
"""
A site with Slurm (slurm_site.py) whose jobs have VMs of ours: what docs/slurm.md has is installed and configured as it stands
there, and alice submits jobs.
"""
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from etcd import Member
from guest_vm import environment, tool
from ha_pair import wait
from slurm_site import ALICE, ROOT, Site

DOCUMENT = ROOT / "docs/slurm.md"
PLUGINS = "lib/x86_64-linux-gnu/slurm-wlm"
VM = 'accel = "tcg"\n'
ARBITER = '[arbiter]\nkind = "etcd"\nendpoints = ["https://{address}:2379"]\ntls = "/etc/kagemusha/keys"\nlease-ms = 3000\n'
SITE = """MEMORY=400M
READY_S=500
KAGE_ASSETS={assets}
KAGEMUSHA_RUNTIME_DIR=/run/kagemusha
export LD_LIBRARY_PATH={libraries}
"""


class JobSite(Site):
    def __init__(self):
        directory = Path(tempfile.mkdtemp(prefix="kage-s-"))
        build = Path(os.environ["KAGE_BUILD_DIR"])
        scripts = {f"libexec/kagemusha/slurm/{name}": ROOT / "slurm" / name
                   for name in ("prolog", "epilog", "task", "watch", "supervise", "common")}
        super().__init__(directory, "gpu:kage:1,shard:8", self.document("gres.conf").replace("/dev/nvidia0", "/dev/null"), self.document("slurm.conf"), {
            **scripts, "libexec/kagemusha/slurm/complete-job": build / "slurm/complete-job", "bin/kagemusha": Path(tool()),
            f"{PLUGINS}/spank_kagemusha.so": build / "slurm/spank_kagemusha.so"})
        words, = re.findall(r"^```sh\n(kagemusha keys .*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        for one in (self.hosta, self.hostb):
            words = words.replace(f"--host {one.name}", f"--host {one.name},{one.address}")
        words = f'kagemusha() {{ "$KAGE_TOOL" "$@" --host head,{self.head.address}; }}\n{words}'
        subprocess.run(["bash", "-ec", words], check=True, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        keys = directory / "keys"
        for one in self.hosts.values():
            one.write("etc/slurm/plugstack.conf", self.document("plugstack.conf"))
            one.write("etc/slurm/cli_filter.lua", (ROOT / "slurm/cli_filter.lua").read_text(encoding="utf-8"))
            one.write("etc/kagemusha/slurm/site.conf", SITE.format(
                assets=environment()["KAGE_ASSETS"], libraries=os.environ.get("LD_LIBRARY_PATH", "")))
            one.write("etc/kagemusha/slurm/vm.toml", VM)
            for name in ("types/kage.toml", "types/shard.toml"):
                one.write(f"etc/kagemusha/slurm/{name}", self.document(name))
            protection = re.sub(r"(?s)\[arbiter\].*", ARBITER.format(address=self.head.address), self.document("protection.toml"))
            one.write("etc/kagemusha/slurm/protection.toml", protection)
            subprocess.run(["cp", "-a", keys / one.name, one.disk / "etc/kagemusha/keys"], check=True)
        self.etcd = None

    def start(self):
        super().start()
        self.etcd = Member(self.directory, "head", self.head.address, self.head.inside(), self.head.disk / "etc/kagemusha/keys")
        self.etcd.start([self.etcd])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @staticmethod
    def document(name):
        """The file of this name in docs/slurm.md."""
        found = re.findall(rf"^```[a-z]*\n# {re.escape(name)}\b[^\n]*\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"),
                           re.MULTILINE | re.DOTALL)
        assert len(found) == 1, f"{name} is {len(found)} times in {DOCUMENT}"
        return found[0]

    # ---- alice ----

    def alice(self, *words):
        return self.head.run("env", "-C", "/home/alice", *words, user="alice")

    def script(self, name, text):
        path = self.home / name
        path.write_text("#!/bin/bash\n" + text, encoding="utf-8")
        path.chmod(0o755)
        os.chown(path, ALICE, ALICE)

    def bring(self, program, name):
        shutil.copy(program, self.home / name)

    def submit(self, *words):
        """The number of a job that Slurm took."""
        done = self.alice("sbatch", *words)
        assert done.returncode == 0, done.stdout
        return int(done.stdout.split()[-1])

    def output(self, job):
        path = self.home / f"slurm-{job}.out"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def note(self, job, text):
        """Somebody else writes into the job's output."""
        with open(self.home / f"slurm-{job}.out", "a", encoding="utf-8") as file:
            file.write(text)

    # ---- what Slurm says ----

    def job(self, number):
        said = self.head.run("scontrol", "show", "job", "--details", str(number)).stdout
        return dict(word.split("=", 1) for word in said.split() if "=" in word)

    def admin_comment(self, number):
        said = self.head.run("scontrol", "show", "job", str(number)).stdout
        found = re.search(r"AdminComment=(.*)", said)
        return found[1].strip() if found else ""

    def accounted(self, number, field):
        """Of each record of the job, the last one last."""
        return self.head.must("sacct", "-XnPD", "-j", str(number), "-o", field).split("\n")[:-1]

    def wait_state(self, number, *states):
        def look():
            now = self.job(number)
            assert now.get("JobState") in states or now.get("JobState") in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED"), \
                f"job {number} is {now.get('JobState')}, not {states}: {self.said(number)}"
            return now if now.get("JobState") in states else None
        try:
            return wait(look, f"job {number} is {states}", 600)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.said(number)}") from error

    def said(self, number):
        """For a person, after a failure."""
        text = self.admin_comment(number) + "\n" + self.output(number)
        for one in (self.hosta, self.hostb):
            if one.has_power():
                text += f"\n{one.name}:\n" + one.run("sh", "-c", f"tail -n 40 /run/kagemusha/slurm/{number}/log").stdout
                text += one.run("tail", "-n", "20", "/var/log/slurmd.log").stdout
        return text

    # ---- what is on a host ----

    @staticmethod
    def left(host):
        """What is there of jobs' VMs: processes and files."""
        processes = host.run("pgrep", "-af", "kagemusha|qemu-system").stdout.splitlines()
        files = host.run("sh", "-c", "find /run/kagemusha -mindepth 1 -path '*/job-*' -o -path '*/slurm/*' 2>/dev/null").stdout.split()
        # The host's first process is a script of this tree, which may lie in a folder of this name.
        return [one for one in processes if not one.startswith("1 ") and "pgrep" not in one and "kagemusha-gpu" not in one] + files

    def wait_clean(self, *hosts):
        for host in hosts:
            try:
                wait(lambda host=host: not self.left(host), f"nothing is left on {host.name}", 120)
            except AssertionError as error:
                raise AssertionError(f"{error}: {self.left(host)}") from error
