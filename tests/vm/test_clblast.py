# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: one guest, one GPU; the same programs natively on the host for comparison.

clblast_test_* of Debian: the counts of passed, skipped and failed tests of every routine are those of the host. --clblast
chooses programs (default: all); where the host has none there is nothing to compare with, and the test is skipped.
"""
import shutil
import subprocess
from pathlib import Path

import pytest

from fixtures import one_guest
from programs import clblast_results, failed, plain

HOURS = 3600

guest = one_guest(name="clblast", life=24 * HOURS)


def natively(program):
    """The same program on the host; None when it is not installed here."""
    path = shutil.which(program)
    if not path:
        return None
    done = subprocess.run([path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", timeout=2 * HOURS, check=False)
    return done.returncode, clblast_results(done.stdout)


def pytest_generate_tests(metafunc):
    """A check for each program that --clblast names, or for each that this machine has."""
    names = sorted(path.name for path in Path("/usr/bin").glob("clblast_test_*"))
    chosen = [name for name in metafunc.config.getoption("--clblast").split(",") if name]
    unknown = [name for name in chosen if f"clblast_test_{name}" not in names] if names else []
    assert not unknown, f"no programs of these names: {unknown}"
    metafunc.parametrize("program", [name for name in names if not chosen or name.removeprefix("clblast_test_") in chosen])


def check_same_as_host(guest, program):
    """{program}: the same counts as on the host"""
    ours = guest.run(program, seconds=2 * HOURS)
    results = clblast_results(ours.output)
    assert results, f"no results: {plain(ours.output)[-500:]}"
    host = natively(program)
    if host is None:
        assert not failed(results), f"failed: {failed(results)}"
        pytest.skip("nothing failed; not compared, because it is not installed on the host (clblast-tests)")
    assert (ours.status, results) == host, f"guest: {ours.status} {results}, host: {host}"
