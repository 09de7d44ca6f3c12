#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""`scripts/tidy documents` on small trees: each fault that it is for is found, and nothing else."""

import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts" / "lib"))

from tidy import documents  # noqa: E402
from tidy.tree import Tree  # noqa: E402


class TidyDocs(unittest.TestCase):
    def faults(self, files):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")
            return list(documents.faults(Tree(root)))

    def check(self, files, *expected):
        self.assertEqual(self.faults(files), list(expected))

    def test_a_tree_in_order(self):
        self.check({
            "README.md": "# One\n[two](docs/two.md#a-part-of-it), control/fsm, `control/{fsm,main}.cpp`, "
                         "docs/*.md.\n",
            "docs/two.md": "## A part of it\n[one](../README.md), [web](https://a.example/b), #none\n",
            "control/fsm.hpp": "// docs/two.md\n", "control/fsm.cpp": "", "control/main.cpp": ""})

    def test_a_link_without_a_file(self):
        self.check({"a.md": "x\n[b](b.md)\n"}, "a.md:2: link to b.md: there is no b.md")

    def test_a_link_that_is_defined_elsewhere(self):
        self.check({"docs/a.md": "[one][b]\n\n[b]: b.md\n[c]: ../c.md\n", "c.md": ""},
                   "docs/a.md:3: link to b.md: there is no b.md")

    def test_a_link_is_relative_to_its_document(self):
        self.check({"docs/a.md": "[b](docs/b.md)\n", "docs/b.md": ""},
                   "docs/a.md:1: link to docs/b.md: there is no docs/b.md")

    def test_a_link_to_a_heading_that_is_not_there(self):
        self.check({"a.md": "[b](b.md#there) [b](b.md#not-there) [self](#nor-this)\n", "b.md": "# There\n"},
                   "a.md:1: link to b.md#not-there: no heading gives #not-there",
                   "a.md:1: link to #nor-this: no heading gives #nor-this")

    def test_a_heading_in_an_example_is_none(self):
        self.check({"a.md": "```\n# There\n```\n[self](#there)\n"},
                   "a.md:4: link to #there: no heading gives #there")

    def test_a_path_that_is_not_there(self):
        self.check({"a.md": "see `src/one.c`, src/two.c and src/{one,two}.c.\n", "src/one.c": ""},
                   "a.md:1: there is no src/two.c", "a.md:1: there is no src/{one,two}.c")

    def test_a_glob_that_fits_nothing(self):
        self.check({"a.md": "src/*.c src/*.h\n", "src/one.c": ""}, "a.md:1: there is no src/*.h")

    def test_patterns_and_what_is_built_or_anothers(self):
        self.check({"a.md": "src/NAME.c, src/<x>.c, build/default/tool, QEMU's `src/none.c`, usr/src/x\n",
                    "src/one.c": "", "build/x": ""})

    def test_examples_name_what_they_like(self):
        self.check({"a.md": "```\nsrc/none.c [b](b.md)\n```\n\n    src/none.c\n    src/none.h\n\ntext\n"
                            "    src/not.c\n",
                    "src/one.c": ""}, "a.md:9: there is no src/not.c")

    def test_a_section_that_is_not_there(self):
        self.check({"docs/a.md": "b.md, section 1; docs/b.md, section 2; ([b](b.md), section 3)\n",
                    "docs/b.md": "## 1. One\n"},
                   "docs/a.md:1: docs/b.md has no section 2", "docs/a.md:1: b.md has no section 3")

    def test_documents_that_sources_name(self):
        self.check({"src/a.cpp": "// docs/a.md, section 1\n// docs/b.md\n\n// docs/a.md, section 2\n",
                    "docs/a.md": "## 1. One\n"},
                   "src/a.cpp:2: there is no docs/b.md", "src/a.cpp:4: docs/a.md has no section 2")

    def test_columns(self):
        fits, long = "x " * 49 + "xx", "ä " * 49 + "xxx"
        self.check({"a.md": f"{fits}\n{long}\n```\n{long}\n```\n"},
                   "a.md:2: 101 columns, 100 at most", "a.md:4: 101 columns, 100 at most")

    def test_a_long_address_stands_alone(self):
        address = "<https://a.example/" + "x" * 100 + ">"
        self.check({"a.md": f"{address}\nsee {address}\n"}, "a.md:2: 124 columns, 100 at most")


if __name__ == "__main__":
    unittest.main()
