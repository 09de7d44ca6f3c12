# SPDX-License-Identifier: GPL-2.0-or-later
"""Which files are ours: everything in the tree but what a build, a fuzzer or a person's editor put there."""

import pathlib

CPP = {".cpp", ".hpp"}
C = {".c", ".h"}
CODE = CPP | C
SKIPPED_FOLDERS = {"build", "corpus", "testdata", "zydis", "__pycache__"}  # besides hidden ones


def files(root):
    """All files below root, sorted; hidden folders but .ci are left out."""
    for path in sorted(root.iterdir()):
        if path.is_symlink() or path.name in SKIPPED_FOLDERS:
            continue
        if path.is_dir():
            if not path.name.startswith(".") or path.name == ".ci":
                yield from files(path)
        else:
            yield path


def first_line(path):
    with path.open("rb") as file:
        return file.readline(200).decode("utf-8", errors="replace")


def is_python(path):
    return path.suffix == ".py" or (not path.suffix and first_line(path).startswith("#!") and
                                    "python" in first_line(path))


def is_shell(path):
    if path.suffix:
        return path.suffix in {".sh", ".bash"}
    return first_line(path).startswith(("#!/bin/bash", "#!/bin/sh"))


class Tree:
    """The files once, each with its name from the root; `name in tree.names` is the question that checks ask."""

    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        self.paths = {path.relative_to(self.root).as_posix(): path for path in files(self.root)}

    def having(self, *endings, below=""):
        return {name: path for name, path in self.paths.items()
                if path.suffix in endings and name.startswith(below)}

    @staticmethod
    def text(path):
        return path.read_text(encoding="utf-8", errors="replace")
