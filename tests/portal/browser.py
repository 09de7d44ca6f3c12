# SPDX-License-Identifier: GPL-2.0-or-later
"""The other end of driver.mjs: a browser, whose steps are methods."""
import json
import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
ACTIONS = {"click", "fill", "check", "choose", "type", "press"}


def xterm():
    """The folder of xterm.js, for the environment of a daemon."""
    return subprocess.run([str(HERE.parent.parent / "scripts" / "fetch-xterm")], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


class BrowserError(AssertionError):
    pass


def missing():
    """What this machine lacks for a browser: a sentence, or None."""
    for program in ("chromium", "node", "npm"):
        if not shutil.which(program):
            return f"no {program} here (./kage build installs it)"
    if subprocess.run([str(HERE / "modules")], stdout=subprocess.DEVNULL, check=False).returncode:
        return "npm's registry does not answer, and playwright-core and axe-core were not fetched before"
    return None


class Browser:
    """with Browser() as b: b.open("https://…"); the page of `person` is where steps happen."""

    def __init__(self):
        modules = subprocess.run([str(HERE / "modules")], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        self.process = subprocess.Popen(["node", str(HERE / "driver.mjs")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=dict(os.environ, KAGE_NODE_MODULES=modules))
        self.person = "first"
        self.actions = 0  # that a person would have done
        self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        assert line, f"the browser has ended with {self.process.wait()}"
        said = json.loads(line)
        if "error" in said:
            raise BrowserError(said["error"])
        return said

    def __getattr__(self, step):
        def run(*values, **words):
            self.actions += step in ACTIONS
            names = {"open": ("url",), "fill": ("selector", "value"), "choose": ("selector", "value"), "press": ("keys",),
                     "type": ("text",), "evaluate": ("script",), "until": ("script",), "shot": ("path",), "scheme": ("dark",),
                     "size": ("width", "height"), "attribute": ("selector", "name")}.get(step, ("selector",))
            words.update(zip(names, values))
            self.process.stdin.write(json.dumps({"step": step, "page": self.person, **words}) + "\n")
            self.process.stdin.flush()
            return self.answer()
        return run

    def see(self, selector):
        """The text of what is there, once it is there."""
        self.wait(selector)
        return self.text(selector)["text"]

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
