#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""scripts/make-sbom on packages that this test makes: what is listed, and what is refused.

Where CycloneDX' own Python library is (Debian 13), it checks the file against the standard's schema, too.
"""
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator
except ImportError:
    JsonStrictValidator = None

TOOL = Path(__file__).resolve().parents[2] / "scripts/make-sbom"
VERSION = "1.0~2-1~deb12"


def make_deb(folder, name, version=VERSION, **fields):
    root = folder / "deb"
    (root / "DEBIAN").mkdir(parents=True)
    control = {"Package": name, "Version": version, "Architecture": "amd64", "Maintainer": "A <a@b.example>",
               "Description": f"{name} of a test", **fields}
    (root / "DEBIAN/control").write_text("".join(f"{key}: {value}\n" for key, value in control.items()), encoding="utf-8")
    subprocess.run(["dpkg-deb", "--build", root, folder], stdout=subprocess.DEVNULL, check=True)
    shutil.rmtree(root)


class Sbom(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory(prefix="kagemusha-sbom-")
        self.addCleanup(place.cleanup)
        self.packages, self.tree = Path(place.name) / "packages", Path(place.name) / "tree"
        self.packages.mkdir()
        (self.tree / "guest/root").mkdir(parents=True)
        make_deb(self.packages, "kagemusha", Depends=f"kagemusha-qemu (= {VERSION}), libc6 (>= 2.34), libfmt9 | other")
        make_deb(self.packages, "kagemusha-qemu", Depends="libc6 (>= 2.34)")
        make_deb(self.packages, "kagemusha-guest-image")
        make_deb(self.tree / "guest/root", "hashcat", "6.2.6+ds1-1")
        tarballs = "".join(f"\n {digit * 64} 17 kagemusha_1.0~2.orig-{name}.tar.gz" for digit, name in (("a", "qemu"), ("b", "guest")))
        self.write("kagemusha_1.dsc", "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA512\n\n"
                   f"Source: kagemusha\nVersion: {VERSION}\nChecksums-Sha256:{tarballs}\n\n-----BEGIN PGP SIGNATURE-----\n\nx\n")
        self.write("kagemusha_1.buildinfo", "Source: kagemusha\nBuild-Architecture: amd64\n"
                   "Installed-Build-Depends:\n g++-12 (= 12.2.0-14),\n libc6 (= 2.36-9+deb12u1)\n")

    def write(self, name, text):
        (self.packages / name).write_text(text, encoding="utf-8")

    def make(self, *more):
        out = self.packages / "bom.json"
        said = subprocess.run([TOOL, "--packages", self.packages, "--tree", self.tree, "--release", "bookworm", "--epoch", "1700000000",
                               "--component", "qemu=1:10.0.13", *more, "--out", out], stderr=subprocess.PIPE, text=True, check=False)
        return (json.loads(out.read_text(encoding="utf-8")), out.read_text(encoding="utf-8")) if said.returncode == 0 else said.stderr

    def refused(self, sentence):
        said = self.make()
        self.assertIsInstance(said, str, "it was not refused")
        self.assertIn(sentence, said)
        self.assertNotIn("Traceback", said)

    def test_everything_in_the_packages_is_listed_with_what_it_is_in(self):
        sbom, text = self.make()
        parts = {part["bom-ref"]: part for part in sbom["components"]}
        edges = {edge["ref"]: edge["dependsOn"] for edge in sbom["dependencies"]}
        with open(next(self.packages.glob("kagemusha_*.deb")), "rb") as file:
            self.assertEqual(parts["package:kagemusha"]["hashes"][0]["content"], hashlib.file_digest(file, "sha256").hexdigest())
        self.assertEqual(parts["guest:hashcat@6.2.6+ds1-1"]["purl"], "pkg:deb/debian/hashcat@6.2.6%2Bds1-1?arch=amd64&distro=bookworm")
        self.assertEqual(parts["source:qemu"]["hashes"][0]["content"], "a" * 64)
        self.assertEqual(parts["debian:libc6"]["version"], "2.36-9+deb12u1")
        self.assertEqual((parts["debian:libc6"]["scope"], parts["debian:g++-12"]["scope"]), ("required", "excluded"))
        self.assertNotIn("version", parts["debian:libfmt9"])
        self.assertEqual(edges["package:kagemusha"], ["debian:libc6", "debian:libfmt9", "debian:other", "package:kagemusha-qemu"])
        self.assertEqual(edges["package:kagemusha-guest-image"], ["source:guest"])
        self.assertEqual(edges["source:guest"], ["guest:hashcat@6.2.6+ds1-1"])
        self.assertEqual(sbom["metadata"]["timestamp"], "2023-11-14T22:13:20Z")
        if JsonStrictValidator:
            self.assertIsNone(JsonStrictValidator(SchemaVersion.V1_5).validate_str(text))

    def test_the_same_packages_give_the_same_file(self):
        self.assertEqual(self.make()[1], self.make()[1])

    def test_a_changed_package_changes_checksum_and_serial_number(self):
        before = self.make()[0]
        make_deb(self.packages, "kagemusha-qemu", Depends="libc6 (>= 2.36)")
        after = self.make()[0]
        self.assertNotEqual(before["serialNumber"], after["serialNumber"])

    def test_packages_of_two_builds_are_refused(self):
        make_deb(self.packages, "kagemusha-doc", "0.9-1")
        self.refused("packages of other versions than 1.0~2-1~deb12: kagemusha-doc 0.9-1")

    def test_two_builds_are_refused(self):
        self.write("other.buildinfo", "Source: kagemusha\n")
        self.refused("has 2 files *.buildinfo, and one is needed")

    def test_a_package_that_is_none_is_refused(self):
        self.write("kagemusha-doc_1.deb", "this is no archive")
        self.refused("is not a Debian package")

    def test_a_build_without_its_packages_is_refused(self):
        self.write("kagemusha_1.buildinfo", "Source: kagemusha\nBuild-Architecture: amd64\n")
        self.refused("lacks the field 'Installed-Build-Depends'")

    def test_a_guest_image_of_nothing_is_refused(self):
        shutil.rmtree(self.tree / "guest/root")
        self.refused("holds no package")

    def test_a_tarball_that_is_in_no_package_is_refused(self):
        path = self.packages / "kagemusha_1.dsc"
        self.write(path.name, path.read_text(encoding="utf-8").replace("orig-qemu", "orig-surprise"))
        self.refused("nobody says which package has it inside")

    def test_a_tarball_without_a_version_is_refused(self):
        path = self.packages / "kagemusha_1.dsc"
        self.write(path.name, path.read_text(encoding="utf-8").replace("orig-qemu", "orig-zydis"))
        self.refused("--component zydis=VERSION")

    def test_a_component_that_nothing_has_is_refused(self):
        for path in self.packages.glob("kagemusha-qemu_*.deb"):
            path.unlink()
        self.refused("source:qemu is in no package")


if __name__ == "__main__":
    if not shutil.which("dpkg-deb"):
        print("dpkg-deb is not there: skipped")
        sys.exit(77)
    unittest.main(verbosity=2)
