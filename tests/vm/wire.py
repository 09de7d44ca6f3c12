# SPDX-License-Identifier: GPL-2.0-or-later
"""
A network card of the test's own namespace (in-namespace net) at the other end of VMs' cards: so programs here speak TCP with a
guest. QEMUs of all hosts connect to a Unix socket (-netdev stream), as to net_peer.py's; frames go to the one behind which the
guest was heard last.
"""
import array
import fcntl
import selectors
import socket
import struct
import subprocess
import threading

GUEST, HERE = "10.77.0.2", "10.77.0.1"
GUEST_MAC = "52:54:00:00:00:77"

# What the guest does before it runs its programs.
SETUP = f"""
ip=/payload/system/busybox
$ip ip link set eth0 up
$ip ip addr add {GUEST}/24 dev eth0
"""

ETH_P_ALL, PACKET_OUTGOING = 3, 4
SIOCETHTOOL, ETHTOOL_STXCSUM = 0x8946, 0x17


def without_offload(card):
    """Packets of this card have their checksums: nobody behind it adds them."""
    value = array.array("B", struct.pack("II", ETHTOOL_STXCSUM, 0))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        fcntl.ioctl(end, SIOCETHTOOL, struct.pack("16sP", card.encode(), value.buffer_info()[0]))


class Wire:
    """Use as a context manager. `netdev`: what a VM's description says to be connected to it."""

    def __init__(self, directory):
        path = f"{directory}/switch"
        self.netdev = f"stream,server=off,addr.type=unix,addr.path={path}"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(16)
        for words in (("link", "set", "lo", "up"), ("link", "add", "wire0", "type", "veth", "peer", "name", "wire1"),
                      ("address", "add", f"{HERE}/24", "dev", "wire0"), ("link", "set", "wire1", "up"),
                      # A packet is one of the wire, also where nothing makes it one.
                      ("link", "set", "wire0", "up", "gso_max_segs", "1")):
            subprocess.run(["ip", *words], check=True, stdin=subprocess.DEVNULL)
        without_offload("wire0")
        self.card = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.card.bind(("wire1", 0))
        self.stop = socket.socketpair()
        self.thread = threading.Thread(target=self.carry, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop[0].close()
        self.thread.join()
        for end in (self.card, self.listener, self.stop[1]):
            end.close()
        subprocess.run(["ip", "link", "delete", "wire0"], check=True, stdin=subprocess.DEVNULL)

    def carry(self):
        ready = selectors.DefaultSelector()
        for end in (self.listener, self.card, self.stop[1]):
            ready.register(end, selectors.EVENT_READ)
        held, where = {}, None  # what has come of each QEMU's next frame; who had the guest last
        while True:
            for end in [key.fileobj for key, _ in ready.select()]:
                if end is self.stop[1]:
                    for one in held:
                        one.close()
                    return
                if end is self.listener:
                    one, _ = end.accept()
                    held[one] = b""
                    ready.register(one, selectors.EVENT_READ)
                elif end is self.card:
                    frame, about = end.recvfrom(1 << 16)
                    if about[2] != PACKET_OUTGOING and where:
                        try:
                            where.send(struct.pack(">I", len(frame)) + frame, socket.MSG_DONTWAIT)  # whole, or not
                        except OSError:
                            pass  # packets get lost
                elif self.read(end, held):
                    where = end
                elif end not in held:
                    ready.unregister(end)
                    end.close()
                    where = None if where is end else where

    def read(self, end, held):
        """Hands on what a QEMU sent. → whether a frame of the guest was there. One whose connection ended is not held any more."""
        try:
            data = end.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            del held[end]
            return False
        data = held[end] + data
        heard = False
        while len(data) >= 4 and len(data) >= 4 + (size := struct.unpack(">I", data[:4])[0]):
            self.card.send(data[4:4 + size])
            data = data[4 + size:]
            heard = True
        held[end] = data
        return heard
