#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""An installation below a folder of its own, as the packages fill /usr: the tool finds all of its parts there.

    installation_test.py BUILD

Where this process may mount, the source tree, the build and the cache are hidden from it, so that nothing of them can be used.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
BUILD = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else None
BINARIES = ("bin/kagemusha", "bin/kage", "bin/kagemusha-gpus", "libexec/kagemusha/kagemusha-worker", "libexec/kagemusha/kagemusha-gpu",
            "libexec/kagemusha/kagemusha-daemon",
            "lib/kagemusha/qemu-system-x86_64", "lib/kagemusha/libkagemusha_device.so",
            "lib/kagemusha/libkagemusha_ptx_cuda.so", "lib/kagemusha/guest/libkagemusha_opencl.so",
            "lib/kagemusha/guest/libcuda.so.1.0")


def may_mount():
    return subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0


def assets_of_build():
    known = os.environ.get("KAGE_ASSETS")
    if known:
        return json.loads(Path(known).read_text(encoding="utf-8"))
    asked = subprocess.run([BUILD / "control/kagemusha", "assets"], stdout=subprocess.PIPE, check=True)
    return json.loads(asked.stdout)


class Installation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory(prefix="kagemusha-installation-")
        cls.home = Path(cls.place.name)
        cls.prefix = cls.home / "usr"
        subprocess.run(["cmake", "--install", BUILD, "--component", "host", "--prefix", cls.prefix],
                       stdout=subprocess.DEVNULL, check=True)
        assets = assets_of_build()
        words = [f"{name}={assets[name]}" for name in ("flavour", "qemu", "root_image", "kernel", "initramfs", "module")]
        subprocess.run([SOURCE / "scripts/install-parts", cls.prefix, *words], check=True)
        cls.hidden = [SOURCE, BUILD, Path(assets["qemu"]).parents[2]] if may_mount() else []

    @classmethod
    def tearDownClass(cls):
        cls.place.cleanup()

    def tool(self, *words, timeout=300):
        """The installed tool, for whom nothing else of ours exists."""
        command = [str(self.prefix / "bin/kagemusha"), *words]
        if self.hidden:
            empty = self.home / "empty"
            empty.mkdir(exist_ok=True)
            hide = "".join(f"[ ! -d '{folder}' ] || mount --bind '{empty}' '{folder}' && " for folder in self.hidden)
            command = ["unshare", "--mount", "sh", "-c", hide + 'exec "$@"', "sh", *command]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("KAGE", "LD_"))}
        environment.update(HOME=str(self.home), KAGEMUSHA_RUNTIME_DIR=str(self.home / "run"))
        return subprocess.run(command, env=environment, cwd=self.home, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout, check=False)

    def test_binaries_look_for_libraries_in_the_installation_only(self):
        for name in BINARIES:
            dynamic = subprocess.run(["readelf", "-d", self.prefix / name], stdout=subprocess.PIPE, text=True, check=True)
            paths = [line for line in dynamic.stdout.splitlines() if "RUNPATH" in line or "RPATH" in line]
            self.assertLessEqual(len(paths), 1, name)
            self.assertTrue(all("[$ORIGIN]" in line for line in paths), f"{name}: {paths}")

    def test_the_guests_module_does_not_tell_where_it_was_built(self):
        """Its messages have the names of files. What is built elsewhere is the same: tests/packages/rebuild."""
        module = (self.prefix / "lib/kagemusha/guest/6.12-cloud/kagemusha_vgpu.ko").read_bytes()
        self.assertIn(b"guest-driver/kernel/", module)
        self.assertNotIn(b"/modules/", module)  # the cache's folder

    def test_all_parts_are_below_the_prefix(self):
        said = self.tool("assets")
        self.assertEqual(said.returncode, 0, said.stderr)
        parts = json.loads(said.stdout)
        self.assertEqual(parts.pop("flavour"), "6.12-cloud")
        for name, path in parts.items():
            self.assertTrue(path.startswith(f"{self.prefix}/"), f"{name}: {path}")
            self.assertTrue(Path(path).exists(), f"{name}: {path}")

    def test_gpus_are_those_that_the_build_lists(self):
        said = self.tool("gpus")
        self.assertEqual(said.returncode, 0, said.stderr)
        built = subprocess.run([BUILD / "replicator/gpu/kagemusha-gpus"], stdout=subprocess.PIPE, text=True, check=True)
        self.assertTrue(said.stdout.startswith(built.stdout), said.stdout)

    def test_ptx_device_is_there(self):
        said = self.tool("gpus", "--backend", "cuda", "--driver", "ptx")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("PTX", said.stdout)

    def test_a_guest_computes(self):
        said = self.tool("run", "--quiet", "--", "clinfo", "--list")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertEqual(said.stdout.count("Device #"), 1, said.stdout)

    def test_a_described_vm_has_its_command(self):
        (self.home / "job.sh").write_text("true\n", encoding="utf-8")
        (self.home / "web.toml").write_text('name = "web"\n[boot]\nguest = "6.12-cloud"\njob = "job.sh"\n'
                                            '[gpu]\nbackend = "opencl"\n', encoding="utf-8")
        said = self.tool("qemu-command", "web.toml")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn(f"{self.prefix}/lib/kagemusha/qemu-system-x86_64", said.stdout)
        self.assertNotIn(str(SOURCE), said.stdout)

    def test_half_an_installation_says_what_to_install(self):
        for file, sentence in (("lib/kagemusha/qemu-system-x86_64", "install the package kagemusha-qemu"),
                               ("lib/kagemusha/guest/root.squashfs", "install the package kagemusha-guest-image"),
                               ("libexec/kagemusha/kagemusha-worker", "install the package kagemusha again")):
            away = self.home / "away"
            shutil.move(self.prefix / file, away)
            try:
                said = self.tool("run", "--quiet", "--", "true")
            finally:
                shutil.move(away, self.prefix / file)
            self.assertEqual(said.returncode, 125, file)
            self.assertIn(sentence, said.stderr)
        said = self.tool("run", "--quiet", "--kernel", "6.1-cloud", "--", "true")
        self.assertEqual(said.returncode, 125)
        self.assertIn("it has 6.12-cloud", said.stderr)


if __name__ == "__main__":
    if BUILD is None:
        sys.exit("usage: installation_test.py BUILD")
    if not shutil.which("patchelf"):
        print("patchelf is not installed: skipped")
        sys.exit(77)
    unittest.main(verbosity=2)
