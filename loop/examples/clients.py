# SPDX-License-Identifier: GPL-2.0-or-later
"""Clients of the example servers that know the right answers. For server_test.py and for tests with whole VMs."""


class Lines:
    """A connection, line by line."""

    def __init__(self, end):
        self.end, self.held = end, b""

    def say(self, line):
        self.end.sendall(line.encode() + b"\n")

    def hear(self):
        while b"\n" not in self.held:
            more = self.end.recv(65536)
            assert more, f"the server has closed the connection after {self.held!r}"
            self.held += more
        line, self.held = self.held.split(b"\n", 1)
        return line.decode()


class Kv:
    """A store that is asked at random, and what should be in it. `prefix`: of its keys, if others use the same server."""

    def __init__(self, random, prefix=""):
        self.random, self.prefix, self.content, self.asked = random, prefix, {}, 0

    def ask(self, lines):
        what = self.random.choice(["SET", "GET", "GET", "ADD", "ADD", "DEL"])
        key = f"{self.prefix}{self.random.randrange(40)}"
        value = "".join(self.random.choice("abc 123") for _ in range(self.random.randrange(80)))
        lines.say(f"{what} {key} {value}" if what == "SET" else f"{what} {key}")
        right = self.answer(what, key, value)
        got = lines.hear()
        assert got == right, f"{what} {key}: {got}, and {right} is right; {self.asked} answers before were right"
        self.asked += 1

    def answer(self, what, key, value):
        if what == "SET":
            self.content[key] = value
            return "OK"
        if what == "ADD":
            before = self.content.get(key, "0")
            before = int(before) if before.isdigit() else 0
            self.content[key] = str(before % 2**64 + 1)
            return f"={self.content[key]}"
        had = self.content.pop(key, None) if what == "DEL" else self.content.get(key)
        if had is None:
            return "NONE"
        return "OK" if what == "DEL" else f"={had}"


def ask_grep(lines, pattern, path):
    """[(number, line)], or None: it can't be opened."""
    lines.say(f"{pattern} {path}")
    found = []
    while True:
        line = lines.hear()
        if line == "!":
            return None
        if line.startswith("."):
            assert int(line[1:]) == len(found), (line, len(found))
            return found
        number, text = line.split(":", 1)
        found.append((int(number), text))


def matching_lines(text, pattern):
    return [(i + 1, line) for i, line in enumerate(text.split("\n")) if pattern in line]
