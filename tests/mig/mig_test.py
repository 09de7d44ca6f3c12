#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""`kage gpus mig` as an administrator uses it, with fake_nvml.cpp in the place of NVIDIA's library.

    mig_test.py KAGEMUSHA GPUS NVML CUDA [PROGRAM LOOPBACK]
"""

import fcntl
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL, GPUS, LIBRARY, CUDA = sys.argv[1:5]
PROGRAM = sys.argv[5:]
INSTANCE = "MIG-00000000-0000-4000-8000-000000000101"


class Mig(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.state = self.folder / "state"
        self.runtime = self.folder / "run"
        self.runtime.mkdir(mode=0o700)
        self.state.write_text("mode 1\n")

    def mig(self, *words, library=LIBRARY):
        environment = dict(os.environ, FAKE_NVML_STATE=str(self.state), KAGEMUSHA_RUNTIME_DIR=str(self.runtime))
        return subprocess.run([TOOL, "gpus", "mig", *words, "--library", library], env=environment, text=True,
                              capture_output=True, timeout=60, check=False)

    def done(self, *words):
        said = self.mig(*words)
        self.assertEqual(said.returncode, 0, said.stderr)
        return said.stdout

    def refused(self, part, *words, **more):
        before = self.state.read_text()
        said = self.mig(*words, **more)
        self.assertEqual(said.returncode, 125, said.stdout)
        self.assertIn(part, said.stderr)
        self.assertEqual(self.state.read_text(), before)

    def gpu(self):
        return json.loads(self.done("--json"))[0]

    def test_instances_are_made_and_destroyed(self):
        self.assertIn("MIG on", self.done())
        text = self.done("--gpu", "0", "--create", "3g.40gb,1g.10gb")
        self.assertIn("an instance 3g.40gb of GPU 0 was made", text)
        made = self.gpu()["instances"]
        self.assertEqual([one["profile"] for one in made], ["3g.40gb", "1g.10gb"])
        self.assertTrue(all(one["uuid"].startswith("MIG-") for one in made))
        self.assertEqual(made[0]["memory_bytes"], 40448 << 20)
        self.assertEqual([one["id"] for one in made], [1, 2])
        self.assertEqual(self.gpu()["pci"], "0000:17:00.0")
        # Room is made first.
        self.done("--gpu", "0", "--destroy", made[0]["uuid"], "--create", "4g.40gb")
        self.assertEqual(sorted(one["profile"] for one in self.gpu()["instances"]), ["1g.10gb", "4g.40gb"])
        self.done("--gpu", "0", "--destroy-all")
        self.assertEqual(self.gpu()["instances"], [])

    def test_what_is_in_use_is_never_changed(self):
        self.done("--gpu", "0", "--create", "1g.10gb")
        made = self.gpu()["instances"][0]["uuid"]
        with self.state.open("a") as state:
            state.write("process 42 1\n")
        for words in (["--create", "1g.10gb"], ["--destroy", made], ["--destroy-all"], ["--disable"]):
            self.refused("in use by process 42", "--gpu", "0", *words)

    def test_a_vm_without_a_program_counts(self):
        entry = self.runtime / "web.json"
        with entry.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # it runs
            json.dump({"name": "web", "pid": os.getpid(), "qmp": "", "control": "", "gpu": "cuda:"}, file)
            file.flush()
            self.refused("a VM that runs here has the GPU", "--gpu", "0", "--create", "1g.10gb")
        self.done("--gpu", "0", "--create", "1g.10gb")  # it has ended

    def test_the_mode(self):
        self.state.write_text("mode 0\nreset 1\n")
        self.refused("turn it on with --enable", "--gpu", "0", "--create", "1g.10gb")
        self.assertIn("would turn MIG mode of GPU 0 on", self.done("--gpu", "0", "--enable", "--dry-run"))
        self.assertEqual(self.gpu()["mig_after_reset"], "off")
        self.assertIn("after the GPU's reset", self.done("--gpu", "0", "--enable"))
        self.assertEqual((self.gpu()["mig"], self.gpu()["mig_after_reset"]), ("off", "on"))
        self.refused("reset it or restart the host", "--gpu", "0", "--create", "1g.10gb")
        self.state.write_text("mode 1\n")
        self.assertIn("nothing to do", self.done("--gpu", "0", "--enable"))
        self.assertIn("is off", self.done("--gpu", "0", "--disable"))

    def test_what_does_not_fit(self):
        self.refused("it has 1g.10gb (7 free)", "--gpu", "0", "--create", "5g.50gb")
        self.refused("do not fit", "--gpu", "0", "--create", "3g.40gb,3g.40gb,3g.40gb")
        self.refused("name one with --gpu", "--create", "1g.10gb")
        self.refused("can't be cut", "--gpu", "1", "--create", "1g.10gb")
        # Each fits, and not both: the driver knows. What was made before is said, and stays.
        said = self.mig("--gpu", "0", "--create", "7g.80gb,1g.10gb")
        self.assertEqual(said.returncode, 125)
        self.assertIn("7g.80gb of GPU 0 was made", said.stdout)
        self.assertIn("does not fit beside the others", said.stderr)
        self.assertEqual([one["profile"] for one in self.gpu()["instances"]], ["7g.80gb"])

    def test_who_may_not_and_what_is_missing(self):
        self.state.write_text("mode 1\npermission 0\n")
        self.refused("root only", "--gpu", "0", "--create", "1g.10gb")
        self.refused("can't be opened", library=str(self.folder / "none.so"))
        self.refused("has no nvml", library="libc.so.6")

    def test_a_process_sees_the_instance_that_it_names(self):
        def listed(*gpu):
            said = subprocess.run([GPUS, "--json", "--backend", "cuda", "--options", f"driver={CUDA}", *gpu], text=True,
                                  capture_output=True, timeout=60, check=False)
            return said.returncode, json.loads(said.stdout)["gpus"]
        status, gpus = listed(INSTANCE)
        self.assertEqual((status, [gpu["own_selector"] for gpu in gpus]), (0, [INSTANCE]))
        self.assertEqual(listed(INSTANCE[:-1] + "2"), (1, []))
        self.assertEqual(listed("MIG-rubbish"), (1, []))

    def test_a_vms_worker_sees_the_instance_that_it_names(self):
        if not PROGRAM:
            self.skipTest("a build with sanitizers has no library of the guest's")

        def ran(instance):
            environment = dict(os.environ, KAGEMUSHA_LOOPBACK_BACKEND="cuda", KAGEMUSHA_LOOPBACK_GPU=instance,
                               KAGEMUSHA_LOOPBACK_OPTIONS=f"driver={CUDA}")
            return subprocess.run([*PROGRAM, "memory", "kernels"], env=environment, text=True, capture_output=True,
                                  timeout=60, check=False)
        said = ran(INSTANCE)
        self.assertEqual(said.returncode, 0, said.stderr)
        said = ran(INSTANCE[:-1] + "2")  # no GPU, and not this one
        self.assertNotEqual(said.returncode, 0)
        self.assertIn("has no device", said.stderr)

    def test_gpus_lists_them(self):
        self.done("--gpu", "0", "--create", "2g.20gb")
        environment = dict(os.environ, FAKE_NVML_STATE=str(self.state), KAGEMUSHA_RUNTIME_DIR=str(self.runtime),
                           KAGEMUSHA_NVML=LIBRARY)
        said = subprocess.run([TOOL, "gpus"], env=environment, text=True, capture_output=True, timeout=60, check=False)
        self.assertIn("GPU 0, Fake H100, 79.6 GiB: MIG on", said.stdout)
        self.assertIn(self.gpu()["instances"][0]["uuid"], said.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
