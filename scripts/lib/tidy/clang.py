# SPDX-License-Identifier: GPL-2.0-or-later
"""clang-tidy with the short list of .clang-tidy, over what changed.

One file takes 5 to 10 seconds of a core, the whole tree most of an hour. So only C++ files are checked that differ from
the branch that this one comes from (or belong to the last commit, if nothing does), and a file that passed is not
checked again: a stamp is kept by the content of the file, of our headers that it includes, of its command and of
.clang-tidy. `--all` checks every file. `--budget SECONDS` begins no further file after that time and says what is left.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import time

from .programs import Missing

PROGRAM = "clang-tidy-19"  # by version, like clang-format: each version knows other checks


def _git(root, *arguments):
    done = subprocess.run(["git", "-C", str(root), *arguments], text=True, capture_output=True, check=False)
    return done.stdout.split("\n") if done.returncode == 0 else None


def changed_since(root):
    """Names that changed since the upstream branch, or in the last commit; None without git."""
    if _git(root, "rev-parse", "HEAD") is None:
        return None
    for upstream in ("@{upstream}", "origin/HEAD", "origin/main", "main"):
        base = _git(root, "merge-base", "HEAD", upstream)
        if base:
            break
    changed = set()
    for start in ([base[0]] if base else []) + ["HEAD~1"]:
        changed |= set(_git(root, "diff", "--name-only", start) or [])
        if changed:
            break
    changed |= set(_git(root, "ls-files", "--others", "--exclude-standard") or [])
    return {name for name in changed if name}


def dependencies(build):
    """{object: our headers and sources it was compiled from}, as ninja keeps them."""
    done = subprocess.run(["ninja", "-C", str(build), "-t", "deps"], text=True, capture_output=True, check=False)
    found, current = {}, None
    for line in done.stdout.splitlines():
        match = re.match(r"(\S+): #deps", line)
        if match:
            current = found.setdefault(match.group(1), [])
        elif line.startswith("    ") and current is not None:
            current.append((build / line.strip()).resolve())
    return found


def units(tree, build):
    """{source: (command, what it includes)} of our C++ sources that the build compiles."""
    database = build / "compile_commands.json"
    if not database.exists():
        raise Missing("it reads build/default, which `./kage build` makes")
    included = dependencies(build)
    found = {}
    for entry in json.loads(database.read_text(encoding="utf-8")):
        path = pathlib.Path(entry["file"]).resolve()
        if path.suffix != ".cpp" or not path.is_relative_to(tree.root) or path.is_relative_to(build):
            continue
        output = re.search(r" -o (\S+)", entry["command"])
        headers = [header for header in included.get(output.group(1) if output else "", [])
                   if header.is_relative_to(tree.root) and header.exists()]
        found[path.relative_to(tree.root).as_posix()] = (entry["command"], headers)
    return found


def chosen(found, changed, root):
    """The sources to check: changed ones; for a changed header its own source, else the first that includes it."""
    if changed is None:
        return sorted(found)
    wanted = {name for name in found if name in changed}
    for name in changed:
        if not name.endswith((".hpp", ".h")):
            continue
        own = re.sub(r"\.hp?p?$", ".cpp", name)
        users = sorted(source for source, (_, headers) in found.items() if root / name in headers)
        if own in found:
            wanted.add(own)
        elif users and not wanted.intersection(users):
            wanted.add(users[0])
    return sorted(wanted)


def stamp(tree, version, source, command, headers):
    digest = hashlib.sha256()
    for part in (version, command, (tree.root / ".clang-tidy").read_text(encoding="utf-8")):
        digest.update(part.encode())
    for path in sorted({tree.root / source, *headers}):
        digest.update(path.as_posix().encode() + path.read_bytes())
    cache = pathlib.Path(os.environ.get("KAGEMUSHA_CACHE") or pathlib.Path.home() / ".cache" / "kagemusha")
    return cache / "clang-tidy" / digest.hexdigest()


def check_one(program, build, root, source):
    done = subprocess.run(["nice", program, "-p", str(build), "--quiet", source], cwd=root, text=True,
                          errors="replace", capture_output=True, check=False)
    faults = [line for line in done.stdout.splitlines() if re.search(r": (warning|error): ", line)]
    skipped = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("Skipping ")]
    if skipped:
        faults.append(f"{source}: {skipped[0]}")
    if done.returncode and not faults:
        faults = [f"{source}: {PROGRAM} ended with status {done.returncode}: {done.stderr.strip()[-300:]}"]
    return faults


def clang_tidy(tree, everything=False, budget_s=None, note=print):
    program = shutil.which(PROGRAM)
    if not program:
        raise Missing(f"{PROGRAM} is not installed (`./kage build` installs it)")
    build = tree.root / "build" / "default"
    found = units(tree, build)
    changed = None if everything else changed_since(tree.root)
    if changed is None and not everything:
        raise Missing("this is no clone, so nothing says what changed; `scripts/tidy --all clang-tidy` checks all")
    version = subprocess.run([program, "--version"], text=True, capture_output=True, check=True).stdout
    todo = []
    for source in chosen(found, changed, tree.root):
        mark = stamp(tree, version, source, *found[source])
        if not mark.exists():
            todo.append((source, mark))
    began, left_out = time.monotonic(), []

    def work(item):
        source, mark = item
        if budget_s is not None and time.monotonic() - began > budget_s:
            left_out.append(source)
            return []
        faults = check_one(program, build, tree.root, source)
        if not faults:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        return faults

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for faults in pool.map(work, todo):
            yield from dict.fromkeys(faults)
    if left_out:
        note(f"clang-tidy: {len(todo) - len(left_out)} of {len(todo)} changed files were checked in {budget_s} s; "
             "the next run goes on with the others, `scripts/tidy clang-tidy` checks them now")
