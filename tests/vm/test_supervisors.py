# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: two supervisors on one machine, joined by Unix sockets, with the arbiter `lock`; the guest counts (guest/counter.S).

A VM survives the death of its QEMU, of its supervisor, and a freeze of both; nobody ever goes back behind a committed
checkpoint, or runs twice.
"""
import os
import random
import signal
import socket
import ssl
import subprocess
import time

from fixtures import has_mounts_of_its_own, own
from guest_vm import tool
from ha_pair import Pair, committed_count, contiguous, must_continue, wait
from processes import alive, processes
from relay import Relay

pair = own(Pair)


def protected(pair):
    standby = pair.start("standby", "standby")
    primary = pair.start("run", "primary")
    standby.wait_state("synced")
    primary.wait_state("protecting")
    return primary, standby


def check_chain(pair):
    """QEMU killed: the standby goes on; given a standby of its own it survives again, and once more"""
    primary, standby = protected(pair)
    for turn in range(3):
        committed = committed_count(primary)
        os.kill(primary.qemu(), signal.SIGKILL)
        status = standby.wait("it runs the VM", lambda s: s["role"] == "primary")
        assert status["takeovers"] == 1 and "killed" in status["last_takeover"].lower(), status
        assert not status["protected"] and status["degraded"], status
        assert any(e["event"] == "takeover" for e in standby.events()), standby.said()
        must_continue(primary, standby, committed)
        assert primary.process.wait(60) == 0, f"status {primary.process.returncode}; {primary.said()}"
        if turn == 2:
            break
        address = f"unix:{pair.directory}/standby{turn}"
        primary, standby = standby, pair.start("standby", f"standby{turn}", "--listen", address)
        standby.wait_state("listening")
        primary.tell("protect", address)
        primary.wait_state("protecting")


def check_frozen(pair):
    """primary frozen: the standby waits for the lease, then goes on; the primary wakes up and ends itself"""
    primary, standby = protected(pair)
    committed = committed_count(primary)
    primary.freeze()
    standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    gate = primary.pair.directory / "primary.gate"
    until_ns = int.from_bytes(gate.read_bytes()[8:16], "little")
    assert 0 < until_ns < time.clock_gettime_ns(time.CLOCK_BOOTTIME), "the frozen primary's gate is open"
    must_continue(primary, standby, committed)
    primary.freeze(False)
    assert primary.process.wait(60) == 1, primary.said()
    assert "must not run here any more" in primary.said(), primary.said()
    contiguous(standby.counts())


def check_supervisor_killed(pair):
    """the primary's supervisor killed: its QEMU dies with it, the standby goes on after the lease"""
    primary, standby = protected(pair)
    committed = committed_count(primary)
    qemu = primary.qemu()
    primary.process.kill()
    standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    assert not os.path.exists(f"/proc/{qemu}/exe") or "Z" in open(f"/proc/{qemu}/stat").read().rsplit(")", 1)[1].split()[0]
    must_continue(primary, standby, committed)


def check_standby_lost(pair):
    """the standby killed: the VM goes on and says that it is not protected; another standby protects it again"""
    primary, standby = protected(pair)
    standby.process.kill()
    status = primary.wait("it is alone", lambda s: s["state"] == "alone")
    assert status["degraded"] and not status["protected"], status
    count = primary.counts()[-1]
    wait(lambda: primary.counts()[-1] > count + 50, "the guest counts on")
    contiguous(primary.counts())
    standby.process.wait()
    pair.start("standby", "another").wait_state("synced")
    primary.wait_state("protecting")
    contiguous(primary.counts())


def check_switchover(pair):
    """switchover: the standby goes on with the very next number, nothing is lost and nothing comes twice"""
    primary, standby = protected(pair)
    committed_count(primary)
    primary.tell("switchover")
    standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    assert primary.process.wait(60) == 0, primary.said()
    last = primary.counts()[-1]
    must_continue(primary, standby, last)
    first = standby.counts()[0]
    assert first in (last, last + 1), f"{last} there, then {first} here"  # `last` when it was in the middle of printing it


def check_switchover_fails(pair):
    """switchover to a standby whose supervisor stands still: the VM goes on where it was, and is protected again later"""
    primary, standby = protected(pair)
    committed_count(primary)
    os.kill(standby.process.pid, signal.SIGSTOP)
    primary.tell("switchover")
    primary.wait("the VM stands still", lambda s: s["state"] in ("handing-over", "reclaiming"))
    last = primary.counts()[-1]
    primary.wait_state("alone")
    wait(lambda: primary.counts()[-1] > last + 50, "the guest counts on")
    contiguous(primary.counts())
    os.kill(standby.process.pid, signal.SIGCONT)
    primary.wait_state("protecting")
    assert not standby.counts(), "the standby has run"
    contiguous(primary.counts())


def check_private(pair):
    """sockets of a standby and of its QEMU: nobody but their owner may connect, whatever the umask is"""
    before = os.umask(0)
    try:
        standby = pair.start("standby", "standby")
    finally:
        os.umask(before)
    standby.wait_state("listening")
    sockets = [path for path in pair.directory.iterdir() if path.is_socket()]
    assert any(path.name == "standby.state" for path in sockets), sockets
    for path in sockets:
        assert path.stat().st_mode & 0o077 == 0, f"{path}: {path.stat().st_mode:o}"


def seccomp_modes(pid):
    """Of each thread (proc(5)): 2 is a filter"""
    modes = set()
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status", encoding="utf-8") as status:
            modes.update(line.split()[1] for line in status if line.startswith("Seccomp:"))
    return modes


def check_sandboxed(pair):
    """both QEMUs of a pair, and what shares their memory, have filters of system calls"""
    for one in protected(pair):
        qemu = one.qemu()
        assert seccomp_modes(qemu) == {"2"}, f"{one.name}: {seccomp_modes(qemu)}"
        children = {process.name: pid for pid, process in processes().items() if process.parent == qemu}
        assert seccomp_modes(children["memory-keeper"]) == {"2"}, children


def status_words(pid, name):
    """Of proc(5)'s status"""
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        return next(line.split()[1:] for line in status if line.startswith(name + ":"))


def inside(qemu, *words):
    """Runs a program where this QEMU is, as its user; its exit status"""
    user = status_words(qemu, "Uid")[0]
    return subprocess.run(["nsenter", "--target", str(qemu), "--mount", "--net", "--setgid", user, "--setuid", user, *words],
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode


def look_at_confined(one, others):
    """A user, a root and a network of its own, and nothing of `others` in it"""
    if not has_mounts_of_its_own():
        print("mounts can't be made private here: nothing is confined, and the status says so")
        assert "caller's user, root and network" in one.status()["confinement"], one.status()
        return
    assert "a network of its own" in one.status()["confinement"], one.status()
    qemu, image = one.qemu(), one.pair.directory / "counter.img"
    user = status_words(qemu, "Uid")[0]
    assert int(user) >= 0x70000000 and set(status_words(qemu, "Uid") + status_words(qemu, "Gid")) == {user}, user
    assert status_words(qemu, "Groups") == [] and int(status_words(qemu, "CapEff")[0], 16) == 0
    assert status_words(qemu, "NoNewPrivs") == ["1"]
    for kind in ("mnt", "net"):
        assert os.readlink(f"/proc/{qemu}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}"), kind
    assert inside(qemu, "test", "-r", image) == 0, "its own image"
    assert inside(qemu, "test", "-w", image) != 0, "which it only reads"
    hidden = [*others, "/etc/shadow", "/root/.ssh", "/etc/ssl/private", "/dev/vda", "/proc/1",
              one.pair.directory / "primary.control", one.pair.directory / "standby.control"]
    for path in hidden:
        assert inside(qemu, "test", "-e", path) != 0, path
    assert inside(qemu, "sh", "-c", "test $(grep -c : /proc/net/dev) = 1") == 0, "interfaces of the host"
    return user


def check_confined(pair):
    """both QEMUs of a pair have a user, a root and a network of their own, in which nothing of another VM can be opened; a
    takeover and another standby work from there"""
    if os.geteuid() != 0 or not has_mounts_of_its_own():
        print("not root, or in a chroot: what can be had is not looked at")
        return
    others = pair.directory / "other.img"
    others.write_bytes(b"another VM's")
    for image in (pair.directory / "counter.img", others):
        image.chmod(0o600)
    with open(pair.description, "a", encoding="utf-8") as description:
        description.write("\n[confinement]\n")
    primary, standby = protected(pair)
    for one in (primary, standby):
        look_at_confined(one, [others])
    assert (pair.directory / "counter.img").stat().st_uid == 0, "the image has another owner now"
    committed = committed_count(primary)
    os.kill(primary.qemu(), signal.SIGKILL)
    standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    must_continue(primary, standby, committed)
    assert primary.process.wait(60) == 0, primary.said()
    address = f"unix:{pair.directory}/another"
    another = pair.start("standby", "another", "--listen", address)
    another.wait_state("listening")
    standby.tell("protect", address)
    standby.wait_state("protecting")
    look_at_confined(another, [others])
    left = {one.qemu() for one in (standby, another)} | {
        pid for pid, process in processes().items() if process.parent in (standby.process.pid, another.process.pid)}
    assert len(left) >= 4, f"{left}: no process carries its links"
    for one in (standby, another):
        one.process.kill()
    wait(lambda: not alive(left),
         "QEMU, which has another user, and what carries its links end with their supervisor")


def check_not_confined(pair):
    """where QEMU can't be confined it runs all the same and says why, unless its description wants it confined"""
    (pair.directory / "primary.d").mkdir(0o700)
    (pair.directory / "primary.d" / "root").write_text("where its root would be", encoding="utf-8")
    primary = pair.start("run", "primary")
    wait(primary.counts, "the guest counts")
    said = primary.status()["confinement"]
    assert "caller's user, root and network" in said, said
    assert ("cannot mount" in said) == has_mounts_of_its_own(), said
    primary.tell("stop")
    assert primary.process.wait(60) == 0, primary.said()
    with open(pair.description, "a", encoding="utf-8") as description:
        description.write("\n[confinement]\n")
    primary = pair.start("run", "primary")
    # Whether a host gives anything at all is known before anything is started.
    assert primary.process.wait(60) == (1 if has_mounts_of_its_own() else 125), primary.said()
    assert "can't be confined" in primary.said(), primary.said()


def check_ports_need_keys(pair):
    """a port of this machine without keys: refused, because any local user could be the primary"""
    text = pair.description.read_text(encoding="utf-8")
    pair.description.write_text(text.replace('"unix:standby"', '"127.0.0.1:7000"'), encoding="utf-8")
    for one in (pair.start("run", "primary"), pair.start("standby", "standby")):
        assert one.process.wait(60) == 125, one.said()
        assert "needs TLS" in one.said(), one.said()
    pair.description.write_text(text, encoding="utf-8")
    other = pair.start("standby", "other", "--listen", "127.0.0.1:7000")
    assert other.process.wait(60) == 125 and "any user may connect" in other.said(), other.said()


def check_stop(pair):
    """stop: the VM ends, its standby does not start it, and nothing is left behind"""
    primary, standby = protected(pair)
    primary.tell("stop")
    assert primary.process.wait(60) == 0, primary.said()
    standby.wait_state("listening")
    assert not standby.counts(), "the standby has run"
    standby.tell("stop")
    assert standby.process.wait(60) == 0, standby.said()
    left = [p.name for p in pair.directory.iterdir() if p.suffix in (".json", ".gate", ".control", ".qmp")]
    assert not left, left


def free_base():
    """A port that is free together with the next two: the supervisor's, the GPU's, the state's."""
    while True:
        base = random.randrange(20000, 30000)
        try:
            for port in range(base, base + 3):
                socket.create_server(("127.0.0.1", port)).close()
            return base
        except OSError:
            pass


def intrude(port, keys):
    """A host of the cluster, whose good certificate is for something else, does not get in."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(f"{keys}cert.pem", f"{keys}key.pem")
    with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
        try:
            with context.wrap_socket(plain) as stranger:
                stranger.sendall(b"QEVM" + bytes(1 << 12))
                while stranger.recv(1 << 16):  # who is let in waits here, and fails by the timeout
                    pass
        except (ssl.SSLError, ConnectionError):
            pass  # it was sent away


def eavesdropped(pair, name, keys):
    """
    A protected VM, and someone on the way of its state, who knows a part of its memory. → primary, standby, whether it was seen
    """
    if keys:
        near, far = free_base(), free_base()
        listen, target = f"127.0.0.1:{far}", f"127.0.0.1:{near}"
        relays = [Relay(near, far), Relay(near + 2, far + 2, listens=True)]
    else:  # ports are refused without keys
        near, far = f"{pair.directory}/near", f"{pair.directory}/far"
        listen, target = f"unix:{far}", f"unix:{near}"
        relays = [Relay(near, far), Relay(f"{near}.state", f"{far}.state", listens=True)]
    text = pair.description.read_text(encoding="utf-8")
    pair.description = pair.directory / f"{name}.toml"
    pair.description.write_text(text.replace('"unix:standby"', f'"{target}"').replace("epoch-ms", f"{keys}epoch-ms"),
                                encoding="utf-8")
    standby = pair.start("standby", f"{name}-standby", "--listen", listen)
    standby.wait_state("listening")
    if keys:
        with socket.create_connection(("127.0.0.1", far + 2)) as stranger:
            try:
                stranger.sendall(b"QEVM" + bytes(1 << 16))
                while stranger.recv(1 << 16):
                    pass
            except ConnectionError:
                pass  # it was sent away
        for keys_of in ("vm/other/qemu/primary-", "vm/counter/qemu/standby-", "vm/other/supervisor/primary-", ""):
            for port in (far, far + 2):
                intrude(port, f"{pair.directory}/keys/there/{keys_of}")
    primary = pair.start("run", f"{name}-primary")
    primary.wait_state("protecting")
    committed_count(primary)
    heard = bytes(relays[1].heard)
    assert len(heard) > 1 << 16, f"only {len(heard)} bytes"
    return primary, standby, (pair.directory / "counter.img").read_bytes()[:64] in heard


def make_keys(pair, *more):
    words = more or ("--host", "here", "--host", "there", "--vm", "counter", "--vm", "other")
    subprocess.run([tool(), "keys", str(pair.directory / "keys"), *words], check=True, stdout=subprocess.DEVNULL)


def check_encrypted(pair):
    """keys: nobody on the way sees the VM's memory, who has none gets nowhere; a takeover and a standby for the survivor"""
    description = pair.description
    primary, standby, seen = eavesdropped(pair, "plain", "")
    assert seen, "without keys the guest's program was not in the stream: this test could not fail"
    for one in (primary, standby):
        one.tell("stop")
        one.process.wait(60)
    pair.description = description
    make_keys(pair)
    primary, standby, seen = eavesdropped(pair, "secret", 'tls = "keys/here"\n')
    assert not seen, "the guest's program was in the stream"
    if os.geteuid() == 0:  # without a word in the description, and with ports
        for one in (primary, standby):
            look_at_confined(one, [])
    committed = committed_count(primary)
    os.kill(primary.qemu(), signal.SIGKILL)
    standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    must_continue(primary, standby, committed)
    address = f"127.0.0.1:{free_base()}"
    another = pair.start("standby", "another", "--listen", address)
    another.wait_state("listening")
    # New keys for all, while the VM runs; whoever has one of the old ones is shut out.
    make_keys(pair, "--revoke", "here", "--vm", "counter")
    make_keys(pair, "--renew")
    for one, end in ((standby, "client"), (another, "server")):
        wait(lambda one=one, end=end: f"QEMU has new keys as a {end}" in one.said(), "new keys")
    standby.tell("protect", address)
    standby.wait_state("protecting")


def check_writable_disk(pair):
    """a writable disk among QEMU's own options: the VM is not started, and a sentence says why"""
    path = pair.directory / "data.img"
    path.write_bytes(bytes(1 << 20))
    text = pair.description.read_text(encoding="utf-8")
    pair.description.write_text(f'qemu-options = ["-drive", "file={path},format=raw,if=virtio"]\n{text}', encoding="utf-8")
    primary = pair.start("run", "primary")
    assert primary.process.wait(60) == 1, primary.said()
    assert "is writable" in primary.said() and str(path) in primary.said(), primary.said()
    pair.description.write_text(f'qemu-options = ["-drive", "file={path},format=raw,if=virtio,readonly=on"]\n{text}',
                                encoding="utf-8")
    protected(pair)
