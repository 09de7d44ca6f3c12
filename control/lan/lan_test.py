#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
The port of the host that leads to node1's ssh server: open while node1's card is at a link of this host's switch, and only then. A
client that leaves before its answer. Links are sockets of this test, which says what a QEMU would. $KAGE_TOOL: the control tool.
"""
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from waiting import SECONDS, TOOL, free_port, wait  # noqa: E402

NODE1, NODE2 = bytes([10, 77, 0, 11]), bytes([10, 77, 0, 12])
FIN, SYN, RST, ACK = 1, 2, 4, 16  # of TCP


def mac_of(cluster, number):
    """As control/lan/addresses.hpp says."""
    value = 0x811c9dc5
    for byte in cluster.encode():
        value = ((value ^ byte) * 0x01000193) & 0xffffffff
    return bytes([0x52, 0x54]) + struct.pack(">I", value)[:3] + bytes([number])


class Network:
    """The process of the cluster `lab`, and the links to it."""

    def __init__(self, port, **more):
        self.directory = tempfile.TemporaryDirectory(prefix="kage-l-")
        self.folder = self.directory.name
        self.configuration = {"name": "lab", "nodes": 2, "ssh-address": "127.0.0.1", "ssh-port": port, **more}
        self.process = subprocess.Popen([TOOL, "--cluster-network", self.folder, json.dumps(self.configuration)], stdin=subprocess.DEVNULL)
        wait(self.status, "the network answers")

    def ask(self, request):
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(f"{self.folder}/control")
            control.sendall(json.dumps(request).encode() + b"\n")
            return json.loads(control.makefile().readline())

    def status(self):
        try:
            return self.ask({"command": "status"})
        except OSError:
            return None

    def configure(self, **changes):
        self.configuration.update(changes)
        answer = self.ask({"command": "configure", "configuration": json.dumps(self.configuration)})
        assert answer == {"done": True}, answer

    def files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def link(self, mac):
        """A QEMU whose card has said something."""
        link = socket.socket(socket.AF_UNIX)
        link.connect(f"{self.folder}/switch/socket")
        link.sendall(framed(b"\xff" * 6 + mac + b"\x88\xb5" + bytes(46)))
        link.settimeout(SECONDS)
        return link

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(SECONDS)
        self.directory.cleanup()


def is_open(network, port):
    network.status()  # it looks whenever something happens
    try:
        socket.create_connection(("127.0.0.1", port)).close()
        return True
    except ConnectionRefusedError:
        return False


def framed(frame):
    return struct.pack(">I", len(frame)) + frame


def frames(link):
    stream = link.makefile("rb")
    while True:
        yield stream.read(struct.unpack(">I", stream.read(4))[0])


def checksum(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total & 0xffff) + (total >> 16)
    return ~(total + (total >> 16)) & 0xffff


class Connection:
    """A TCP connection as the node sees it that is asked: opened by the gateway, every byte of it by hand."""

    def __init__(self, link, mac, address):
        self.link, self.mac, self.address, self.frames = link, mac, address, frames(link)
        asks = next(f for f in self.frames if f[12:14] == b"\x08\x06" and f[38:42] == address)
        self.gateway_mac, self.gateway = asks[6:12], asks[28:32]
        link.sendall(framed(self.gateway_mac + mac + b"\x08\x06" + asks[14:20] + b"\0\2" + mac + address + asks[22:32]))
        self.sent, self.heard = 0, 0
        opening = self.receive(SYN)
        self.ports = opening[34:38]
        self.send(SYN | ACK)
        self.sent = 1
        self.receive(ACK)

    def receive(self, flags):
        """The next packet with one of these flags, in its frame."""
        packet = next(f for f in self.frames if f[12:14] == b"\x08\0" and f[23] == 6 and f[30:34] == self.address and f[47] & flags)
        number, = struct.unpack(">I", packet[38:42])
        self.heard = number + (1 if packet[47] & (SYN | FIN) else 0)
        return packet

    def send(self, flags, data=b""):
        assert len(data) % 2 == 0
        header = self.ports[2:] + self.ports[:2] + struct.pack(">IIBBHHH", self.sent, self.heard, 5 << 4, flags, 8192, 0, 0)
        text = header + data
        total = checksum(self.address + self.gateway + struct.pack(">HH", 6, len(text)) + text)
        text = text[:16] + struct.pack(">H", total) + text[18:]
        ip = struct.pack(">BBHIBBH", 0x45, 0, 20 + len(text), 0, 64, 6, 0) + self.address + self.gateway
        ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
        self.link.sendall(framed(self.gateway_mac + self.mac + b"\x08\0" + ip + text))
        self.sent += len(data)


def check_only_node1s_host_has_the_port():
    port = free_port()
    with Network(port) as network:
        assert not is_open(network, port)
        other = network.link(mac_of("lab", 2))
        wait(lambda: network.status()["frames"] == 1, "node2's frame is there")
        assert not is_open(network, port)
        node1 = network.link(mac_of("lab", 1))
        wait(lambda: is_open(network, port), "the port is open")
        asks = next(f for f in frames(node1) if f[12:14] == b"\x08\x06" and f[38:42] == NODE1)
        assert asks[6:8] == b"\x52\x55", "the gateway asks for node1's card"
        node1.close()
        wait(lambda: not is_open(network, port), "the port is closed")
        other.close()


def check_a_change_moves_the_port():
    before, after = free_port(), free_port()
    with Network(before) as network:
        node1 = network.link(mac_of("lab", 1))
        wait(lambda: is_open(network, before), "the port is open")
        network.configure(**{"ssh-port": after})
        wait(lambda: is_open(network, after), "the other port is open")
        assert not is_open(network, before)
        network.configure(outside=False)  # another gateway
        wait(lambda: is_open(network, after), "it is open again")
        network.configure(**{"ssh-port": 0})
        wait(lambda: not is_open(network, after), "there is none")
        node1.close()


def check_a_port_that_another_has():
    with socket.socket() as another:
        another.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        another.bind(("127.0.0.1", 0))
        another.listen()
        port = another.getsockname()[1]
        with Network(port) as network:
            node1 = network.link(mac_of("lab", 1))
            wait(lambda: f"cannot listen at 127.0.0.1:{port}: Address already in use" in network.status()["problem"], "a sentence")
            another.close()
            wait(lambda: not network.status()["problem"] and is_open(network, port), "it is open once it is free")
            node1.close()


def check_strangers_are_bounded():
    port = free_port()
    with Network(port) as network:
        node1 = network.link(mac_of("lab", 1))
        wait(lambda: is_open(network, port), "the port is open")
        before = network.files()
        strangers = []

        def comes():
            strangers.append(socket.socket())
            strangers[-1].setblocking(False)
            strangers[-1].connect_ex(("127.0.0.1", port))
        while not network.status()["problem"]:
            assert len(strangers) < 5000, "no stranger waits"
            comes()
        said = network.status()["problem"]
        assert said == f"512 connections go in and out: port {port} takes no more until some have ended", said
        for _ in range(100):
            comes()
            network.status()
        full = network.files()
        assert full <= before + 512, (before, full)
        # What the host itself asks of nodes is heard all the same.
        with socket.socket(socket.AF_UNIX) as host:
            host.connect(f"{network.folder}/exec/node2")
            wait(lambda: network.files() > full, "it is taken")
        for one in strangers:
            one.close()
        node1.close()


def check_a_client_that_leaves():
    """What its node says afterwards is refused: nobody keeps it, and looks again and again whether somebody takes it."""
    with Network(0) as network, network.link(mac_of("lab", 2)) as link:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"{network.folder}/exec/node2")
            connection = Connection(link, mac_of("lab", 2), NODE2)
        connection.receive(FIN)
        connection.send(ACK, b"too late")
        network.status()  # it has looked at its sockets
        connection.send(ACK, b"and more")
        connection.receive(RST)


def main():
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check()
            print(f"ok {name[6:]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
