#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""scripts/tidy on small trees: each check finds the fault that it is for, and nothing in a tree in order."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts" / "lib"))

from tidy import clang, programs, sources
from tidy.functions import functions
from tidy.tree import Tree

SPDX = "// SPDX-License-Identifier: GPL-2.0-or-later\n"


class Bed(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name).resolve()

    def write(self, files):
        for name, text in files.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text, encoding="utf-8")
        return Tree(self.root)

    def faults(self, check, files, **arguments):
        return list(check(self.write(files), **arguments))

    def needs(self, program):
        if not shutil.which(program):
            self.skipTest(f"{program} is not installed")


class Functions(unittest.TestCase):
    def names(self, text):
        return [(name, count) for name, _, count in functions(text)]

    def test_functions_methods_and_tests(self):
        self.assertEqual(self.names("""
namespace a { // "{"
struct b { int c[2] = {1, 2};
    b(int d) noexcept : c{d, d} {}
    auto e() const -> int {
        return [this](char f) { return f == '{' ? c[0] : 1'000; }('}');
    }
    bool operator==(const b&) const = default;
};
enum class g { h };
TEST(i, j) {
    const char* k = R"({ " })";

}
}
static struct b *l(struct b *m)
{
#if N
    if (m) {
#else
    {
#endif
    }
    return m;
}
"""), [("b", 1), ("e", 3), ("i.j", 4), ("l", 9)])

    def test_macros_and_initialisers_are_none(self):
        self.assertEqual(self.names("#define A(x) { \\\n  x \\\n}\nint b[] = { 1 };\nstruct c d = { .e = f(1) };\n"), [])


class Sources(Bed):
    def test_long_files_and_functions(self):
        lines = SPDX + "// x\n" * 600
        body = "int f() {\n" + "\n" * 79 + "}\n"
        self.assertEqual(self.faults(sources.lengths, {
            "a.cpp": lines, "b.cpp": body, "c.cpp": "int g() {\n" + "\n" * 78 + "}\n",
        }), ["a.cpp:1: 601 lines, 600 at most", "b.cpp:1: f has 81 lines, 80 at most"])

    def test_large_folders(self):
        full = {f"{folder}/{n}.cpp": "" for folder in ("a/b", "c", "tests/d") for n in range(20)}
        beside = {"a/b/x_test.cpp": "", "a/b/test_helpers.hpp": "", "tests/d/more.cpp": "", "a/up.cpp": ""}
        self.assertEqual(self.faults(sources.lengths, {**full, **beside}), [])
        more = {**full, "a/b/more.hpp": "", "c/more.c": ""}
        self.assertEqual(self.faults(sources.lengths, more), ["a/b/: 21 files without tests, 20 at most",
                                                              "c/: 21 files without tests, 20 at most"])
        allowed = {sources.EXCEPTIONS: "a/b/: it has one for each noun.\nc/: it has one for each noun.\n"}
        self.assertEqual(self.faults(sources.lengths, {**more, **allowed}), [])

    def test_exceptions_have_a_sentence_and_only_shrink(self):
        body = "int f() {\n" + "\n" * 79 + "}\n"
        name = sources.EXCEPTIONS
        self.assertEqual(self.faults(sources.lengths, {
            "a.cpp": body, "b.cpp": body, "c.cpp": "",
            name: "# why\na.cpp f: it is a list.\nb.cpp f: long\nc.cpp: it was long once.\na.cpp g: it went elsewhere since then.\n",
        }), [f"{name}:3: gives no sentence why b.cpp f is long",
             f"{name}:4: c.cpp is no longer too long: take it out",
             f"{name}:5: g of a.cpp is no longer too long: take it out"])

    def test_columns_of_kernel_code(self):
        self.assertEqual(self.faults(sources.columns, {
            "tracer/kernel/a.c": "\t" + "x" * 92 + "\n\t" + "x" * 93 + "\n", "replicator/b.h": "x" * 101,
        }), ["tracer/kernel/a.c:2: 101 columns, 100 at most"])

    def test_licences(self):
        self.assertEqual(self.faults(sources.licences, {
            "a.cpp": SPDX, "b.c": "int b;\n", "run": "#!/bin/sh\n", "x/CMakeLists.txt": "\n", "notes.txt": "",
        }), ["b.c:1: no SPDX line", "run:1: no SPDX line", "x/CMakeLists.txt:1: no SPDX line"])

    def test_contracts(self):
        contract = "/*\n * What it is.\n *\n * Threads: one.\n * Errors: none.\n * Memory: none.\n */\n"
        self.assertEqual(self.faults(sources.contracts, {
            "a.hpp": SPDX + "//\n// What it is.\n#pragma once\n", "b.hpp": SPDX + "#pragma once\nint b; // a number\n",
            "e.hpp": SPDX + "// What it is.\n#ifndef E\n#define E\n#endif\n",
            "replicator/include/c.h": contract, "replicator/include/d.h": contract.replace("Errors", "Faults"),
        }), ["b.hpp:1: the header does not open with a comment that says what it is",
             "e.hpp:1: the header has no '#pragma once'",
             "replicator/include/d.h:1: the contract of a public header has no paragraph 'Errors:'"])

    def test_map(self):
        table = "| folder | document |\n|---|---|\n| `control`, `control/ha` | x |\n| `docs` | x |\n| `gone` | x |\n"
        self.assertEqual(self.faults(sources.folder_map, {
            sources.MAP: table, "control/ha/a.cpp": "", "control/vm/b.cpp": "", "tests/c.cpp": "", "docs/d/e.txt": "",
        }), [f"{sources.MAP}:5: there is no folder gone", f"{sources.MAP}: has no row for tests",
             f"{sources.MAP}: has no row for control/vm"])


class Programs(Bed):
    def found(self, check, files, *words):
        faults = self.faults(check, files)
        self.assertTrue(faults)
        for word in words:
            self.assertTrue(any(word in fault for fault in faults), f"{word}: {faults}")

    def test_layout(self):
        self.needs(programs.CLANG_FORMAT)
        style = {".clang-format": (ROOT / ".clang-format").read_text(encoding="utf-8")}
        self.assertEqual(self.faults(programs.layout, {**style, "a.cpp": "int a;\n"}), [])
        self.found(programs.layout, {**style, "a.cpp": "int  a ;\n"}, "a.cpp:1", "./kage format")

    def test_shell(self):
        self.needs("shellcheck")
        self.assertEqual(self.faults(programs.shell, {"a": "#!/bin/sh\ncd / || exit\n"}), [])
        self.found(programs.shell, {"a": "#!/bin/sh\ncd \"$1\"\n"}, "SC2164")
        for early in ("head -n 1", "grep -q x", "grep -m 1 x", "awk '/x/ { print; exit }'"):
            self.found(programs.shell, {"a": f"#!/bin/bash\nset -o pipefail\nls | {early}\n"}, "status 141")
        self.assertEqual(self.faults(programs.shell, {"a": "#!/bin/bash\nset -o pipefail\nls | sed -n 1p\n"}), [])

    def test_python(self):
        self.needs("pyflakes3")
        self.needs("pycodestyle")
        self.assertEqual(self.faults(programs.python, {"a.py": "print(1)\n"}), [])
        self.found(programs.python, {"a.py": "import os\nprint(b)\nif not 1 in []: pass\n"}, "unused", "undefined",
                   "E713")

    def test_checkpatch_of_qemu(self):
        try:
            programs.checkpatch_qemu(self.write({}))
            self.assertEqual(self.faults(programs.checkpatch_qemu, {"qemu-device/a.c": "int a;\n"}), [])
        except programs.Missing as missing:
            self.skipTest(str(missing))
        self.found(programs.checkpatch_qemu, {"qemu-device/a.c": "int a(void)\n{\n\treturn 1;\n}\n"}, "tabs")

    def test_checkpatch_of_the_kernel(self):
        try:
            self.assertEqual(self.faults(programs.checkpatch_kernel, {"tracer/kernel/a.c": SPDX + "int a;\n"}), [])
        except programs.Missing as missing:
            self.skipTest(str(missing))
        self.found(programs.checkpatch_kernel, {"tracer/kernel/a.c": SPDX + "int a(void)\n{\n    return 1;\n}\n"},
                   "LEADING_SPACE")

    def test_a_program_that_is_missing_is_no_pass(self):
        path = os.environ["PATH"]
        self.addCleanup(os.environ.__setitem__, "PATH", path)
        os.environ["PATH"] = str(self.root)
        for check in (programs.layout, programs.shell, programs.python, clang.clang_tidy):
            with self.assertRaises(programs.Missing):
                self.faults(check, {"a.py": "", "a.sh": "", "a.cpp": ""})


class ClangTidy(Bed):
    def test_changed_sources_and_headers_are_chosen(self):
        header = self.root / "a.hpp"
        found = {"a.cpp": ("", [header]), "b.cpp": ("", [header, self.root / "c.hpp"]), "d.cpp": ("", [])}
        self.assertEqual(clang.chosen(found, {"d.cpp", "x.md"}, self.root), ["d.cpp"])
        self.assertEqual(clang.chosen(found, {"a.hpp"}, self.root), ["a.cpp"])
        self.assertEqual(clang.chosen(found, {"c.hpp"}, self.root), ["b.cpp"])
        self.assertEqual(clang.chosen(found, None, self.root), ["a.cpp", "b.cpp", "d.cpp"])

    def test_a_stamp_is_of_the_content(self):
        tree = self.write({"a.cpp": "1", "a.hpp": "2", ".clang-tidy": "3"})
        first = clang.stamp(tree, "19", "a.cpp", "c++ a.cpp", [self.root / "a.hpp"])
        self.assertEqual(first, clang.stamp(tree, "19", "a.cpp", "c++ a.cpp", [self.root / "a.hpp"]))
        others = {clang.stamp(tree, "20", "a.cpp", "c++ a.cpp", [self.root / "a.hpp"]),
                  clang.stamp(tree, "19", "a.cpp", "c++ -O a.cpp", [self.root / "a.hpp"])}
        self.write({"a.hpp": "4"})
        others.add(clang.stamp(tree, "19", "a.cpp", "c++ a.cpp", [self.root / "a.hpp"]))
        self.write({"a.hpp": "2", ".clang-tidy": "5"})
        others.add(clang.stamp(tree, "19", "a.cpp", "c++ a.cpp", [self.root / "a.hpp"]))
        self.assertEqual(len(others - {first}), 4)

    def test_a_finding(self):
        self.needs(clang.PROGRAM)
        self.write({".clang-tidy": (ROOT / ".clang-tidy").read_text(encoding="utf-8"),
                    "good.cpp": "int* a = nullptr;\n", "bad.cpp": "int* a = 0;\n",
                    "compile_commands.json": json.dumps([
                        {"directory": str(self.root), "file": name, "command": f"c++ -c {name}"}
                        for name in ("good.cpp", "bad.cpp")])})
        self.assertEqual(clang.check_one(clang.PROGRAM, self.root, self.root, "good.cpp"), [])
        self.assertIn("modernize-use-nullptr", clang.check_one(clang.PROGRAM, self.root, self.root, "bad.cpp")[0])
        self.assertIn("none.cpp", clang.check_one(clang.PROGRAM, self.root, self.root, "none.cpp")[0])


class Command(Bed):
    def run_tidy(self, *arguments):
        return subprocess.run([sys.executable, ROOT / "scripts" / "tidy", "--root", self.root, *arguments], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)

    def test_status_and_sentence(self):
        self.write({"a.cpp": SPDX, "b.cpp": "int b;\n", "c.md": "[d](d.md)\n"})
        done = self.run_tidy("licences", "documents")
        self.assertEqual(done.returncode, 1)
        self.assertIn("b.cpp:1: no SPDX line [licences]\nc.md:1: link to d.md: there is no d.md [documents]\n2 faults",
                      done.stdout)
        self.assertEqual(self.run_tidy("lengths", "map").stdout.count("[lengths]"), 0)

    def test_strict(self):
        self.write({"a.cpp": SPDX})
        self.assertEqual(self.run_tidy("clang-tidy").returncode, 0)
        done = self.run_tidy("--strict", "clang-tidy")
        self.assertEqual(done.returncode, 1)
        self.assertIn("not possible here", done.stdout)


if __name__ == "__main__":
    unittest.main()
