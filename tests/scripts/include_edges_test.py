#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""scripts/include-edges on small trees: each fault that it is for is found, and nothing else."""

import importlib.machinery
import importlib.util
import pathlib
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "include-edges"


def load():
    loader = importlib.machinery.SourceFileLoader("include_edges", str(SCRIPT))
    spec = importlib.util.spec_from_loader("include_edges", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


sys.dont_write_bytecode = True
edges = load()

# Two rooms: `up` stands on `down`, which is pure.
TABLE = "down pure\nup\n    down\n"
TREE = {
    "scripts/include-edges.txt": TABLE,
    "down/a.hpp": "#include <vector>\n",
    "up/b.cpp": '#include <thread>\n#include "down/a.hpp"\n',
}


class IncludeEdges(unittest.TestCase):
    def faults(self, changes):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in {**TREE, **changes}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")
            return list(edges.faults(root))

    def check(self, changes, *expected):
        """Each fault begins as expected: place and the words that matter."""
        found = self.faults(changes)
        self.assertEqual([f[:len(e)] for f, e in zip(found, expected)], list(expected), found)
        self.assertEqual(len(found), len(expected), found)

    def table(self, text):
        return {"scripts/include-edges.txt": text}

    def test_a_tree_in_order(self):
        self.check({})

    def test_an_edge_that_is_not_in_the_table(self):
        self.check({"down/a.hpp": '\n#include "up/b.hpp"\n', "up/b.hpp": ""},
                   "down/a.hpp:2: down may not include up.")

    def test_a_file_beside_and_one_above(self):
        self.check({"up/b.cpp": '#include "b.hpp"\n#include "../down/a.hpp"\n', "up/b.hpp": ""})

    def test_the_folders_that_everybody_includes_from(self):
        self.check({**self.table("replicator/down pure\nup\n    replicator/down\ndown\n"),
                    "replicator/down/c.hpp": "", "up/b.cpp": '#include "down/c.hpp"\n'})

    def test_what_the_build_makes(self):
        self.check({**self.table("down pure\nup\n"), "up/b.cpp": '#include "down/made.pb.h"\n'},
                   "up/b.cpp:1: up may not include down.")

    def test_a_room_in_a_room(self):
        self.check({**self.table("down pure\nup\n    down\nup/inner\n    up\n"), "up/b.hpp": "",
                    "up/inner/c.cpp": '#include "up/b.hpp"\n'})
        self.check({"up/inner/c.cpp": '#include "up/b.hpp"\n', "up/b.hpp": ""})

    def test_tests_may_include_anything(self):
        self.check({"down/a_test.cpp": '#include "up/b.hpp"\n#include <thread>\n', "up/b.hpp": "",
                    "tests/x.cpp": '#include "up/b.hpp"\n', "bench/y.cpp": '#include "up/b.hpp"\n'})

    def test_production_includes_no_test(self):
        self.check({"up/b.cpp": '#include "down/a.hpp"\n#include "up/test_helpers.hpp"\n',
                    "up/test_helpers.hpp": ""},
                   "up/b.cpp:2: production code includes a test's up/test_helpers.hpp")
        self.check({"up/b.cpp": '#include "down/a.hpp"\n#include "tests/x.hpp"\n', "tests/x.hpp": ""},
                   "up/b.cpp:2: production code includes a test's tests/x.hpp")

    def test_a_pure_room_has_no_threads(self):
        for header in ("thread", "mutex", "condition_variable", "pthread.h", "poll.h", "sys/epoll.h",
                       "sys/socket.h", "netinet/in.h", "arpa/inet.h", "boost/asio.hpp",
                       "boost/asio/ip/tcp.hpp", "asio/write.hpp"):
            self.check({"down/a.hpp": f"#include <vector>\n# include <{header}>\n"},
                       f"down/a.hpp:2: <{header}> in down, which is pure")
        for header in ("atomic", "chrono", "unistd.h", "linux/polling.h", "string"):
            self.check({"down/a.hpp": f"#include <{header}>\n"})

    def test_a_thin_file_of_a_pure_room(self):
        thin = self.table("down pure\n    thin driver.cpp  waits\nup\n    down\n")
        self.check({**thin, "down/driver.cpp": "#include <sys/epoll.h>\n"})
        self.check({**thin, "down/driver.cpp": ""},
                   "scripts/include-edges.txt:2: down/driver.cpp needs no exception")

    def test_a_pure_room_stands_on_pure_ones(self):
        self.check({**self.table("down\nup pure\n    down\n"), "up/b.cpp": '#include "down/a.hpp"\n'},
                   "scripts/include-edges.txt:3: up is pure and down is not")

    def test_rooms_stand_in_order(self):
        self.check({**self.table("down\n    up\nup\n    down\n"), "up/b.hpp": "",
                    "down/a.hpp": '#include "up/b.hpp"\n'},
                   "scripts/include-edges.txt:2: up does not stand above down")

    def test_what_the_table_has_too_much(self):
        self.check({"up/b.cpp": ""}, "scripts/include-edges.txt:3: up includes nothing of down")
        self.check(self.table(TABLE + "gone\n"), "scripts/include-edges.txt:4: gone has no sources")
        self.check(self.table(TABLE + "    gone\n"), "scripts/include-edges.txt:4: gone is no room",
                   "scripts/include-edges.txt:4: up includes nothing of gone")
        self.check(self.table(TABLE + "down\n"), "scripts/include-edges.txt:4: down has a room already")

    def test_a_source_without_a_room(self):
        self.check({"aside/c.cpp": ""}, "aside/c.cpp:1: lies in no room")

    def test_this_tree_names_its_pure_rooms(self):
        root = SCRIPT.parents[1]
        rooms, faults = edges.read_table((root / edges.TABLE).read_text(encoding="utf-8"))
        self.assertEqual(faults, [])
        for folder in ("replicator/codec", "replicator/core", "replicator/mirror/log",
                       "replicator/mirror/primary", "replicator/mirror/standby", "control/ha",
                       "tracer/core"):
            self.assertTrue(rooms[folder].pure, folder)


if __name__ == "__main__":
    unittest.main()
