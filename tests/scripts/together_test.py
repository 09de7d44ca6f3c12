#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
together_test.py BUILD: the files that the preset `runtime` compiles as one (KAGEMUSHA_TOGETHER) go together. Nobody
who changes the code builds that way, so a name that two of them have for something of their own would meet the next
newcomer. The compiler only reads them here, which takes a tenth of the time of compiling. A group that passed is read again
when its command, the compiler or a file that it reads changed.
"""
import functools
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def digest(path):
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


def read(entry, passed):
    """→ the file, what is wrong with it or nothing, and whether the compiler was asked. `passed`: where it is kept what did."""
    words = shlex.split(entry["command"])
    while "ccache" in words[0] or words[0].endswith("cmake") or words[0] == "-E" or words[0] == "env" or "=" in words[0]:
        words.pop(0)
    words[words.index("-o"):words.index("-o") + 2] = []
    words += ["-w", "-O0", "-U_FORTIFY_SOURCE", "-fsyntax-only"]
    what = {"command": words, "compiler": digest(shutil.which(words[0]))}
    record = passed / f"{hashlib.sha256(entry['file'].encode()).hexdigest()}.json"
    try:
        known = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    if known and all(known[key] == value for key, value in what.items()) \
            and all(digest(path) == its for path, its in known["files"].items()):
        return entry["file"], "", False
    record.unlink(missing_ok=True)
    files = record.with_suffix(".d")
    done = subprocess.run(words + ["-MD", "-MF", files, "-MT", "it"], cwd=entry["directory"],
                          stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    if done.returncode:
        return entry["file"], done.stderr, True
    names = shlex.split(files.read_text(encoding="utf-8").replace("\\\n", " "))[1:]
    read_by_it = {str(Path(entry["directory"], name)) for name in names}
    assert entry["file"] in read_by_it, f"{entry['file']} does not read itself: {names[:3]}"
    record.write_text(json.dumps({**what, "files": {path: digest(path) for path in sorted(read_by_it)}}), encoding="utf-8")
    return entry["file"], "", True


def main(build):
    subprocess.run(["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
                    "-DKAGEMUSHA_TOGETHER=ON"], stdout=subprocess.DEVNULL, check=True)
    made = subprocess.run(["ninja", "-C", build, "-t", "targets", "rule", "CUSTOM_COMMAND"], stdout=subprocess.PIPE, text=True,
                          check=True).stdout.split()
    headers = [name for name in made if name.endswith((".h", ".hpp"))]
    subprocess.run(["ninja", "-C", build, *headers], stdout=subprocess.DEVNULL, check=True)
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    together = [entry for entry in entries if "/Unity/" in entry["file"]]
    assert len(together) > 10, f"only {len(together)} groups: is KAGEMUSHA_TOGETHER still an option?"
    passed = build / "passed"
    passed.mkdir(exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as several:
        results = list(several.map(lambda entry: read(entry, passed), together))
    wrong = [(file, said) for file, said, _ in results if said]
    for file, said in wrong:
        print(f"{file}: its files don't go together; ALONE in kagemusha_compile_together() keeps one apart:\n{said}")
    print(f"{len(together)} groups, of which {sum(asked for _, _, asked in results)} were read, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
