#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
The daemon without a VM: what it refuses, who waits for whom, what is there after it or its etcd was killed. Nodes are declared
whose QEMU is not there, so that their starts fail. Each answer is compared with docs/openapi.json. $KAGE_TOOL: the control tool.
"""
import base64
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from described import Description  # noqa: E402
from waiting import SECONDS, TOOL, wait  # noqa: E402

DESCRIBED = Description()
ASSETS = ("qemu", "kernel", "initramfs", "root_image", "module", "icd", "cuda", "device_library", "worker")


class Daemon:
    def __init__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="kage-d-"))
        assets = dict({name: f"/nowhere/{name}" for name in ASSETS}, flavour="6.12-cloud")
        (self.directory / "assets.json").write_text(json.dumps(assets), encoding="utf-8")
        (self.directory / "run").mkdir(mode=0o700)
        self.environment = dict(os.environ, KAGEMUSHA_STATE_DIR=str(self.directory / "state"),
                                KAGEMUSHA_RUNTIME_DIR=str(self.directory / "run"),
                                KAGE_ASSETS=str(self.directory / "assets.json"))
        self.socket = str(self.directory / "run" / "daemon.socket")
        self.log = open(self.directory / "daemon.log", "ab")
        self.process = None

    def start(self):
        self.process = subprocess.Popen([TOOL, "daemon"], stdin=subprocess.DEVNULL, stderr=self.log, env=self.environment)
        wait(lambda: self.answers() or self.process.poll() is not None, "the daemon answers")
        assert self.process.poll() is None, self.said()

    def answers(self):
        try:
            return self.ask("GET", "/v1/host")[0] == 200
        except OSError:
            return False

    def said(self):
        return (self.directory / "daemon.log").read_text(encoding="utf-8")

    def connect(self):
        end = socket.socket(socket.AF_UNIX)
        end.settimeout(SECONDS)
        end.connect(self.socket)
        return end

    def raw(self, *pieces):
        """What comes back for these bytes, until the daemon hangs up or has answered."""
        with self.connect() as end:
            for piece in pieces:
                try:
                    end.sendall(piece)
                except OSError:
                    break  # it has hung up: its answer is there
            return answer_of(end)

    def ask(self, method, target, body=None, revision=None):
        text = body if isinstance(body, (bytes, str)) else json.dumps(body) if body is not None else ""
        text = text.encode() if isinstance(text, str) else text
        match = f'If-Match: "{revision}"\r\n' if revision else ""
        status, said = self.raw(f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{match}"
                                f"Content-Length: {len(text)}\r\n\r\n".encode() + text)
        DESCRIBED.check(method, target, status, said)
        return status, said

    def etcd(self):
        """Its process number: it is a child of the daemon's, or of a child."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if words[0].endswith(b"etcd") and f"--data-dir={self.directory}/state/etcd".encode() in words:
                    return int(entry.name)
        return None

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        self.log.close()
        if kind:
            print(self.said()[-4000:], flush=True)
        wait(lambda: not self.etcd(), "etcd ends with its daemon")
        shutil.rmtree(self.directory)


def answer_of(end):
    """Status and body."""
    data = b""
    while b"\r\n\r\n" not in data:
        got = end.recv(65536)
        if not got:
            return None, data
        data += got
    head, body = data.split(b"\r\n\r\n", 1)
    length = int(next(line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")))
    while len(body) < length:
        got = end.recv(65536)
        assert got, "half an answer"
        body += got
    return int(head.split()[1]), json.loads(body)


def refused(answer, status, part):
    assert answer[0] == status, answer
    assert part in answer[1]["error"], answer


def check_bad_input(daemon):
    """what is no request, no name and no declaration is refused with a sentence, and nothing of it is there afterwards"""
    def post(body):
        return daemon.ask("POST", "/v1/clusters", body)
    refused(post({"name": "<script>alert(1)</script>"}), 400, "is no name for a cluster")
    refused(post({"name": "a", "nodes": 2, "colour": "red"}), 400, "'colour' is no key")
    refused(post({"name": "a", "nodes": 64, "memory": "1024G"}), 409, "no host has room")
    refused(post("{"), 400, "this is no JSON")
    refused(post(b"\xff\xfe\x00"), 400, "this is no JSON")
    refused(post("x" * 65537), 413, "64 KiB")
    refused(daemon.ask("GET", "/v1/clusters/../../etc"), 404, "there is nothing")
    refused(daemon.ask("GET", "/v1/clusters/%3Cb%3E"), 404, "there is no cluster")
    refused(daemon.ask("GET", "/v1/clusters/none"), 404, "there is no cluster 'none'")
    refused(daemon.ask("GET", "/v1/clusters/none/nodes/node1/agent"), 404, "there is no cluster")
    refused(daemon.ask("PATCH", "/v1/clusters/none"), 405, "PATCH is not possible")
    refused(daemon.ask("GET", "/"), 404, "there is nothing at /")
    refused(daemon.ask("GET", "/" + "a" * 20000), 413, "64 KiB")
    assert daemon.raw(b"\x16\x03\x01\x02\x00" * 100)[0] == 400
    assert daemon.ask("GET", "/v1/clusters")[1] == {"clusters": []}


def check_large_bodies(daemon):
    """a body of 1 GB is refused by its length before it is read, and by its count where it has no length"""
    refused(daemon.raw(b"POST /v1/clusters HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n"), 413, "64 KiB")
    chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    refused(daemon.raw(b"POST /v1/clusters HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", *[chunk] * 100), 413,
            "64 KiB")


def check_slow_clients(daemon):
    """whoever sends a letter now and then, or nothing, is hung up on; others are answered meanwhile; so is who comes later"""
    slow = [daemon.connect() for _ in range(40)]
    for i, end in enumerate(slow):
        end.sendall(b"GET /v1/clu" if i % 2 else b"POST /v1/clusters HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert daemon.ask("GET", "/v1/clusters")[0] == 200
    for end in slow:
        end.settimeout(1)

    def all_gone():
        for end in list(slow):
            try:
                end.sendall(b"x")
                gone = not end.recv(4096)
            except socket.timeout:
                gone = False
            except OSError:
                gone = True
            if gone:
                end.close()
                slow.remove(end)
        return not slow
    wait(all_gone, "slow clients are hung up on")
    crowd = [daemon.connect() for _ in range(200)]
    for end in crowd:
        end.close()
    wait(daemon.answers, "it answers after a crowd")


def check_conflict(daemon):
    """of two who change one cluster at once the second is refused, and sees what the first has done; so is who deletes it"""
    status, made = daemon.ask("POST", "/v1/clusters", {"name": "two", "nodes": 1, "accel": "tcg"})
    assert status == 201, made
    assert daemon.ask("POST", "/v1/clusters", {"name": "two", "nodes": 1, "accel": "tcg"})[0] == 200  # asked again
    refused(daemon.ask("POST", "/v1/clusters", {"name": "two", "nodes": 3}), 409, "there is a cluster 'two' already")
    first = daemon.ask("POST", "/v1/clusters/two/scale", {"nodes": 2}, made["revision"])
    assert first[0] == 200 and first[1]["nodes"] == 2, first
    refused(daemon.ask("POST", "/v1/clusters/two/scale", {"nodes": 3}, made["revision"]), 409, "somebody else")
    refused(daemon.ask("DELETE", "/v1/clusters/two", None, made["revision"]), 409, "somebody else")
    refused(daemon.ask("POST", "/v1/clusters/two/scale", {"nodes": 0}), 400, "1 to 64")
    refused(daemon.ask("POST", "/v1/clusters/two/scale", {"nodes": 2, "now": True}), 400, "'now' is no key")
    refused(daemon.ask("PUT", "/v1/clusters/two", {"name": "other"}), 400, "another name")
    assert daemon.ask("GET", "/v1/clusters/two")[1]["nodes"] == 2


def check_failed_nodes(daemon):
    """a node that can't start says why, and is tried again"""
    def failed():
        nodes = daemon.ask("GET", "/v1/clusters/two")[1]["node_states"]
        return len(nodes) == 2 and all(n["state"] == "failed" and "ended with status 125" in n["text"] for n in nodes)
    wait(failed, "both nodes have failed")


def check_daemon_is_killed(daemon):
    """the daemon is killed: etcd ends with it, and the next one has what was wanted; a second one beside it is refused"""
    other = subprocess.run([TOOL, "daemon"], env=daemon.environment, stderr=subprocess.PIPE, text=True, check=False)
    assert other.returncode == 125 and "another daemon has" in other.stderr, other
    daemon.kill()
    wait(lambda: not daemon.etcd(), "etcd ends with it")
    daemon.start()
    assert daemon.ask("GET", "/v1/clusters/two")[1]["nodes"] == 2


def check_etcd(daemon):
    """etcd stands still: an error says so, and nothing is half made; it is killed: it is started again with all that it had"""
    etcd = daemon.etcd()
    os.kill(etcd, signal.SIGSTOP)
    refused(daemon.ask("POST", "/v1/clusters", {"name": "late"}), 503, "can't reach its etcd")
    with subprocess.Popen([TOOL, "cluster", "exec", "none", "node1", "--wait", "--", "true"], env=daemon.environment, stdin=subprocess.DEVNULL,
                          stderr=subprocess.PIPE) as waits:
        refused(daemon.ask("GET", "/v1/clusters/none"), 503, "can't reach its etcd")
        os.kill(etcd, signal.SIGCONT)
        assert b"there is no cluster 'none'" in waits.communicate()[1], "it has not waited for etcd"
    wait(lambda: daemon.ask("GET", "/v1/clusters")[0] == 200, "it answers again")
    os.kill(etcd, signal.SIGKILL)
    wait(lambda: daemon.etcd() not in (None, etcd), "etcd is started again")
    wait(lambda: daemon.ask("GET", "/v1/clusters")[0] == 200, "it answers again")
    assert [one["name"] for one in daemon.ask("GET", "/v1/clusters")[1]["clusters"]] == ["two"]


def put(daemon, key, value):
    """Into its etcd, as another daemon would. False: that does not answer now."""
    own = daemon.directory / "state" / "keys" / "etcd"
    url = next(word.split("=", 1)[1] for word in Path(f"/proc/{daemon.etcd()}/cmdline").read_text(encoding="utf-8").split("\0")
               if word.startswith("--listen-client-urls="))
    tls = ssl.create_default_context(cafile=own / "ca.pem")
    tls.load_cert_chain(own / "cert.pem", own / "key.pem")
    there = http.client.HTTPSConnection(url.removeprefix("https://"), context=tls)
    try:
        there.connect()
    except OSError:
        return False
    there.request("POST", "/v3/kv/put", json.dumps({part: base64.b64encode(text.encode()).decode() for part, text in
                                                    (("key", key), ("value", value))}))
    return there.getresponse().status == 200


def check_another_version(daemon):
    """a cluster that a later release has written is left alone: it is not shown, nobody takes its name, and others go on"""
    record = json.dumps({"format": 2, "wanted": "running", "new": [1, 2]})
    wait(lambda: put(daemon, "kagemusha/clusters/later", record), "it is in etcd")
    wait(lambda: "its record is of another release" in daemon.said(), "it is said")
    assert daemon.ask("GET", "/v1/clusters/later")[0] == 404
    assert daemon.ask("POST", "/v1/clusters", {"name": "later"})[0] == 409
    assert daemon.ask("DELETE", "/v1/clusters/later")[0] == 404
    assert [one["name"] for one in daemon.ask("GET", "/v1/clusters")[1]["clusters"]] == ["two"]


def check_command(daemon):
    """the command line: what the daemon says is said, with status 125; without a daemon it says how to start one"""
    def kage(*words, text=""):
        done = subprocess.run([TOOL, "cluster", *words], env=daemon.environment, input=text, capture_output=True, text=True,
                              check=False)
        return done.returncode, done.stdout + done.stderr
    assert kage("list")[1].split()[:2] == ["two", "2"]
    assert kage("show", "none") == (125, "kage: there is no cluster 'none'\n")
    assert kage("show", "<b>")[0] == 125
    assert kage("create", "-", text="name = \"x\"\nnode-count = 3\n") == (125, "kage: -: 'node-count' is no key of a cluster\n")
    status, said = kage("exec", "two", "node9", "--", "true")
    assert status == 125 and "has no node 'node9'" in said, said
    assert json.loads(kage("show", "two", "--json")[1])["nodes"] == 2
    assert kage("stop", "two", "--wait")[0] == 0
    status, said = kage("delete", "two", "--wait")
    assert status == 0 and "two: deleted" in said, said
    assert not list((daemon.directory / "state" / "clusters").iterdir()), "files of the cluster are left"
    left = sorted(path.name for path in (daemon.directory / "run").iterdir())
    assert left == ["daemon.socket"], left
    assert daemon.ask("GET", "/v1/clusters")[1] == {"clusters": []}


def check_end(daemon):
    """SIGTERM ends it in order; then a client says that there is none"""
    daemon.process.terminate()
    assert daemon.process.wait(SECONDS) == 0
    done = subprocess.run([TOOL, "cluster", "list"], env=daemon.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 125 and "start one with `kage daemon`" in done.stderr, done


def main():
    if not shutil.which("etcd"):
        print("skipped: no etcd here (package etcd-server)")
        return 77
    with Daemon() as daemon:
        for check in (check_bad_input, check_large_bodies, check_slow_clients, check_conflict, check_failed_nodes,
                      check_daemon_is_killed, check_etcd, check_another_version, check_command, check_end):
            check(daemon)
            print("ok:", check.__doc__.strip(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
