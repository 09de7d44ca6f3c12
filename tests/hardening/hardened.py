#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads from finished ELF files that they were built as cmake/KagemushaHardening.cmake says.

Looks at the files alone: a flag that a compiler ignored, or that a later one took back, is missing here.

    hardened.py [--qemu SCRIPT] [FILE...]

--qemu: the script whose last line of output is the path of QEMU's binary.
"""

import argparse
import platform
import re
import subprocess
import sys

ENDBR64 = bytes.fromhex("f30f1efa")


def readelf(*words):
    return subprocess.run(["readelf", "-W", *words], check=True, capture_output=True, text=True).stdout


def functions(path):
    """Addresses of the functions that a caller elsewhere may take the address of."""
    found = {}
    for line in readelf("-s", path).splitlines():
        words = line.split()
        if len(words) == 8 and words[3] == "FUNC" and words[4] == "GLOBAL" and words[6] != "UND":
            found[words[7].split("@")[0]] = int(words[1], 16)
    return found


def bytes_at(path, address, count):
    for line in readelf("-l", path).splitlines():
        words = line.split()
        if words[:1] == ["LOAD"]:
            offset, start, _, size = (int(word, 16) for word in words[1:5])
            if start <= address < start + size:
                with open(path, "rb") as file:
                    file.seek(offset + address - start)
                    return file.read(count)
    return b""


def faults(path):
    """What the file lacks, one sentence each."""
    segments, dynamic = readelf("-l", path), readelf("-d", path)
    imported = {
        words[7].split("@")[0]
        for words in (line.split() for line in readelf("--dyn-syms", path).splitlines())
        if len(words) >= 8 and words[6] == "UND"
    }
    if not re.search(r"Type:\s+DYN", readelf("-h", path)):
        yield "is loaded at a fixed address (PIE)"
    if "GNU_RELRO" not in segments:
        yield "leaves the dynamic linker's tables writable (-z relro)"
    if not re.search(r"BIND_NOW|Flags:.*\bNOW\b", dynamic):
        yield "resolves functions when they are called first (-z now)"
    stack = re.search(r"GNU_STACK.*", segments)
    if not stack or re.search(r"\bRWE\b", stack.group()):
        yield "has an executable stack (-z noexecstack)"
    if "__stack_chk_fail" not in imported:
        yield "has no stack canaries (-fstack-protector-strong)"
    if not any(name.startswith("__") and name.endswith("_chk") for name in imported):
        yield "checks no lengths (_FORTIFY_SOURCE)"
    if platform.machine() == "x86_64":
        entries = [address for name, address in functions(path).items() if name not in ("_start", "_init", "_fini")]
        marked = sum(bytes_at(path, address, 4) == ENDBR64 for address in entries[:200])
        if not entries or marked < 0.9 * len(entries[:200]):
            yield f"has marks for indirect branches on {marked} of {len(entries[:200])} functions (-fcf-protection)"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*")
    parser.add_argument("--qemu")
    arguments = parser.parse_args()
    files = arguments.files
    if arguments.qemu:
        printed = subprocess.run([arguments.qemu], check=True, stdout=subprocess.PIPE, text=True).stdout
        files.append(printed.splitlines()[-1])
    if not files:
        sys.exit("no file to look at")
    found = [f"{path} {fault}" for path in files for fault in faults(path)]
    print("\n".join(found) or f"{len(files)} files have all of it")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
