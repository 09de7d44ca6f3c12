# SPDX-License-Identifier: GPL-2.0-or-later
"""What a soak sees of a host: its console, its QEMU, and which states its supervisor was in."""
import json
import time

from guest_vm import Socket


def now_ns():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def console(host):
    try:
        return host.console().read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def ask(monitor, command, **arguments):
    qmp = Socket(monitor, lambda: True, 60)
    try:
        qmp.line(60)
        for words in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
            qmp.send(json.dumps(words))
            answer = {}
            while "return" not in answer:
                answer = json.loads(qmp.line(60))
                assert "error" not in answer, answer
        return answer["return"]
    finally:
        qmp.socket.close()


def qemu_of(host):
    try:
        return host.qemu()
    except AssertionError:
        return None


def state_at(host, ns):
    """The state that its supervisor was in then."""
    states = ("opening", "alone", "replicating", "announcing", "recording", "protecting", "unpairing", "handing-over", "reclaiming",
              "leaving", "ended")
    return next((e["event"] for e in reversed(host.events()) if e["event"] in states and e.get("boot_ns", 0) <= ns), None)


def state_after(host, ns, state):
    """Whether its supervisor was in that state at some moment since then."""
    return any(e["event"] == state and e.get("boot_ns", 0) >= ns for e in host.events())


def made_twice(before, after):
    """How many rounds were made on both hosts, with different results: those of epochs that were lost."""
    def made(host):
        return {(words[5], words[1]): words[2] for words in map(str.split, console(host).splitlines())
                if len(words) == 6 and words[0] == "made"}
    first, second = made(before), made(after)
    return sum(second[which] != result for which, result in first.items() if which in second)
