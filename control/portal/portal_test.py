#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
The portal over the network, without a browser and without a VM: who gets in, who may do what, hostile clients, WebSockets.
$KAGE_TOOL: the control tool. Nodes are declared whose QEMU is not there, so that their starts fail.
"""
import base64
import http.client
import json
import os
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "daemon"))
from daemon_test import DESCRIBED, SECONDS, TOOL, Daemon, wait  # noqa: E402

TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
TLS.check_hostname = False
TLS.verify_mode = ssl.CERT_NONE


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)


class Portal:
    def __init__(self, daemon, port=0):
        self.daemon, self.source = daemon, None  # the address that requests come from
        opened = self.kage("portal", "--port", str(port), "--json")
        assert opened.returncode == 0, opened
        self.opened = json.loads(opened.stdout)
        self.port = int(self.opened["address"].rstrip("/").rsplit(":", 1)[1])
        self.origin = f"https://127.0.0.1:{self.port}"

    def kage(self, *words, text=""):
        return subprocess.run([TOOL, *words], env=self.daemon.environment, input=text, capture_output=True, text=True, check=False)

    def connect(self):
        end = socket.create_connection(("127.0.0.1", self.port), SECONDS)
        return TLS.wrap_socket(end)

    def ask(self, method, path, body=None, headers=None):
        end = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=SECONDS, context=TLS,
                                          source_address=(self.source, 0) if self.source else None)
        try:
            end.request(method, path, json.dumps(body) if isinstance(body, (dict, list)) else body, headers or {})
            got = end.getresponse()
            answer = Answer(got.status, got.headers, got.read())
            if got.headers.get_content_type() == "application/json":
                DESCRIBED.check(method, path, answer.status, answer.json())
            return answer
        finally:
            end.close()

    def log_in(self, body):
        """Headers of a browser that has logged in."""
        got = self.ask("POST", "/v1/session", body)
        assert got.status == 200, got.body
        cookie = got.headers["Set-Cookie"]
        assert all(word in cookie for word in ("__Host-", "; Secure", "; HttpOnly", "; SameSite=Strict")), cookie
        return {"Cookie": cookie.split(";")[0], "X-CSRF-Token": got.json()["csrf"], "Origin": self.origin}

    def token(self, name, role):
        made = self.kage("portal", "add-token", name, "--role", role)
        assert made.returncode == 0, made
        return {"Authorization": "Bearer " + made.stdout.strip()}

    def websocket(self, path, headers):
        """A WebSocket that is open, or the status of a refusal."""
        end = self.connect()
        key = base64.b64encode(os.urandom(16)).decode()
        lines = {"Host": f"127.0.0.1:{self.port}", "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
                 "Sec-WebSocket-Key": key, **headers}
        end.sendall((f"GET {path} HTTP/1.1\r\n" + "".join(f"{a}: {b}\r\n" for a, b in lines.items()) + "\r\n").encode())
        head = b""
        while b"\r\n\r\n" not in head:
            got = end.recv(1)
            if not got:
                return None, 0
            head += got
        status = int(head.split()[1])
        return (WebSocket(end), 101) if status == 101 else (None, status)


class WebSocket:
    def __init__(self, end):
        self.end = end

    def read(self, count):
        data = b""
        while len(data) < count:
            got = self.end.recv(count - len(data))
            if not got:
                raise EOFError
            data += got
        return data

    def message(self):
        """(opcode, bytes)"""
        first, length = self.read(2)
        if length == 126:
            length = struct.unpack("!H", self.read(2))[0]
        elif length == 127:
            length = struct.unpack("!Q", self.read(8))[0]
        return first & 15, self.read(length)

    def send(self, data, opcode=1):
        size = struct.pack("!BB", 0x80 | opcode, 0x80 | len(data)) if len(data) < 126 else \
            struct.pack("!BBH", 0x80 | opcode, 0xFE, len(data)) if len(data) < 65536 else \
            struct.pack("!BBQ", 0x80 | opcode, 0xFF, len(data))
        self.end.sendall(size + bytes(4) + data)  # a mask of zeros is one

    def ended(self):
        """Until the other end hangs up."""
        try:
            while True:
                opcode, data = self.message()
                if opcode == 8:
                    return struct.unpack("!H", data[:2])[0] if data else 0
        except (EOFError, OSError):
            return 0


def refused(answer, status, part):
    assert answer.status == status and part in answer.json()["error"], (answer.status, answer.body)
    return answer


def check_pages(portal):
    """pages need no login and hold nothing; what they are is theirs alone: policies, types; other paths are nothing"""
    first = portal.ask("GET", "/")
    assert first.status == 200 and b"/main.js" in first.body
    policy = first.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy and "frame-ancestors 'none'" in policy
    assert first.headers["X-Content-Type-Options"] == "nosniff"
    assert portal.ask("GET", "/", headers={"If-None-Match": first.headers["ETag"]}).status == 304
    assert portal.ask("HEAD", "/portal.css").body == b""
    for path in ("/../../etc/passwd", "/..%2f..%2fetc/passwd", "/views", "//etc/passwd", "/portal_test.py", "/\x7f"):
        try:
            assert portal.ask("GET", path).status in (400, 404), path
        except http.client.InvalidURL:
            pass
    refused(portal.ask("GET", "/v1/clusters"), 401, "log in")
    refused(portal.ask("POST", "/v1/clusters", {"name": "a"}), 401, "log in")


def check_login(portal):
    """the printed login is good once; a cookie alone changes nothing; logged out is logged out"""
    code = portal.opened["code"]
    refused(portal.ask("POST", "/v1/session", {"code": code}, {"Origin": "https://evil.example"}), 403, "another site")
    ann = portal.log_in({"code": code})
    refused(portal.ask("POST", "/v1/session", {"code": code}), 401, "not valid any more")
    refused(portal.ask("POST", "/v1/session", {"colour": "red"}), 400, "'colour' is no key")
    refused(portal.ask("POST", "/v1/session", "{"), 400, "no JSON")
    assert portal.ask("GET", "/v1/session", headers=ann).json()["role"] == "admin"
    cookie = {"Cookie": ann["Cookie"]}
    assert portal.ask("GET", "/v1/clusters", headers=cookie).status == 200
    refused(portal.ask("POST", "/v1/clusters", {"name": "a"}, cookie), 403, "X-CSRF-Token")
    refused(portal.ask("POST", "/v1/clusters", {"name": "a"}, dict(ann, Origin="https://evil.example")), 403, "another site")
    refused(portal.ask("GET", "/v1/clusters/a/nodes/node1/agent", headers=ann), 403, "Unix socket")
    assert portal.ask("GET", "/v1/clusters", headers=ann).json() == {"clusters": []}
    assert portal.ask("DELETE", "/v1/session", headers=ann).status == 200
    refused(portal.ask("GET", "/v1/clusters", headers=ann), 401, "log in")


def check_roles(portal):
    """a viewer looks, an operator has clusters, an administrator has people; a new password logs its user out"""
    for name, role in (("vera", "viewer"), ("otto", "operator"), ("ann", "admin")):
        assert portal.kage("portal", "add-user", name, "--role", role, text=f"{name}-password\n").returncode == 0
    short = portal.kage("portal", "add-user", "eve", "--role", "viewer", text="short\n")
    assert short.returncode == 125 and "8 to 256" in short.stderr, short
    refused(portal.ask("POST", "/v1/session", {"user": "vera", "password": "wrong-password"}), 401, "do not fit")
    refused(portal.ask("POST", "/v1/session", {"user": "nobody", "password": "x"}), 401, "do not fit")
    vera, otto, ann = (portal.log_in({"user": name, "password": f"{name}-password"}) for name in ("vera", "otto", "ann"))
    declared = {"name": "web", "nodes": 1, "accel": "tcg"}
    refused(portal.ask("POST", "/v1/clusters", declared, vera), 403, "needs the role operator")
    made = portal.ask("POST", "/v1/clusters", declared, otto)
    assert made.status == 201, made.body
    refused(portal.ask("PUT", "/v1/clusters/web", dict(declared, nodes=2), dict(otto, **{"If-Match": '"1"'})), 409, "somebody else")
    plan = portal.ask("POST", "/v1/plan", dict(declared, nodes=3), vera).json()
    assert plan["fits"] and plan["nodes_before"] == 1 and plan["needs"]["cpus"] == 3, plan
    plan = portal.ask("POST", "/v1/plan", dict(declared, memory="100T"), vera)
    refused(plan, 400, "memory")
    refused(portal.ask("GET", "/v1/accounts", headers=otto), 403, "needs the role admin")
    refused(portal.ask("POST", "/v1/portal", {}, ann), 403, "Unix socket")
    known = portal.ask("GET", "/v1/accounts", headers=ann).json()
    assert [one["name"] for one in known["users"]] == ["ann", "otto", "vera"] and "password" not in json.dumps(known)
    assert portal.ask("PUT", "/v1/users/vera", {"role": "operator"}, ann).status == 200
    refused(portal.ask("GET", "/v1/clusters", headers=vera), 401, "log in")
    assert portal.ask("DELETE", "/v1/users/otto", headers=ann).status == 200
    refused(portal.ask("GET", "/v1/clusters", headers=otto), 401, "log in")
    refused(portal.ask("PUT", "/v1/users/%3Cb%3E", {"role": "viewer", "password": "12345678"}, ann), 400, "name has")
    entries = portal.ask("GET", "/v1/audit", headers=ann).json()["entries"]
    assert any(one["user"] == "otto" and one["target"] == "/v1/clusters" and one["status"] == 201 for one in entries), entries
    assert any(one["user"] == "vera" and one["target"] == "/v1/session" and one["from"] == "127.0.0.1" for one in entries), entries
    kept = (portal.daemon.directory / "state" / "audit.log").read_text(encoding="utf-8")
    assert "password" not in kept and kept.count("\n") == len(entries), kept


def check_tokens(portal):
    """a token is its role's, until it is removed; what is kept of it opens nothing"""
    ci = portal.token("ci", "operator")
    assert portal.ask("POST", "/v1/clusters/web/scale", {"nodes": 2}, ci).status == 200
    refused(portal.ask("GET", "/v1/accounts", headers=ci), 403, "needs the role admin")
    refused(portal.ask("GET", "/v1/clusters", headers={"Authorization": "Bearer kage_00"}), 401, "not known")
    assert "ci" in portal.kage("portal", "accounts").stdout
    assert portal.kage("portal", "remove-token", "ci").returncode == 0
    refused(portal.ask("GET", "/v1/clusters", headers=ci), 401, "not known")
    refused(portal.ask("POST", "/v1/clusters/web/nodes/node1/drill", None, portal.token("op", "operator")), 409, "does not run")


def check_live(portal):
    """a page gets what is there and what changes; only from our own site, only with a login; who floods is hung up on"""
    assert portal.websocket("/v1/live", {"Origin": portal.origin}) == (None, 401)
    vera = portal.log_in({"user": "vera", "password": "vera-password"})
    assert portal.websocket("/v1/live", {"Cookie": vera["Cookie"], "Origin": "https://evil.example"}) == (None, 403)
    assert portal.websocket("/v1/live", {"Cookie": vera["Cookie"]}) == (None, 403)
    assert portal.websocket("/v1/clusters", vera) == (None, 400)
    refused(portal.ask("GET", "/v1/live", headers=vera), 426, "WebSocket")
    page, _ = portal.websocket("/v1/live", vera)
    known = {}

    def take():
        opcode, data = page.message()
        for one in json.loads(data) if opcode == 1 else []:
            if one["type"] == "cluster":
                known[one["cluster"]["name"]] = one["cluster"]
            elif one["type"] == "gone":
                known.pop(one["name"], None)
    while "web" not in known or len(known["web"]["node_states"]) != 2:
        take()
    portal.ask("POST", "/v1/clusters/web/scale", {"nodes": 1}, vera)
    while known["web"]["nodes"] != 1:
        take()
    portal.ask("DELETE", "/v1/clusters/web", headers=vera)
    while "web" in known:
        take()
    try:
        page.send(b"x" * 100_000)
    except OSError:
        pass  # it has hung up on the first piece
    assert page.ended() in (0, 1009)
    page, _ = portal.websocket("/v1/live", vera)
    try:
        for _ in range(3000):
            page.send(b"x")
    except OSError:
        pass
    page.ended()
    page, _ = portal.websocket("/v1/live", vera)
    portal.ask("DELETE", "/v1/session", headers=vera)
    assert page.ended() == 1008
    assert portal.ask("GET", "/").status == 200


def check_hostile(portal):
    """bytes that are no TLS, no HTTP; 1 GB; letters now and then; thousands of connections: bounded, and others are answered"""
    with socket.create_connection(("127.0.0.1", portal.port), SECONDS) as end:
        end.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        while end.recv(4096):
            pass
    for sent, status in ((b"\0" * 100, 400), (b"GET / HTTP/9.9\r\n\r\n", 400),
                         (b"POST /v1/session HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n", 413),
                         (b"GET / HTTP/1.1\r\nX: " + b"a" * 20000 + b"\r\n\r\n", 413)):
        with portal.connect() as end:
            end.sendall(sent)
            got = end.recv(65536)
            assert got.split()[1] == str(status).encode(), (sent[:40], got)
    chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    with portal.connect() as end:
        end.sendall(b"POST /v1/session HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            for _ in range(100):
                end.sendall(chunk)
        except OSError:
            pass  # it has hung up
    slow = [portal.connect() for _ in range(40)]
    for end in slow:
        end.sendall(b"GET / HT")
    silent = [socket.create_connection(("127.0.0.1", portal.port), SECONDS) for _ in range(40)]
    assert portal.ask("GET", "/").status == 200

    def gone(end):
        end.settimeout(0.01)
        try:
            return not end.recv(4096)
        except (TimeoutError, socket.timeout, ssl.SSLWantReadError):
            return False
        except OSError:
            return True
    wait(lambda: all(gone(end) for end in slow + silent), "slow clients are hung up on")
    for end in slow + silent:
        end.close()
    crowd = []
    for _ in range(2000):
        end = socket.socket()
        end.setblocking(False)
        end.connect_ex(("127.0.0.1", portal.port))
        crowd.append(end)
        if len(crowd) == 400:
            for one in crowd:
                one.close()
            crowd.clear()

    def answers():
        try:
            return portal.ask("GET", "/").status == 200
        except OSError:
            return False
    wait(answers, "it answers after a crowd")


def check_rates(portal):
    """who tries passwords is told to wait; who has a token is not"""
    for _ in range(60):
        got = portal.ask("POST", "/v1/session", {"user": "ann", "password": "guess-guess"})
        if got.status == 429:
            break
    refused(got, 429, "wait a while")
    assert int(got.headers["Retry-After"]) > 0
    assert portal.ask("GET", "/v1/clusters", headers=portal.token("ann", "admin")).status == 200


def check_restart(portal):
    """a daemon that starts again has its portal where it was; its users and tokens are still known"""
    token = portal.token("again", "viewer")
    portal.daemon.kill()
    portal.daemon.start()
    assert portal.ask("GET", "/v1/clusters", headers=token).status == 200
    again = Portal(portal.daemon, portal.port)
    assert again.opened["address"] == portal.opened["address"] and again.opened["fingerprint"] == portal.opened["fingerprint"]
    assert json.loads(portal.kage("portal", "--json").stdout)["address"] == portal.opened["address"]  # it stays where it is
    wrong = portal.kage("portal", "--listen", "example.org")
    assert wrong.returncode == 125 and "listens at an address" in wrong.stderr, wrong


def check_start(_):
    """`kage portal` starts the daemon if none runs"""
    daemon = Daemon()
    try:
        portal = Portal(daemon)
        assert portal.ask("GET", "/").status == 200
        words = str(daemon.directory / "state").encode()
        found = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and is_daemon(entry, words)]
        assert len(found) == 1, found
        os.kill(found[0], 15)
        wait(lambda: not Path(f"/proc/{found[0]}").exists() or not is_daemon(Path(f"/proc/{found[0]}"), words), "it ends")
        wait(lambda: not daemon.etcd(), "etcd ends with it")
    finally:
        daemon.log.close()
        shutil.rmtree(daemon.directory)


def is_daemon(entry, state):
    try:
        return (entry / "cmdline").read_bytes().split(b"\0")[1:2] == [b"daemon"] and state in (entry / "environ").read_bytes()
    except OSError:
        return False


def main():
    if not shutil.which("etcd"):
        print("skipped: no etcd here (package etcd-server)")
        return 77
    with Daemon() as daemon:
        portal = Portal(daemon)
        for check in (check_pages, check_login, check_roles, check_tokens, check_live, check_hostile, check_rates, check_restart,
                      check_start):
            before = time.monotonic()
            check(portal)
            print(f"ok: {check.__doc__.strip()} ({time.monotonic() - before:.1f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
