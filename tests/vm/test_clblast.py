#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: one guest, one GPU; the same programs natively on the host for comparison.

clblast_test_* of Debian: the counts of passed, skipped and failed tests of every routine are those of the host. The words
on the command line choose programs by the beginnings of their names (default: all).
"""
import shutil
import subprocess
import sys
from pathlib import Path

import checks
from programs import clblast_results, failed, plain

HOURS = 3600


def natively(program):
    """The same program on the host; None when it is not installed here."""
    path = shutil.which(program)
    if not path:
        return None
    done = subprocess.run([path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", timeout=2 * HOURS, check=False)
    return done.returncode, clblast_results(done.stdout)


def same_as_host(program):
    def check(guest):
        ours = guest.run(program, seconds=2 * HOURS)
        results = clblast_results(ours.output)
        assert results, f"no results: {plain(ours.output)[-500:]}"
        host = natively(program)
        if host is None:
            assert not failed(results), f"failed: {failed(results)}"
            raise checks.Skip("nothing failed; not compared, because it is not installed on the host (clblast-tests)")
        assert (ours.status, results) == host, f"guest: {ours.status} {results}, host: {host}"
    check.__doc__ = f"{program}: the same counts as on the host"
    return check


def programs(chosen):
    names = sorted(path.name for path in Path("/usr/bin").glob("clblast_test_*"))
    if not names:
        print("clblast-tests is not installed on the host, so there is nothing to compare with")
        sys.exit(77)
    return [name for name in names
            if not chosen or any(name.removeprefix("clblast_test_") in group.split(",") for group in chosen)]


if __name__ == "__main__":
    selected = programs(sys.argv[1:])
    if not selected:
        raise SystemExit("no program of these names")
    sys.exit(checks.main(("CLBlast's tests", {"name": "clblast", "life": 24 * HOURS},
                          [same_as_host(program) for program in selected])))
