# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks that other programs do: clang-format, shellcheck, pyflakes, pycodestyle, checkpatch.

Each is a generator of faults as those programs print them. A program that is missing raises Missing: that is shown as
a check that was not possible, never as one that passed.
"""

import os
import pathlib
import re
import shutil
import subprocess

from . import tree as files
from .sources import KERNEL_FOLDERS

CLANG_FORMAT = "clang-format-19"  # by version: each lays out a little differently, and both Debians have this one
# What the two find in our Python: names that do not exist or are not used (pyflakes), and of pycodestyle the rules that
# point at mistakes or at what a reader stumbles over. Alignment (E12x) is a matter of taste and is off.
# So is E402: scripts put the tree into sys.path before they import from it.
PYTHON_RULES = "E11,E2,E3,E401,E7,E9,W1,W2,W3,W6"

# Why some of checkpatch's rules are off. QEMU's: qtests compare with g_assert_cmp*, as QEMU's own do; architectures are
# told apart where their instructions differ; a macro of two BPF instructions can have no parentheses. The kernel's: one
# source for Linux 6.1 and 6.12 needs LINUX_VERSION_CODE.
QEMU_IGNORED = re.compile(r"Use g_assert or g_assert_not_reached|architecture specific defines|"
                          r"memory-keeper\.c.*Macros with complex values")
KERNEL_IGNORED = {
    "": "LINUX_VERSION_CODE,CONSTANT_COMPARISON,FILE_PATH_CHANGES",
    # Programs of user space, not of the kernel: its macros are not there, and stores must not be optimised away.
    "guest-driver/kernel/test/": "UNSPECIFIED_INT,VOLATILE,ARRAY_SIZE,PREFER_DEFINED_ATTRIBUTE_MACRO",
    # Compiled in both worlds, so with the compiler's own words.
    "tracer/core/": "PREFER_DEFINED_ATTRIBUTE_MACRO,VOLATILE,COMPLEX_MACRO",
    # One case of a switch for each vector register: a loop would stand in the way of the case.
    "tracer/kernel/emulate.c": "MULTISTATEMENT_MACRO_USE_DO_WHILE",
}


# A reader that ends early: who writes to it may die of SIGPIPE, and with pipefail that is the pipe's status (141). It
# depends on who runs first, so it shows on a busy machine only.
EARLY_END = re.compile(r"\|\s*(head\b|grep\s+(-\w+\s+)*-\w*[qm]|awk\b.*\bexit\b|sed\b[^|]*;q\b)")


class Missing(Exception):
    """A program that a check needs is not on this machine; the text says how to get it."""


def _need(program, package):
    path = shutil.which(program)
    if not path:
        raise Missing(f"{program} is not installed (package {package}; `./kage build` installs it)")
    return path


def _lines(command, root, **environment):
    done = subprocess.run(command, cwd=root, env={**os.environ, **environment}, text=True, errors="replace",
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    if done.returncode and not lines:
        lines = [f"{command[0]} ended with status {done.returncode} and said nothing"]
    return done.returncode, lines


def layout(tree):
    """C++ as .clang-format has it. Kernel and QEMU code keep the layout of their projects."""
    program = _need(CLANG_FORMAT, CLANG_FORMAT)
    names = [*tree.having(*files.CPP), *tree.having(".h", below="replicator/")]
    status, lines = _lines([program, "--dry-run", "-Werror", *names], tree.root) if names else (0, [])
    if status:
        yield from (line for line in lines if "error:" in line)
        yield "`./kage format` mends the layout"


def shell(tree):
    """Every program in sh or bash, and what they source."""
    program = _need("shellcheck", "shellcheck")
    names = [name for name, path in tree.paths.items() if files.is_shell(path) and not name.endswith(".bash")]
    if names:
        yield from _lines([program, "--severity=warning", "--format=gcc", "-x", "-P", "SCRIPTDIR", *names],
                          tree.root)[1]
    for name in names:
        text = tree.paths[name].read_text(errors="replace")
        # What lies in a lib is read by programs that have the option.
        if "pipefail" not in text and "/lib/" not in name:
            continue
        before = ""
        for number, line in enumerate(text.splitlines(), 1):
            if line.lstrip().startswith("#"):
                continue
            piped = ("|" if before.rstrip(" \\").endswith("|") else "") + line.lstrip()
            before = line
            if EARLY_END.search(piped):
                yield f"{name}:{number}: ends before the pipe does, so with pipefail the script may end with status 141"


def python(tree):
    names = [name for name, path in tree.paths.items() if files.is_python(path)]
    if names:
        yield from _lines([_need("pyflakes3", "pyflakes3"), *names], tree.root)[1]
        yield from _lines([_need("pycodestyle", "pycodestyle"), f"--select={PYTHON_RULES}",
                           *names], tree.root)[1]


def _cached_qemu():
    cache = pathlib.Path(os.environ.get("KAGEMUSHA_CACHE") or pathlib.Path.home() / ".cache" / "kagemusha")
    return sorted(cache.glob("qemu-source/*/src/scripts/checkpatch.pl"))[-1:]


def _checkpatch(tree, variable, found, how):
    """checkpatch.pl of a project: what the variable names, or what was found."""
    named = os.environ.get(variable)
    if named:
        if not pathlib.Path(named).is_file():
            raise Missing(f"{variable} names {named}, which is not there")
        return named
    if not found:
        raise Missing(how)
    return str(found[0])


def checkpatch_qemu(tree):
    """QEMU's checkpatch over our device. It is in the source that the build fetches."""
    script = _checkpatch(tree, "KAGE_QEMU_CHECKPATCH", _cached_qemu(),
                         "QEMU's source was not fetched yet (`./kage build` does it)")
    for name in tree.having(*files.C, below="qemu-device/"):
        for line in _lines(["perl", script, "--no-tree", "--terse", "--no-summary", "-f", name], tree.root)[1]:
            if not QEMU_IGNORED.search(line):
                yield line


def checkpatch_kernel(tree):
    """The kernel's checkpatch over guest driver and tracer, where there is one: no package that we need has it."""
    found = sorted(pathlib.Path("/usr/src").glob("linux-source-*/scripts/checkpatch.pl"))[-1:]
    script = _checkpatch(tree, "KAGE_KERNEL_CHECKPATCH", found,
                         "no kernel source is unpacked: only the package linux-source-6.12 (140 MB) has checkpatch.pl;"
                         " KAGE_KERNEL_CHECKPATCH=FILE names one")
    for folder in KERNEL_FOLDERS:
        for name in tree.having(*files.C, below=folder):
            ignored = ",".join(rules for below, rules in KERNEL_IGNORED.items() if name.startswith(below))
            yield from _lines(["perl", script, "--no-tree", "--terse", "--no-summary", "--show-types",
                               "--max-line-length=100", f"--ignore={ignored}", "-f", name], tree.root)[1]
