# SPDX-License-Identifier: GPL-2.0-or-later
"""
Whether two hosts may speak for one VM at the same moment, or one speaks whose turn is over. Pure: looked at and heard is by
others (chain.py).
"""


class Speakers:
    def __init__(self):
        self.order = []  # hosts in the order in which they were first heard
        self.faults = []

    def heard(self, host):
        """A packet of the VM came from this host. Once another one was heard, it must be silent for ever."""
        if host not in self.order:
            self.order.append(host)
        elif host != self.order[-1]:
            self.faults.append(f"{host} was heard after {self.order[-1]}, which took the VM over from it")

    def looked(self, first, second):
        """Whose gates were open in two looks, one after the other: {host: (alive, until_ns)} with the time of each look:
        (ns, hosts). Who is open in both was open between them."""
        def is_open(look):
            at, hosts = look
            return {host for host, (alive, until) in hosts.items() if alive and until > at}
        both = is_open(first) & is_open(second)
        if len(both) > 1:
            self.faults.append(f"the gates of {', '.join(sorted(map(str, both)))} were open at the same time")
        return both
