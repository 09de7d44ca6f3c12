# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks that only read sources: lengths, licences, what headers open with, and the map of the folders.

Each is a generator of faults, "FILE:LINE: what is wrong". What may be longer is in scripts/tidy-exceptions.txt.
"""

import re

from . import tree as files
from .functions import functions

FILE_LINES = 600
FUNCTION_LINES = 80
FOLDER_FILES = 20
COLUMNS = 100
KERNEL_FOLDERS = ("guest-driver/kernel/", "tracer/core/", "tracer/kernel/", "proto/abi/")
EXCEPTIONS = "scripts/tidy-exceptions.txt"
MAP = "docs/contributing/map.md"
MAPPED = ("", "replicator/", "control/")  # each folder here has a row in the map
PUBLIC = "replicator/include/"
CONTRACT = ("Threads:", "Errors:", "Memory:")

MESSAGE = re.compile(r'"[^"]{30,}"')  # of kernel code

LICENSED = files.CODE | {".S", ".py", ".sh", ".bash", ".cmake", ".proto"}
OPENS = re.compile(r"^\s*(?://+|/?\*+)\s.*[a-zA-Z]{3,}")  # a line of a comment with words in it


def exceptions(tree):
    """{(file, function or None): reason} and the faults of the list itself."""
    found, faults = {}, []
    path = tree.root / EXCEPTIONS
    for number, line in enumerate(tree.text(path).splitlines() if path.exists() else [], 1):
        if not line.strip() or line.startswith("#"):
            continue
        place, _, reason = line.partition(": ")
        name, _, function = place.strip().partition(" ")
        if not reason.strip().endswith(".") or len(reason.split()) < 4:
            faults.append(f"{EXCEPTIONS}:{number}: gives no sentence why {place.strip()} is long")
        found[name, function.strip() or None] = number
    return found, faults


def lengths(tree):
    """Files of more than 600 lines, functions of more than 80, folders of more than 20 files; exceptions must be ones."""
    allowed, faults = exceptions(tree)
    yield from faults
    used = set()
    for name, path in tree.having(*files.CODE).items():
        text = tree.text(path)
        lines = text.count("\n")
        if lines > FILE_LINES:
            used.add((name, None))
            if (name, None) not in allowed:
                yield f"{name}:1: {lines} lines, {FILE_LINES} at most"
        for function, line, count in functions(text):
            if count > FUNCTION_LINES:
                used.add((name, function))
                if (name, function) not in allowed:
                    yield f"{name}:{line}: {function} has {count} lines, {FUNCTION_LINES} at most"
    for folder, count in folder_sizes(tree).items():
        if count > FOLDER_FILES:
            used.add((folder, None))
            if (folder, None) not in allowed:
                yield f"{folder}: {count} files without tests, {FOLDER_FILES} at most"
    for place, number in allowed.items():
        if place not in used:
            what = place[0] if place[1] is None else f"{place[1]} of {place[0]}"
            yield f"{EXCEPTIONS}:{number}: {what} is no longer too long: take it out"


def folder_sizes(tree):
    """{folder with a slash behind it: its C and C++ files}, but for tests and what helps them."""
    sizes = {}
    for name in tree.having(*files.CODE):
        folder, _, file = name.rpartition("/")
        if not folder.startswith(("tests/", "bench/")) and "test" not in file and "test" not in folder.split("/"):
            sizes[folder + "/"] = sizes.get(folder + "/", 0) + 1
    return sizes


def columns(tree):
    """Kernel code: 100 columns, with tabs of 8. Messages are not split, so that they can be found.

    checkpatch does not say it of whole files, and C++ has clang-format.
    """
    for below in KERNEL_FOLDERS:
        for name, path in tree.having(*files.C, below=below).items():
            for number, line in enumerate(tree.text(path).splitlines(), 1):
                if len(line.expandtabs(8)) > COLUMNS and not MESSAGE.search(line):
                    yield f"{name}:{number}: {len(line.expandtabs(8))} columns, {COLUMNS} at most"


def licences(tree):
    """An SPDX line among the first five of every source file."""
    for name, path in tree.paths.items():
        program = not path.suffix and files.first_line(path).startswith("#!")
        if path.suffix in LICENSED or program or path.name in {"CMakeLists.txt", "Makefile", "Kbuild"}:
            if "SPDX-License-Identifier:" not in "\n".join(tree.text(path).split("\n")[:5]):
                yield f"{name}:1: no SPDX line"


def opening(text):
    """The first comment of a file, without its SPDX line."""
    block = []
    for line in text.splitlines():
        if "SPDX-License-Identifier" in line:
            continue
        if not re.match(r"\s*(//|/?\*|#pragma once|#ifndef|#define \w+$|$)", line):
            break
        if re.match(r"\s*(//|/?\*)", line):
            block.append(line)
        elif block:
            break
    return "\n".join(block)


def contracts(tree):
    """A header opens with what it is. A public one also says what it promises: threads, errors, memory.

    C++ headers have `#pragma once`; guards are for those that C reads, too.
    """
    for name, path in tree.having(".h", ".hpp").items():
        text = tree.text(path)
        comment = opening(text)
        if name.endswith(".hpp") and "#pragma once\n" not in text:
            yield f"{name}:1: the header has no '#pragma once'"
        if not any(OPENS.match(line) for line in comment.splitlines()):
            yield f"{name}:1: the header does not open with a comment that says what it is"
        elif name.startswith(PUBLIC):
            for word in CONTRACT:
                if word not in comment:
                    yield f"{name}:1: the contract of a public header has no paragraph '{word}'"


def folder_map(tree):
    """Each folder of the root, of replicator and of control is in the first column of the map, and is there."""
    path = tree.root / MAP
    if not path.exists():
        yield f"{MAP}: is missing"
        return
    rows = set()
    for number, line in enumerate(tree.text(path).splitlines(), 1):
        if line.startswith("|"):
            for folder in re.findall(r"`([^`]+)`", line.split("|")[1]):
                rows.add(folder)
                if not (tree.root / folder).is_dir():
                    yield f"{MAP}:{number}: there is no folder {folder}"
    for above in MAPPED:
        folders = {name[len(above):].split("/")[0] for name in tree.paths
                   if name.startswith(above) and "/" in name[len(above):]}
        for folder in sorted(folders):
            if not folder.startswith(".") and above + folder not in rows:
                yield f"{MAP}: has no row for {above}{folder}"
