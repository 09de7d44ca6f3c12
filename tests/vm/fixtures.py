# SPDX-License-Identifier: GPL-2.0-or-later
"""
Fixtures that tests make for themselves, under the name that their checks ask for:

    guest = one_guest(name="tool", backend="none")   # one guest for all checks of the file
    guest = own_guest(name="reset")                  # a guest for each check
    pair = own(Pair)                                 # anything that has a directory and is a context manager
    pair = shared(NetPair)

What they made is ended after the last check that had it, also after a failure. Its directory is kept if one failed.
"""
import os
import subprocess

import pytest

from guest_vm import Guest, GuestError
from places import Place


def one_guest(**options):
    return shared(lambda: Guest(**options))


def own_guest(**options):
    return own(lambda: Guest(**options))


def shared(make, params=None):
    """One for all checks of the file; with `params` one for each of them, and `make` gets it."""
    @pytest.fixture(scope="module", params=params)
    def thing(request):
        yield from made(request, make)
    return thing


def own(make, params=None):
    """A new one for each check."""
    @pytest.fixture(params=params)
    def thing(request):
        yield from made(request, make)
    return thing


def made(request, make):
    """Also of a fixture that does more: `yield from`."""
    thing = make(request.param) if hasattr(request, "param") else make()
    # Who shares it must know when it is lost.
    name = request.fixturename if request.scope == "module" else None
    place = Place(thing.directory, thing, name, request.path)
    try:
        with thing:
            yield thing
            if reason := getattr(thing, "lost", None):
                raise Lost(reason)  # it can't be ended in order
    except Lost:
        pass  # the check that lost it has said so
    except BaseException:
        place.failed = True
        raise
    finally:
        place.leave()


class Lost(GuestError):
    pass


def needs(program, package):
    """A fixture that skips where there is no such program."""
    @pytest.fixture(scope="module")
    def there():
        if not os.path.exists(program):
            pytest.skip(f"there is no {program} on this machine (package {package})")
    return there


def namespace(kind):
    """A fixture that skips where no new namespace of this kind is ours alone."""
    @pytest.fixture(scope="module")
    def there():
        if os.environ.get("KAGE_NAMESPACE") != kind:
            pytest.skip(f"run it with tests/vm/in-namespace {kind}")
    return there


def has_mounts_of_its_own():
    """Whether this host gives anybody a namespace of mounts. In a chroot, whose root is no mount, nobody gets one."""
    return subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0


def mounts_of_its_own():
    """A fixture that skips where hosts with file systems of their own are not to be had."""
    @pytest.fixture(scope="module")
    def there():
        if not has_mounts_of_its_own():
            pytest.skip("no new namespace of mounts here: this is a chroot, whose root is no mount (mount --bind makes it one)")
    return there
