# SPDX-License-Identifier: GPL-2.0-or-later
"""
Two supervisors on one machine with etcd as arbiter. The way from primary to standby, and the primary's way to etcd, go through
relays that can be cut.
"""
from etcd import Etcd
from ha_pair import Pair, committed_count
from relay import Relay


class EtcdPair(Pair):
    """`network`: the relays between both hosts; `to_etcd`: the primary's to the arbiter."""

    def __init__(self):
        super().__init__()
        self.etcd = Etcd(self.directory)
        self.to_etcd = Relay(0, self.etcd.address[1])
        self.network = [Relay(f"{self.directory}/near{of}", f"{self.directory}/far{of}") for of in ("", ".state")]
        self.text = self.description.read_text(encoding="utf-8").replace('"unix:standby"', '"unix:near"')
        self.text = self.text[:self.text.index("[arbiter]")].replace("qemu-budget-ms = 60000", "qemu-budget-ms = 5000")
        self.primary, self.standby = None, None

    def __exit__(self, *what):
        super().__exit__(*what)
        for relay in (*self.network, self.to_etcd):
            relay.close()
        self.etcd.end()

    def start_here(self, command, name, etcd_port, *more):
        self.description = self.directory / f"{name}.toml"
        self.description.write_text(
            f'{self.text}[arbiter]\nkind = "etcd"\nendpoints = ["http://127.0.0.1:{etcd_port}"]\nlease-ms = 3000\n',
            encoding="utf-8")
        return self.start(command, name, *more)

    def begin(self):
        self.primary = self.start_here("run", "primary", self.to_etcd.port)
        return self.begin_standby()

    def begin_standby(self):
        """The primary is there already."""
        self.standby = self.start_here("standby", "standby", self.etcd.address[1], "--listen", f"unix:{self.directory}/far")
        self.standby.wait_state("synced")
        self.primary.wait_state("protecting")
        return committed_count(self.primary)

    def cut(self, *more):
        for relay in (*self.network, *more):
            relay.cut()

    def mend(self, *more):
        for relay in (*self.network, *more):
            relay.mend()
