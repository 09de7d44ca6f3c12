# SPDX-License-Identifier: GPL-2.0-or-later
"""
The runner itself (conftest.py, fixtures.py): small files of checks that fail, hang, lose their guest or leave something behind,
run as ctest runs ours. Each is reported as what it is, with its logs, and no process is left.
"""
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree
from pathlib import Path

import pytest

from guest_vm import HERE
from processes import alive, below, processes

# A thing with a process and a log, of which a file makes one or many.
THING = '''
import os, signal, subprocess, tempfile, time
from pathlib import Path
import pytest
from fixtures import one_guest, own, shared

class Thing:
    def __init__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="kagemusha-thing-"))
        (self.directory / "console").write_text("what it said last", encoding="utf-8")
        self.process = subprocess.Popen(["sleep", "1000"])
    def __enter__(self):
        return self
    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

'''


class Ran:
    """What came of one such file."""

    def __init__(self, directory, text, *options):
        file, junit = directory / "test_it.py", directory / "junit.xml"
        file.write_text(THING + text, encoding="utf-8")
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        before = below(processes(), {os.getpid()})
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-c", HERE / "pytest.ini", "-p", "conftest", "--junitxml", junit, file, *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            env=dict(os.environ, PYTHONPATH=str(HERE), PYTHONDONTWRITEBYTECODE="1", TMPDIR=str(self.temporary)))
        self.status, self.output = done.returncode, done.stdout
        # What lost its parent is ours now, as conftest.py wants it.
        self.left = alive(below(processes(), {os.getpid()}) - before)
        self.cases = {}
        for case in xml.etree.ElementTree.parse(junit).iter("testcase"):
            found = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
            self.cases[case.get("name")] = "+".join(found) or "passed"

    def logs(self):
        return sorted(path.name for path in self.temporary.glob("kagemusha-*") if path.is_dir())


@pytest.fixture
def run(tmp_path):
    def ran(text, *options):
        found = Ran(tmp_path, text, *options)
        assert not found.left, f"left: {found.left}; {found.output}"
        return found
    return ran


def check_passes(run):
    """checks that pass: status 0, a line with the docstring for each, no logs are kept"""
    ran = run('''
thing = shared(Thing)

def check_one(thing):
    """the first thing is so"""
    assert thing.process.poll() is None

@pytest.mark.parametrize("word", ["this", "that"])
def check_two(thing, word):
    """{word} is so, too"""
    assert thing.process.poll() is None
''')
    assert ran.status == 0 and set(ran.cases.values()) == {"passed"} and len(ran.cases) == 3, ran.output
    for line in ("the first thing is so", "this is so, too", "that is so, too"):
        assert re.search(rf"ok \(\d+\.\d s\): {line}", ran.output), ran.output
    assert not ran.logs(), ran.logs()


def check_fails(run):
    """a check that fails: status 1, its console is shown, its logs are kept, the next one runs all the same"""
    ran = run('''
thing = own(Thing)

def check_one(thing):
    """it is so"""
    assert 1 + 1 == 3, "a sum is wrong"

def check_two(thing):
    """the next one"""
''')
    assert ran.status == 1 and ran.cases == {"check_one": "failure", "check_two": "passed"}, ran.output
    for text in ("a sum is wrong", "FAIL (", "what it said last", "logs kept: "):
        assert text in ran.output, ran.output
    assert len(ran.logs()) == 1, ran.logs()


def check_story(run):
    """a story: what follows a failure is skipped, in another file's or guest's it is not"""
    ran = run('''
pytestmark = pytest.mark.story
thing = shared(lambda param: Thing(), params=["first", "second"])

def check_begin(thing):
    """it begins"""

def check_middle(thing, request):
    """in its middle the first one fails"""
    assert "first" not in request.node.name

def check_end(thing):
    """it ends"""
''')
    assert ran.status == 1 and ran.cases == {
        "check_begin[first]": "passed", "check_middle[first]": "failure", "check_end[first]": "skipped",
        "check_begin[second]": "passed", "check_middle[second]": "passed", "check_end[second]": "passed"}, ran.output


def check_hangs(run):
    """a check that hangs: at the deadline it fails where it hangs, what it started is ended, the rest is skipped"""
    ran = run('''
thing = shared(Thing)

def check_one(thing):
    """it never ends"""
    subprocess.Popen(["sleep", "1000"])
    while True:
        try:
            thing.process.wait()  # here
        except Exception:
            pass

def check_two(thing):
    """the next one"""
''', "--deadline", "5")
    assert ran.status == 1 and ran.cases["check_two"] == "skipped", ran.output
    assert ran.cases["check_one"].startswith("failure"), ran.cases
    assert "it hangs: 5 s after the beginning it was here" in ran.output and "thing.process.wait()  # here" in ran.output, ran.output


def check_leaves_process(run):
    """a process that outlives its file's checks, and the one that started it: a failure that names it, and it is ended"""
    ran = run('''
def check_one(tmp_path):
    """it leaves something"""
    subprocess.run(["sh", "-c", "sleep 1234 &"], stdout=subprocess.DEVNULL)
''', "--leave", "1")
    assert ran.status == 1 and "error" in ran.cases["check_one"], ran.output
    assert re.search(r"left behind: \d+ sleep: sleep 1234", ran.output), ran.output


def check_setup_fails(run):
    """a guest that can't be made: a failure, and its logs are kept"""
    ran = run('''
class Broken(Thing):
    def __enter__(self):
        self.__exit__()
        raise AssertionError("it does not start")

thing = shared(Broken)

def check_one(thing):
    """it is so"""
''')
    assert ran.status == 1 and ran.cases == {"check_one": "error"} and "it does not start" in ran.output, ran.output
    assert len(ran.logs()) == 1, ran.logs()


def check_skipped(run):
    """some checks are skipped: status 0"""
    ran = run('''
def check_one():
    """it is not possible here"""
    pytest.skip("there is no such thing")

def check_two():
    """it is so"""
''')
    assert ran.status == 0 and ran.cases == {"check_one": "skipped", "check_two": "passed"}, ran.output


def check_all_skipped(run):
    """all checks are skipped: status 77, which ctest shows as skipped"""
    ran = run('''
def check_one():
    """it is not possible here"""
    pytest.skip("there is no such thing")
''')
    assert ran.status == 77 and ran.cases == {"check_one": "skipped"} and "no such thing" in ran.output, ran.output


def check_no_checks(run):
    """a choice that chooses nothing: a failure, no skip"""
    ran = run("def check_one(): pass\n", "-k", "another")
    assert ran.status not in (0, 77), ran.output


def check_mistake(run):
    """a file that can't be imported: a failure"""
    ran = run("import nothing_of_this_name\n")
    assert ran.status not in (0, 77) and "nothing_of_this_name" in ran.output, ran.output


def check_long(run):
    """checks that take an hour: only with --long"""
    text = '''
def check_short():
    """it is so"""

@pytest.mark.long
def check_hours():
    """it is so"""
'''
    assert run(text).cases == {"check_short": "passed"}


def check_long_chosen(run):
    """with --long: these, too"""
    ran = run('''
@pytest.mark.long
def check_hours():
    """it is so"""
''', "--long")
    assert ran.status == 0 and ran.cases == {"check_hours": "passed"}, ran.output


def check_ended_from_outside(tmp_path):
    """SIGTERM to the runner: it ends what its checks have started"""
    file = tmp_path / "test_it.py"
    file.write_text(THING + '''
thing = shared(Thing)

def check_one(thing):
    """it waits"""
    Path(__file__).with_name("waits").touch()
    time.sleep(1000)
''', encoding="utf-8")
    process = subprocess.Popen([sys.executable, "-m", "pytest", "-c", HERE / "pytest.ini", "-p", "conftest", file],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                               env=dict(os.environ, PYTHONPATH=str(HERE), TMPDIR=str(tmp_path)))
    while not Path(tmp_path / "waits").exists():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    there = below(processes(), {process.pid})
    assert there
    process.send_signal(signal.SIGTERM)
    output = process.communicate()[0]
    assert process.returncode == 128 + signal.SIGTERM, output
    assert not alive(there), output


def check_guest_dies(run):
    """a guest whose QEMU dies: its check fails and shows the console, the others of this guest are skipped, with its reason"""
    ran = run('''
from processes import below, processes
guest = one_guest(name="dies", backend="none")

def check_one(guest):
    """it answers"""
    assert guest.must("echo here").strip() == "here"

def check_two(guest):
    """its QEMU dies"""
    everybody = processes()
    qemu, = [pid for pid in below(everybody, {guest.process.pid}) if everybody[pid].name.startswith("qemu-system")]
    os.kill(qemu, signal.SIGKILL)
    guest.must("echo here")

def check_three(guest):
    """it answers again"""
    guest.must("true")

def check_four():
    """what needs no guest"""
''')
    assert ran.status == 1, ran.output
    assert ran.cases == {"check_one": "passed", "check_two": "failure", "check_three": "skipped", "check_four": "passed"}, ran.output
    assert "its guest was lost: " in ran.output and "console ends with" in ran.output, ran.output
    assert ran.logs() and all(name.startswith("kagemusha-test-dies-") for name in ran.logs()), ran.logs()
