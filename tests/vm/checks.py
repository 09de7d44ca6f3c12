# SPDX-License-Identifier: GPL-2.0-or-later
"""
Several checks in one guest, each with a line of its own: booting costs more than most checks. A check is a function whose
docstring is its line; it fails by an exception, and the next one runs all the same unless the guest is lost.
"""
import os
import shutil
import sys
import time
import traceback

from guest_vm import Guest, GuestError


class Skip(Exception):
    """This check is not possible here; says why."""


def run(title, guest_options, checks):
    """Boots a guest and runs the checks in it. Returns the number of failures."""
    started = time.monotonic()
    print(f"== {title}", flush=True)
    failures = 0
    guest = Guest(**guest_options)
    try:
        with guest:
            print(f"   guest is up after {time.monotonic() - started:.1f} s", flush=True)
            for check in checks:
                failures += one(check, guest)
    except GuestError as error:
        failures += 1
        print(f"FAIL   the guest: {error}", flush=True)
    report(guest, failures)
    return failures


def run_without_guest(title, checks):
    """The same for checks that start what they need themselves; they get None."""
    print(f"== {title}", flush=True)
    return sum(one(check, None) for check in checks)


def one(check, guest):
    line = " ".join(check.__doc__.split())
    started = time.monotonic()
    try:
        check(guest)
    except Skip as reason:
        print(f"skip   {line}: {reason}", flush=True)
        return 0
    except GuestError as error:
        print(f"FAIL   {line}" + (f": {error}" if guest is None else ""), flush=True)
        if guest is None:
            return 1
        raise
    except Exception as error:  # pylint: disable=broad-except
        if guest:
            guest.note(traceback.format_exc())
        else:
            traceback.print_exc()
        print(f"FAIL   {line}: {error}", flush=True)
        return 1
    print(f"ok     {line} ({time.monotonic() - started:.1f} s)", flush=True)
    return 0


def report(guest, failures):
    if failures:
        print(f"   logs kept: {guest.directory}", flush=True)
    elif not os.environ.get("KAGE_KEEP_LOGS"):
        shutil.rmtree(guest.directory, ignore_errors=True)


def main(*runs):
    """Runs (title, guest options, checks) one after the other and exits with 1 if anything failed."""
    failures = sum(run(*each) for each in runs)
    print(f"{failures} failures" if failures else "all good", flush=True)
    sys.exit(1 if failures else 0)
