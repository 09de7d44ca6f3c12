#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
What is decided about a QEMU's confinement (confinement.hpp) is carried out: a shell in QEMU's place looks at what it has. As root
with a user of its own; and in a user namespace, as whoever is not root gets it. $KAGE_TOOL: the control tool.
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

USER = 0x70000000 + 7
LOOK = """
id -u; id -g
{ test -r $0/own && ! test -w $0/own; } && echo reads-own
{ echo more >> $0/image; } 2>/dev/null && echo writes-image
test -e $0/other || echo no-other
test -e /etc/shadow || echo no-shadow
{ touch /x || touch /dev/x; } 2>/dev/null || echo makes-nothing
grep -c : /proc/net/dev
grep CapEff /proc/self/status | tr -d '\\t'
grep NoNewPrivs /proc/self/status | tr -d '\\t'
"""


def look(directory, as_root):
    plan = {"user": USER if as_root else None, "user_namespace": not as_root, "network": True, "place": f"{directory}/root",
            "paths": [[path, False, False, True] for path in ("/usr", "/lib", "/lib64", "/bin")] +
                     [[f"{directory}/image", True, False, False], [f"{directory}/own", False, True, False]],
            "devices": ["/dev/null"], "descriptors": []}
    done = subprocess.run([os.environ["KAGE_TOOL"], "--guarded-by", str(os.getpid()), "plain", json.dumps(plan), "/bin/sh", "-c",
                           LOOK, directory], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout.split()


def check(as_root):
    with tempfile.TemporaryDirectory(prefix="kagemusha-confine-") as directory:
        os.mkdir(f"{directory}/root")
        for name in ("own", "image", "other"):
            Path(directory, name).write_text(name, encoding="utf-8")
            os.chmod(f"{directory}/{name}", 0o600)
        before = os.stat(f"{directory}/image")
        found = look(directory, as_root)
        assert found[:2] == ([str(USER)] * 2 if as_root else [str(os.geteuid()), str(os.getegid())]), found
        wanted = ["reads-own", "writes-image", "no-other", "no-shadow", "makes-nothing"]
        assert found[2:7] == wanted, found
        assert found[7] == "1", f"interfaces: {found}"  # the loopback of an empty network
        assert found[8:] == ["CapEff:0000000000000000", "NoNewPrivs:1"], found
        assert Path(directory, "image").read_text(encoding="utf-8") == "imagemore\n"
        assert (os.stat(f"{directory}/image").st_uid, os.stat(f"{directory}/image").st_gid) == (before.st_uid, before.st_gid)
        assert os.path.exists(f"{directory}/other") and os.listdir(f"{directory}/root") == []


def main(who):
    if who == "root" and os.geteuid() != 0:
        print("not root")
        return 77
    if who == "user" and os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    namespaces = ["--mount"] if who == "root" else ["--user", "--mount"]
    if subprocess.run(["unshare", *namespaces, "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        print(f"this host gives {who} no namespaces; in a chroot, whose root is no mount, nobody gets one of mounts")
        return 77
    if not os.access(os.environ["KAGE_TOOL"], os.X_OK):
        print(f"this {who} may not start {os.environ['KAGE_TOOL']}: its folders are somebody else's alone")
        return 77
    check(who == "root")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
