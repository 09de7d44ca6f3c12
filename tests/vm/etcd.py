# SPDX-License-Identifier: GPL-2.0-or-later
"""Debian's etcd, as a test's arbiter."""
import shutil
import signal
import socket
import ssl
import subprocess

from ha_pair import wait

ETCD = shutil.which("etcd") or "/usr/bin/etcd"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as any_port:
        return any_port.getsockname()[1]


class Etcd:
    """A server of its own. `host`: where it listens; `inside`: what to put before its command line; `keys`: TLS with these."""

    def __init__(self, directory, host="127.0.0.1", inside=(), keys=None):
        self.keys, tls = keys, []
        if keys:
            tls = ["--cert-file", f"{keys}/cert.pem", "--key-file", f"{keys}/key.pem", "--trusted-ca-file", f"{keys}/ca.pem",
                   "--client-cert-auth"]
        self.log = open(directory / "etcd.log", "wb")
        for attempt in range(5):
            self.address = (host, free_port())
            client, peer = f"http{'s' if keys else ''}://{host}:{self.address[1]}", f"http://{host}:{free_port()}"
            self.url = client
            self.process = subprocess.Popen(
                [*inside, ETCD, "--data-dir", str(directory / f"etcd-{attempt}"), "--listen-client-urls", client,
                 "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                 "--initial-cluster", "default=" + peer, *tls],
                stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT)
            wait(lambda: self.answers() or self.process.poll() is not None, "etcd answers")
            if self.process.poll() is None:
                return
            # A port that was free is another process's by now.
        raise AssertionError(f"etcd ended five times: {directory}/etcd.log says why")

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
        self.process.send_signal(signal.SIGSTOP if on else signal.SIGCONT)

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        self.log.close()
