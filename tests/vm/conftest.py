# SPDX-License-Identifier: GPL-2.0-or-later
"""
How pytest runs our checks. What it does here beyond its own:

* options say what is tested (`pytest --help`, "whole VMs"); each has an environment variable, too, which programs that are no
  tests read
* a check's line says its docstring and how long it took; a failed one shows the ends of all consoles and logs
* `story`: after a failure the rest of the story is skipped; so are other checks of a guest that is lost
* --deadline: a check that hangs fails where it hangs, and what it started is ended
* no process of a module outlives it: one that does is killed, and is a failure
* nothing but skipped checks: exit status 77, which ctest shows as a test that was skipped
"""
import ctypes
import os
import signal
import time
from pathlib import Path

import pytest

import places
from guest_vm import GuestError, Machine
from processes import alive, below, processes

ROOT = Path(__file__).resolve().parent.parent.parent
SKIPPED = 77
PR_SET_CHILD_SUBREAPER = 36

collect_ignore = ["test_soak.py", "test_flush.py"]  # programs: campaigns of hours

# option, environment variable, what it is
OPTIONS = (
    ("--kernel", "KAGE_KERNEL", "the guest's kernel: 6.1-cloud, 6.1-amd64, 6.12-cloud (default), 6.12-amd64"),
    ("--gpu", "KAGE_GPU", "an OpenCL device of this machine, as `./kage gpus` lists them"),
    ("--accel", "KAGE_ACCEL", "tcg: no hardware virtualization"),
    ("--assets", "KAGE_ASSETS", "a file with what `kagemusha assets` prints: QEMU, kernel, the parts of a guest"),
    ("--kills", "KAGE_KILLS", "how often the primary is killed, where a test does so again and again"),
    ("--seed", "KAGE_SEED", "of what is drawn at random, where a test prints it"),
)

# Programs of the build: environment variable, its name
PROGRAMS = {"KAGE_TOOL": "control/kagemusha", "KAGE_CL_JOB": "kagemusha_cl_job", "KAGE_NET_JOB": "kagemusha_net_job",
            "KAGE_SOAK_JOB": "kagemusha_soak_job", "KAGE_REGISTER_JOB": "kagemusha_register_job",
            "KAGE_FLUSH_JOB": "kagemusha_flush_job", "KAGE_DIFFER_JOB": "kagemusha_differ_job",
            "KAGE_CUDA_JOB": "kagemusha_cuda_job",
            "KAGE_CUDA_CHECK": "kagemusha_cuda_check", "KAGE_CL_CHECK": "kagemusha_cl_check",
            "KAGE_UAPI_TEST": "kagemusha_vgpu_uapi_test"}
FOLDERS = ("", "tests/vm", "tests/opencl", "tests/cuda", "guest-driver/kernel/test")


def pytest_addoption(parser):
    group = parser.getgroup("whole VMs")
    group.addoption("--build", help="the build under test (KAGE_BUILD_DIR; default: build/default of this tree)")
    for option, variable, text in OPTIONS:
        group.addoption(option, help=f"{text} ({variable})")
    group.addoption("--long", action="store_true", help="checks that take an hour, too (KAGE_LONG)")
    group.addoption("--keep-logs", action="store_true", help="keep logs although nothing failed (KAGE_KEEP_LOGS)")
    group.addoption("--clblast", default="", metavar="NAME,…",
                    help="of test_clblast.py: only these programs, without their clblast_test_")
    group.addoption("--leave", type=float, default=60, metavar="SECONDS",
                    help="how long what was ended may take to be gone, on a busy machine")
    group.addoption("--deadline", type=int, metavar="SECONDS",
                    help="what runs so long after the beginning hangs: it fails, and the rest is skipped")


def pytest_configure(config):
    set_environment(config)
    # Whatever loses its parent becomes a child of ours, so that nothing is left unnoticed.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("SIGTERM", 128 + signal.SIGTERM))
    config.pluginmanager.register(Deadline(config.getoption("--deadline")), "kagemusha-deadline")


def set_environment(config):
    """What modules read when they are imported."""
    chosen = config.getoption("--build")
    build = Path(chosen or os.environ.get("KAGE_BUILD_DIR") or ROOT / "build" / "default").resolve()
    os.environ["KAGE_BUILD_DIR"] = str(build)
    for variable, program in PROGRAMS.items():
        if chosen or variable not in os.environ:
            found = [build / folder / program for folder in FOLDERS if (build / folder / program).is_file()]
            # One that was not built is missed by whoever runs it, not by the others.
            os.environ[variable] = str(found[0] if found else build / program)
    for option, variable, _ in OPTIONS:
        if (value := config.getoption(option)) is not None:
            os.environ[variable] = value
    for option, variable in (("--long", "KAGE_LONG"), ("--keep-logs", "KAGE_KEEP_LOGS")):
        if config.getoption(option):
            os.environ[variable] = "1"


class Hung(BaseException):
    """At the deadline, where a check was then. No `except Exception` of a check takes it."""


class Deadline:
    """Nobody judges by the clock: this is far behind what anything takes, and before ctest kills us all."""

    def __init__(self, seconds):
        self.seconds, self.passed = seconds, False

    def pytest_sessionstart(self):
        if self.seconds:
            signal.signal(signal.SIGALRM, self.ring)
            signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def ring(self, *_):
        self.passed = True
        raise Hung(f"it hangs: {self.seconds} s after the beginning it was here")

    def pytest_runtest_setup(self):
        if self.passed:
            pytest.skip("the time is over: another check hung")


# ---- which checks, in which state ----

def pytest_collection_modifyitems(config, items):
    if os.environ.get("KAGE_LONG"):
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


failed_stories = set()


def story_of(item):
    """What a story is told with: its file, and which of several guests."""
    if not item.get_closest_marker("story"):
        return None
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return item.path, str(sorted(parameters.items()))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    failures_before.setdefault(item.path, item.session.testsfailed)
    if story_of(item) in failed_stories:
        pytest.skip("the story has failed before")
    for thing in shared_by(item):
        if getattr(thing, "lost", None):
            pytest.skip(f"its guest was lost: {thing.lost}")


def shared_by(item):
    """What fixtures of the module have made already for this check, of those that outlive it."""
    return [place.thing for place in places.known.values() if place.name in item.fixturenames and place.path == item.path]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    report.line = line_of(item)
    if call.when == "call":
        item.user_properties.append(("line", report.line))
    if not report.failed:
        return
    failed_stories.add(story_of(item))
    failed_stories.discard(None)
    for value in getattr(item, "funcargs", {}).values():
        if isinstance(value, Machine):
            if not value.log.closed:
                value.note(report.longreprtext)
            if isinstance(call.excinfo.value, (GuestError, Hung)):
                value.lost = (str(call.excinfo.value) or "for no reason that was said").splitlines()[0]
    for place in places.known.values():
        place.failed = True
        report.sections.append((f"logs kept: {place.directory}", place.ends_of_logs()))


def line_of(item):
    text = " ".join((item.function.__doc__ or item.name).split())
    return text.format(**item.callspec.params) if hasattr(item, "callspec") and "{" in text else text


def pytest_report_teststatus(report):
    if report.when == "call" and report.passed:
        return "passed", ".", f"ok ({report.duration:.1f} s): {report.line}"
    if report.failed and hasattr(report, "line"):  # else a file that can't be read
        what = "FAIL" if report.when == "call" else f"FAIL ({report.when})"
        return "failed", "F", f"{what} ({report.duration:.1f} s): {report.line}"
    return None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    kill_what_is_left()
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus == pytest.ExitCode.OK and reporter and not reporter.stats.get("passed") and reporter.stats.get("skipped"):
        session.exitstatus = SKIPPED


# ---- what is left behind ----

def described(everybody, pid):
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        words = ""
    return f"{pid} {everybody[pid].name}: {words[:200]}"


def left_behind():
    """Those that live and came from us."""
    return alive(below(processes(), {os.getpid()}))


def kill_what_is_left():
    """Those that outlived their file, as text."""
    everybody, left = processes(), left_behind()
    names = [described(everybody, pid) for pid in left if pid in everybody]
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return names


failures_before = {}  # of each file


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """A process that outlives its file is killed, and is a failure; after a failure it is only killed. No fixture: pytest may
    end what others have made after it."""
    if nextitem and nextitem.path == item.path:
        return
    failed = item.session.testsfailed > failures_before[item.path]
    until = time.monotonic() + item.config.getoption("--leave")
    while left_behind() and not failed and time.monotonic() < until:
        time.sleep(0.05)
    names = kill_what_is_left()
    assert failed or not names, "left behind: " + "; ".join(names)
