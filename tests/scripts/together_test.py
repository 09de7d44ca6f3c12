#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
together_test.py BUILD: the files that the preset `runtime` compiles as one (KAGEMUSHA_TOGETHER) go together. Nobody
who changes the code builds that way, so a name that two of them have for something of their own would meet the next
newcomer. The compiler only reads them here, which takes a tenth of the time of compiling.
"""
import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADER = "generated/proto/replication/replication.pb.h"


def read(entry):
    """→ the file, and what is wrong with it or nothing"""
    words = shlex.split(entry["command"])
    while "ccache" in words[0] or words[0].endswith("cmake") or words[0] == "-E" or words[0] == "env" or "=" in words[0]:
        words.pop(0)
    words[words.index("-o"):words.index("-o") + 2] = []
    done = subprocess.run(words + ["-w", "-O0", "-U_FORTIFY_SOURCE", "-fsyntax-only"], cwd=entry["directory"],
                          stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    return entry["file"], done.stderr if done.returncode else ""


def main(build):
    subprocess.run(["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
                    "-DKAGEMUSHA_TOGETHER=ON"], stdout=subprocess.DEVNULL, check=True)
    subprocess.run(["ninja", "-C", build, HEADER], stdout=subprocess.DEVNULL, check=True)
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    together = [entry for entry in entries if "/Unity/" in entry["file"]]
    assert len(together) > 10, f"only {len(together)} groups: is KAGEMUSHA_TOGETHER still an option?"
    with ThreadPoolExecutor(os.cpu_count()) as several:
        wrong = [(file, said) for file, said in several.map(read, together) if said]
    for file, said in wrong:
        print(f"{file}: its files don't go together; ALONE in kagemusha_compile_together() keeps one apart:\n{said}")
    print(f"{len(together)} groups, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
