# SPDX-License-Identifier: GPL-2.0-or-later
"""Debian's etcd, as a test's arbiter."""
import shutil
import signal
import socket
import ssl
import subprocess

from ha_pair import wait
from processes import freeze

ETCD = shutil.which("etcd") or "/usr/bin/etcd"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as any_port:
        return any_port.getsockname()[1]


class Etcd:
    """A server of its own. `host`: where it listens; `inside`: what to put before its command line; `keys`: TLS with these."""

    def __init__(self, directory, host="127.0.0.1", inside=(), keys=None):
        self.keys, self.inside = keys, inside
        self.log = open(directory / "etcd.log", "wb")
        for attempt in range(5):
            self.data = directory / f"etcd-{attempt}"
            self.prepare("default", host, free_port(), free_port())
            self.start([self])
            wait(lambda: self.answers() or self.process.poll() is not None, "etcd answers")
            if self.process.poll() is None:
                return
            # A port that was free is another process's by now.
        raise AssertionError(f"etcd ended five times: {directory}/etcd.log says why")

    def prepare(self, name, host, client_port, peer_port):
        self.name, self.address = name, (host, client_port)
        self.url, self.peer = f"http{'s' if self.keys else ''}://{host}:{client_port}", f"http://{host}:{peer_port}"

    def start(self, members):
        tls = ["--cert-file", f"{self.keys}/cert.pem", "--key-file", f"{self.keys}/key.pem", "--trusted-ca-file",
               f"{self.keys}/ca.pem", "--client-cert-auth"] if self.keys else []
        self.process = subprocess.Popen(
            [*self.inside, ETCD, "--name", self.name, "--data-dir", str(self.data), "--listen-client-urls", self.url,
             "--advertise-client-urls", self.url, "--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer,
             "--initial-cluster", ",".join(f"{one.name}={one.peer}" for one in members), *tls],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT)

    def backup(self, name="backup"):
        """A copy of all that it has, as a person makes one of a server that is stopped for that."""
        self.freeze()
        copy = self.data.with_name(f"{self.data.name}-{name}")
        shutil.copytree(self.data, copy)
        self.freeze(False)
        return copy

    def restore(self, copy):
        """It is stopped, what it has is what the copy has, and it is started."""
        self.kill()
        shutil.rmtree(self.data)
        shutil.copytree(copy, self.data)
        self.start([self])
        wait(self.answers, "etcd answers")

    def answers(self):
        try:
            with socket.create_connection(self.address, 5) as end:
                if self.keys:
                    context = ssl.create_default_context(cafile=f"{self.keys}/ca.pem")
                    context.load_cert_chain(f"{self.keys}/cert.pem", f"{self.keys}/key.pem")
                    end = context.wrap_socket(end, server_hostname=self.address[0])
                end.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                end.settimeout(5)
                return b'"health":"true"' in end.recv(4096) + end.recv(4096)
        except OSError:
            return False

    def freeze(self, on=True):
        if on:
            freeze(self.process.pid)
        else:
            self.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()

    def end(self):
        self.kill()
        self.log.close()


class Member(Etcd):
    """One of a cluster's servers, not started yet. With the usual ports its host is a machine or a namespace."""

    def __init__(self, directory, name, host, inside=(), keys=None, ports=(2379, 2380)):  # pylint: disable=super-init-not-called
        self.keys, self.inside = keys, inside
        self.log = open(directory / f"etcd-{name}.log", "wb")
        self.data = directory / f"etcd-{name}"
        self.prepare(name, host, *ports)
