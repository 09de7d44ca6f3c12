#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What debian/ declares, without a build: it fits what the documents promise, and what the lists of packages bring."""
import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEBIAN = ROOT / "debian"


def paragraphs():
    return [dict(re.findall(r"(?m)^([\w-]+):((?:.*)(?:\n[ \t].*)*)", text))
            for text in (DEBIAN / "control").read_text(encoding="utf-8").split("\n\n") if text.strip()]


def names_in(path):
    lines = (line.split("#")[0].split() for line in path.read_text(encoding="utf-8").splitlines())
    return {name for words in lines if words for name in words[0].split("|")}


def code(document):
    """The marked words of a document, without its blocks."""
    return set(re.findall(r"`([^`\n]+)`", re.sub(r"(?s)^```.*?^```", "", document, flags=re.MULTILINE)))


def installed_by(package):
    """The files that debian/PACKAGE.install puts somewhere: (source, place). The second is "" for a place in debian/tmp."""
    lines = (line.split() for line in (DEBIAN / f"{package}.install").read_text(encoding="utf-8").splitlines())
    return [(words[0], words[1] if len(words) > 1 else "") for words in lines if words and not words[0].startswith("#")]


class Declared(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.source, *cls.packages = paragraphs()
        cls.names = [package["Package"].strip() for package in cls.packages]
        cls.document = (ROOT / "docs/packages.md").read_text(encoding="utf-8")

    def test_the_lists_bring_what_the_build_depends_on(self):
        brought = names_in(ROOT / "scripts/packages/host.list") | names_in(ROOT / "scripts/packages/packages.list")
        brought |= {"debhelper-compat", "dh-sequence-dkms", "pkgconf"}  # of debhelper, dh-dkms, pkg-config
        for wanted in self.source["Build-Depends"].split(","):
            names = [one.split()[0] for one in wanted.split("|")]
            self.assertTrue(brought.intersection(names), f"no list of scripts/packages has {' or '.join(names)}")

    def test_the_build_depends_on_each_library_that_the_sources_need(self):
        """What a clone is compiled with, the packages are: scripts/packages/host.list has it for both."""
        wanted = {word for field in self.source["Build-Depends"].replace("|", ",").split(",") for word in field.split()[:1]}
        lines = (line.split("#")[0].split() for line in (ROOT / "scripts/packages/host.list").read_text(encoding="utf-8").splitlines())
        compilers = re.compile("dpkg-dev|libclang-rt-")  # of every build; of fuzzers
        libraries = [words[0].split("|") for words in lines if words and words[0].endswith("-dev") and not compilers.match(words[0])]
        self.assertGreater(len(libraries), 15)
        for names in libraries:
            self.assertTrue(wanted.intersection(names), f"debian/control: Build-Depends lacks {' or '.join(names)}")

    def test_the_document_has_each_package(self):
        listed = re.findall(r"(?m)^\| `([a-z0-9-]+)` \|", self.document.split("## Build them")[0])
        self.assertEqual(sorted(listed), sorted(self.names))

    def test_the_document_has_each_unit(self):
        units = {re.sub(r"^[\w-]+@?\.(?=kagemusha)|\.service$", "", path.name) for path in DEBIAN.glob("*.service")}
        self.assertGreaterEqual(len(units), 6)
        for unit in units:
            self.assertTrue(any(word.split("@")[0] == unit.rstrip("@") for word in code(self.document)), f"docs/packages.md says nothing of {unit}")

    def test_documents_that_are_named_by_their_files_are_there(self):
        """The package kagemusha-doc puts them beside those of kagemusha, as debhelper has it, uncompressed."""
        named = {found for path in [*DEBIAN.glob("*.service"), *(DEBIAN / "tests").iterdir()]
                 for found in re.findall(r"/usr/share/doc/([\w./-]+\.md)", path.read_text(encoding="utf-8"))}
        self.assertGreaterEqual(len(named), 3)
        for name in named:
            self.assertTrue(name.startswith("kagemusha/"), name)
            self.assertTrue((ROOT / name.removeprefix("kagemusha/")).exists(), name)
        self.assertIn("dh_compress -X.md", (DEBIAN / "rules").read_text(encoding="utf-8"))

    def test_rules_install_each_unit(self):
        rules = (DEBIAN / "rules").read_text(encoding="utf-8")
        for path in DEBIAN.glob("*.service"):
            name = path.name.removesuffix(".service").split(".")[-1]
            self.assertTrue(path.name == "kagemusha@.service" or re.search(rf"for name in .*\b{name}\b", rules), f"{path.name} is not installed")

    def test_no_unit_with_vms_is_stopped_or_restarted_by_an_upgrade(self):
        calls = re.findall(r"dh_installsystemd .*", (DEBIAN / "rules").read_text(encoding="utf-8"))
        self.assertGreaterEqual(len(calls), 3)
        for call in calls:
            self.assertIn("--no-start", call)
            self.assertIn("--no-enable", call)
            if "-pkagemusha-k8s" not in call:  # its units may: VMs are in pods
                self.assertIn("--no-stop-on-upgrade", call)

    def test_the_build_stops_when_a_package_tells_where_it_was_built(self):
        """The tool has a place of our scripts, QEMU a RUNPATH: in packages both are those of an installation."""
        rules = (DEBIAN / "rules").read_text(encoding="utf-8")
        self.assertIn("-DKAGEMUSHA_SOURCE_ROOT=/usr/share/kagemusha", rules)
        self.assertIn("export KAGEMUSHA_QEMU_RPATH = $$ORIGIN", rules)
        self.assertIn("-DCMAKE_CXX_COMPILER_LAUNCHER=$(ccache)", rules)  # without the base that clones' has
        check = re.search(r"override_dh_builddeb:\n\t! grep .*'\$\(CURDIR\)/' (.*)", rules)
        self.assertIsNotNone(check)
        for name in self.names:
            self.assertTrue(any(Path(f"debian/{name}").match(place.rstrip("/")) for place in check.group(1).split()), name)

    def test_no_file_is_in_two_packages(self):
        """What one package takes with its whole folder, another must not take file by file."""
        taken = [(package, source.rstrip("/")) for package in self.names if (DEBIAN / f"{package}.install").exists()
                 for source, place in installed_by(package) if not place]
        self.assertGreater(len(taken), 15)
        for package, folder in taken:
            for other, source in taken:
                self.assertFalse(package != other and f"{source}/".startswith(f"{folder}/"), f"{package} has all of {folder}, and {other} has {source}")

    def test_programs_in_the_path_have_a_page(self):
        programs = {Path(source).name for package in self.names if (DEBIAN / f"{package}.install").exists()
                    for source, place in installed_by(package) if source.startswith("usr/bin/") or place == "usr/bin"}
        pages = {Path(line.split()[-1]).name for path in [*DEBIAN.glob("*.manpages"), DEBIAN / "kagemusha.links"]
                 for line in path.read_text(encoding="utf-8").splitlines() if line.endswith(".1")}
        self.assertEqual({f"{program}.1" for program in programs}, pages)

    def test_places_in_the_documents_are_places_of_packages(self):
        for package, document, prefix in (("kagemusha-slurm", "slurm.md", "/usr/libexec/kagemusha/slurm/"),
                                          ("kagemusha-slurm", "slurm.md", "/usr/share/kagemusha/slurm/")):
            told = set(re.findall(re.escape(prefix) + r"([\w.-]+)", (ROOT / "docs" / document).read_text(encoding="utf-8")))
            self.assertTrue(told, document)
            there = {Path(source).name for source, place in installed_by(package)
                     if f"/{source}".startswith(prefix) or f"/{place}/" == prefix}
            self.assertLessEqual(told, there, document)
        kubernetes = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
        self.assertIn(("kubernetes/manifests/*.yaml", "usr/share/kagemusha/kubernetes"), installed_by("kagemusha-k8s"))
        self.assertIn("`/usr/share/kagemusha/kubernetes`", kubernetes)
        for name in re.findall(r"(?m)^\| `([\w-]+\.yaml)` \|", kubernetes):
            self.assertTrue((ROOT / "kubernetes/manifests" / name).exists(), name)

    def test_components_of_the_source_package_have_their_copyright(self):
        copyright_file = (DEBIAN / "copyright").read_text(encoding="utf-8")
        packed = set(re.findall(r"(?m)^ +component (\w+) ", (ROOT / "scripts/make-packages").read_text(encoding="utf-8")))
        self.assertEqual(packed, {"guest", "meson", "qemu", "xterm", "zydis"})
        for name in packed:
            self.assertIn(f"\nFiles: {name}/*\n", copyright_file)
            self.assertIn(f"| `{name}` |", self.document)

    def test_tests_of_the_packages_are_programs_that_exist(self):
        text = (DEBIAN / "tests/control").read_text(encoding="utf-8")
        named = set(re.findall(r"(?m)^Tests: (\S+)$", text))
        self.assertEqual(named, {path.name for path in (DEBIAN / "tests").iterdir() if path.name != "control"})
        for name in named:
            self.assertTrue((DEBIAN / "tests" / name).stat().st_mode & 0o111, name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
