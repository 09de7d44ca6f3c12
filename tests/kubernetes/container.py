# SPDX-License-Identifier: GPL-2.0-or-later
"""
A container of a test's own: `start(edits, command…)` runs a command in namespaces for mounts and processes. It sees its image (this
machine's system and the build, read-only), folders that it may write to, and of the node what the edits name. No runtime of containers
has to be there.

As a program (what `start` runs inside of the namespaces): container.py ROOT EDITS COMMAND…
"""
import json
import os
import subprocess
import sys
from pathlib import Path

ALWAYS = ("null", "zero", "full", "random", "urandom", "tty")  # what every runtime gives, as it does /proc and /sys
# Capabilities that runtimes leave to root in a container; all others are gone.
CAPABILITIES = ("chown", "dac_override", "fsetid", "fowner", "mknod", "net_raw", "setgid", "setuid", "setfcap", "setpcap", "net_bind_service",
                "sys_chroot", "kill", "audit_write")
SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "usr", "etc")


def edits_of_answer(answer, specification):
    """What a kubelet and its runtime make of an answer to Allocate: environment, device nodes, mounts."""
    edits = {"env": [f"{key}={value}" for key, value in sorted(answer.envs.items())],
             "deviceNodes": [{"path": one.container_path, "hostPath": one.host_path} for one in answer.devices],
             "mounts": [{"containerPath": one.container_path, "hostPath": one.host_path,
                         "options": ["ro"] if one.read_only else []} for one in answer.mounts]}
    for named in answer.cdi_devices:
        add_cdi(edits, specification, named.name)
    return edits


def add_cdi(edits, specification, name):
    kind, _, wanted = name.partition("=")
    assert specification["kind"] == kind, f"no specification of {kind}"
    found = [one for one in specification["devices"] if one["name"] == wanted]
    assert len(found) == 1, f"{name} is in no specification"
    for more in (specification.get("containerEdits", {}), found[0]["containerEdits"]):
        for key, values in more.items():
            edits.setdefault(key, []).extend(values)


def start(root, edits, image, writable, variables, command, **more):
    """`image`: folders of the image besides the system's; `writable`: the container's own, of this machine."""
    Path(root).mkdir()
    whole = dict(edits, image=[str(one) for one in image], writable=[str(one) for one in writable])
    words = dict(pair.split("=", 1) for pair in edits["env"])
    assert not set(words) & set(variables), "the node and the image both set a variable"
    plan = Path(str(root) + ".json")
    plan.write_text(json.dumps(whole), encoding="utf-8")
    return subprocess.Popen(["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", sys.executable, "-B", __file__,
                             root, plan, *command], stdin=subprocess.DEVNULL, env={**variables, **words}, **more)


def mount(*words):
    subprocess.run(["/usr/bin/mount", *words], check=True, env={"PATH": "/usr/bin:/bin"})


def bind(source, target, options=()):
    source, target = Path(source), Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        target.mkdir(exist_ok=True)
    elif not target.exists():  # else it is in a folder that was bound before
        target.touch()
    mount("--bind", source, target)
    wanted = [one for one in options if one not in ("bind", "rbind", "rw")]
    if wanted:
        mount("-o", ",".join(["remount", "bind", *wanted]), target)


def build(root, edits):
    root = Path(root)
    mount("-t", "tmpfs", "container", root)
    for name in SYSTEM:
        path = Path("/") / name
        if path.is_symlink():
            (root / name).symlink_to(os.readlink(path))
        elif path.is_dir():
            bind(path, root / name, ["ro"])
    for folder in edits["image"]:
        bind(folder, root / folder.lstrip("/"), ["ro"])
    for folder in ("tmp", "run", "var/tmp", "root", "dev/shm", "proc"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    mount("-t", "proc", "proc", root / "proc")
    bind("/sys", root / "sys", ["ro"])
    for folder in edits["writable"]:
        bind(folder, root / folder.lstrip("/"))
    for name in ALWAYS:
        bind(f"/dev/{name}", root / "dev" / name)
    for node in edits.get("deviceNodes", []):
        bind(node.get("hostPath", node["path"]), root / node["path"].lstrip("/"))
    for one in edits.get("mounts", []):
        bind(one["hostPath"], root / one["containerPath"].lstrip("/"), one.get("options", ()))


def main():
    root, plan, *command = sys.argv[1:]
    mount("--make-rprivate", "/")
    build(root, json.loads(Path(plan).read_text(encoding="utf-8")))
    # A root of its own, and nothing of the old one is to be reached.
    os.chdir(root)
    subprocess.run(["/usr/sbin/pivot_root", ".", "tmp"], check=True, env={})
    subprocess.run(["/usr/bin/umount", "--lazy", "/tmp"], check=True, env={})
    os.chdir("/root")
    bounded = ",".join(["-all", *(f"+{name}" for name in CAPABILITIES)])
    os.execv("/usr/bin/setpriv", ["setpriv", f"--bounding-set={bounded}", "--inh-caps=-all", "--", *command])


if __name__ == "__main__":
    main()
