# SPDX-License-Identifier: GPL-2.0-or-later
"""
A guest as a test sees it: started by the control tool, commands run in it, QEMU asked and told things through QMP.

The guest runs guest/agent.sh, which executes what comes over a virtio-serial port. Everything that was sent, answered
and printed is in the guest's log, which is kept when a check fails.
"""
import base64
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
START_SECONDS = 600  # TCG on a busy machine; nothing is timed here, only hung guests are found
SECONDS = 300  # as long for anything else


class GuestError(Exception):
    """The guest or QEMU is gone or does not answer: no further check makes sense."""


class Result:
    def __init__(self, status, output):
        self.status, self.output = status, output

    def __repr__(self):
        return f"status {self.status}, output:\n{self.output}"


def tool():
    """The control tool of the build under test."""
    path = os.environ.get("KAGE_TOOL")
    if not path:
        raise SystemExit("KAGE_TOOL must name the built kagemusha tool (ctest does it)")
    return path


_assets = {}


def environment(kernel=None, backend="opencl"):
    """Our environment, with the parts of a guest looked up once per kernel instead of at every boot."""
    key = (kernel or os.environ.get("KAGE_KERNEL") or "", backend == "none")
    known = os.environ.get("KAGE_ASSETS")
    if known and json.loads(Path(known).read_text(encoding="utf-8"))["flavour"] == key[0]:
        return dict(os.environ)
    if key not in _assets:
        command = [tool(), "assets", "--backend", backend] + (["--kernel", key[0]] if key[0] else [])
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
        if done.returncode != 0:
            raise SystemExit("the parts of a guest are missing, see above")
        _assets[key] = tempfile.NamedTemporaryFile(prefix="kagemusha-assets-", suffix=".json")
        _assets[key].write(done.stdout)
        _assets[key].flush()
    return dict(os.environ, KAGE_ASSETS=_assets[key].name)


class Socket:
    """Lines over a Unix socket, with a time limit for each."""

    def __init__(self, path, alive, seconds=START_SECONDS):
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.socket = socket.socket(socket.AF_UNIX)
                self.socket.connect(str(path))
                break
            except OSError as error:
                self.socket.close()
                if time.monotonic() > deadline or not alive():
                    raise GuestError(f"{path.name}: {error}") from error
                time.sleep(0.05)
        self.rest = b""

    def send(self, line):
        self.socket.settimeout(60)
        try:
            self.socket.sendall(line.encode() + b"\n")
        except OSError as error:
            raise GuestError(f"cannot send: {error}") from error

    def line(self, seconds):
        deadline = time.monotonic() + seconds
        while b"\n" not in self.rest:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.socket.settimeout(left)
            try:
                got = self.socket.recv(1 << 16)
            except (TimeoutError, socket.timeout) as error:
                raise TimeoutError from error
            except OSError as error:
                raise GuestError(f"connection lost: {error}") from error
            if not got:
                raise GuestError("QEMU closed the connection")
            self.rest += got
        line, self.rest = self.rest.split(b"\n", 1)
        return line.decode("utf-8", "replace")


class Machine:
    """One QEMU with our device, started by the control tool, and told things through QMP. What its guest does is the
    caller's matter. `command`: the tool's; `extra`: more words for it, in which {directory} is the machine's own. Use as a
    context manager; leaving it kills QEMU."""

    def __init__(self, name, command, *, backend="opencl", kernel=None, device_options=(), memory=1024, cpus=2, extra=()):
        self.name = name
        self.directory = Path(tempfile.mkdtemp(prefix=f"kagemusha-test-{name}-"))
        self.log = open(self.directory / "log", "w", encoding="utf-8")
        self.events = []
        words = [tool(), command, "--backend", backend, "--memory", str(memory), "--cpus", str(cpus),
                 "--qmp", str(self.directory / "qmp"), "--verbose"]
        gpu = os.environ.get("KAGE_GPU")
        if gpu and backend == "opencl":
            words += ["--gpu", gpu]
        if kernel or os.environ.get("KAGE_KERNEL"):
            words += ["--kernel", kernel or os.environ["KAGE_KERNEL"]]
        for option in device_options:
            words += ["--device-option", option]
        words += [str(word).replace("{directory}", str(self.directory)) for word in extra]
        self.note("$ " + " ".join(words))
        self.console = open(self.directory / "console", "wb")
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=self.console,
                                        stderr=subprocess.STDOUT, env=environment(kernel, backend))

    def connect_qmp(self):
        self.qmp_socket = Socket(self.directory / "qmp", self.alive)
        self.qmp_socket.line(60)  # greeting
        self.qmp("qmp_capabilities")

    def __enter__(self):
        try:
            self.connect_qmp()
        except GuestError as error:
            self.kill()
            raise GuestError(f"QEMU does not start ({error}); {self.tail()}") from error
        return self

    def __exit__(self, kind, value, traceback):
        self.kill()
        self.log.close()
        self.console.close()

    def alive(self):
        return self.process.poll() is None

    def note(self, text):
        self.log.write(text + "\n")
        self.log.flush()

    def tail(self, lines=25):
        text = (self.directory / "console").read_bytes().decode("utf-8", "replace").splitlines()
        return f"logs in {self.directory}; end of the console:\n" + "\n".join("    | " + line for line in text[-lines:])

    def kill(self):
        """The tool kills its QEMU when it is told to stop."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def qmp(self, command, **arguments):
        self.qmp_socket.send(json.dumps({"execute": command, "arguments": arguments}))
        while True:
            try:
                answer = json.loads(self.qmp_socket.line(60))
            except TimeoutError as error:
                raise GuestError(f"QEMU does not answer {command}; {self.tail()}") from error
            if "event" in answer:
                self.events.append(answer)
            elif "error" in answer:
                raise AssertionError(f"QMP {command}: {answer['error'].get('desc')}")
            else:
                return answer["return"]

    def wait_event(self, name, seconds=SECONDS, **data):
        """Waits for a QMP event with (at least) this data."""
        def found():
            return any(event["event"] == name and all(event.get("data", {}).get(key) == value
                                                      for key, value in data.items()) for event in self.events)
        deadline = time.monotonic() + seconds
        while not found():
            try:
                message = json.loads(self.qmp_socket.line(max(0.0, deadline - time.monotonic())))
            except TimeoutError:
                raise AssertionError(f"no event {name} {data} from QEMU") from None
            if "event" in message:
                self.events.append(message)

    def stats(self):
        return self.qmp("qom-get", path="/machine/peripheral/vgpu0", property="stats")

    def wait_stats(self, condition, what, seconds=SECONDS):
        """Polls the statistics until the condition holds."""
        deadline = time.monotonic() + seconds
        while True:
            stats = self.stats()
            if condition(stats):
                return stats
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: never true; statistics: {stats}")
            time.sleep(0.2)

    def wait_idle(self, seconds=SECONDS):
        """Nothing is left of the guest's programs in the device."""
        return self.wait_stats(lambda s: s["files-open"] == 0 and s["objects"] == 0 and s["memory-bytes"] == 0
                               and s["requests-in-flight"] == 0, "all files closed and nothing left", seconds)


class Guest(Machine):
    """A VM with its guest, in which the agent runs. Use as a context manager; leaving it ends the guest in order (or kills
    it after an error)."""

    def __init__(self, name="guest", *, files=(), module_parameters="", life=1800, extra=(), **options):
        words = ["--timeout", life, "--port", "org.kagemusha.agent={directory}/agent", "--report", "{directory}/report.json",
                 "--job", HERE / "guest" / "agent.sh"]
        if module_parameters:
            words += ["--module-parameters", module_parameters]
        for file in files:
            words += ["--file", file]
        super().__init__(name, "run", extra=(*words, *extra), **options)
        self.number = 0

    def __enter__(self):
        super().__enter__()
        try:
            self.agent = Socket(self.directory / "agent", self.alive)
            deadline = time.monotonic() + START_SECONDS
            while self.agent.line(deadline - time.monotonic()) != "ready":
                pass
        except (GuestError, TimeoutError) as error:
            self.kill()
            raise GuestError(f"the guest does not start ({error}); {self.tail()}") from error
        return self

    def __exit__(self, kind, value, traceback):
        if kind is None and self.alive():
            self.end()
        super().__exit__(kind, value, traceback)

    def end(self, seconds=120):
        """Ends the agent; the guest switches itself off. Returns the tool's exit status."""
        self.agent.send("bye")
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise GuestError(f"the guest did not end; {self.tail()}") from error
        if status != 0:
            raise GuestError(f"the tool ended with status {status}; {self.tail()}")
        return status

    # ---- in the guest ----

    def run(self, script, seconds=300):
        """Runs a bash script in the guest to its end (or kills it after the time: status 124 or 137)."""
        self.note(f"--- run: {script}")
        quoted = "'" + script.replace("'", "'\\''") + "'"
        wrapped = f"timeout -k 5 {seconds} bash -c {quoted}"
        self.agent.send(base64.b64encode(wrapped.encode()).decode())
        try:
            status, _, output = self.agent.line(seconds + 120).partition(" ")
        except TimeoutError as error:
            raise GuestError(f"the guest does not answer any more; {self.tail()}") from error
        result = Result(int(status), base64.b64decode(output).decode("utf-8", "replace"))
        self.note(f"--- status {result.status}\n{result.output}")
        return result

    def must(self, script, seconds=300):
        """As run(), and the status must be 0. Returns the output."""
        result = self.run(script, seconds)
        assert result.status == 0, f"'{script}' ended with {result}"
        return result.output

    def start(self, script):
        """Starts a script in the background of the guest. Returns its number for finished(), output() and kill_job()."""
        self.number += 1
        job = f"/tmp/job{self.number}"
        quoted = "'" + script.replace("'", "'\\''") + "'"
        self.must(f"(setsid bash -c {quoted} >{job}.out 2>&1; echo $? >{job}.status) >/dev/null 2>&1 & ")
        return job

    def output(self, job):
        return self.must(f"cat {job}.out 2>/dev/null || true")

    def wait_output(self, job, text, seconds=SECONDS):
        """Waits until the background job has printed `text`."""
        script = f"for i in $(seq {seconds * 5}); do grep -qF '{text}' {job}.out && exit 0; [ ! -e {job}.status ] || exit 3; sleep 0.2; done; exit 4"
        result = self.run(script, seconds + 60)
        assert result.status == 0, f"no '{text}' from the background job, which printed: {self.output(job)}"

    def finish(self, job, seconds=300):
        """Waits for the end of a background job. Returns its Result."""
        result = self.run(f"for i in $(seq {seconds * 5}); do [ -s {job}.status ] && exec cat {job}.status; sleep 0.2; done; exit 1", seconds + 60)
        assert result.status == 0, f"the background job did not end; it printed: {self.output(job)}"
        return Result(int(result.output), self.output(job))
