# SPDX-License-Identifier: GPL-2.0-or-later
"""Keeps the documents right: what they point to exists, and a line fits into 100 columns.

`scripts/tidy documents` runs it. Documents are the tree's Markdown files. Checked are

  link      a relative link: its file exists, and so does the heading behind '#'
  path      a path that begins with a folder of the tree's root, in text or in `code`: it exists. Globs,
            {a,b} and names without an ending (`control/ha/primary_fsm`) are understood, and what
            is written as a pattern (NNNN, NAME, <x>, …) is left alone
  section   "FILE.md, section 6": FILE.md has a heading "6."
  columns   100 at most, but for lines of one word (an address)

In sources (comments, scripts, CMake) the documents that they name are checked: paths that end in .md and
their sections. Code between ``` or behind four spaces is an example: only its columns are checked.
"""

import re

COLUMNS = 100
OWN_TESTS = {"tests/scripts/tidy_documents_test.py", "tests/scripts/tidy_test.py"}  # their examples name what is not there
BUILT = {"build"}  # what only a build makes can be named without being there
SOURCES = {"", ".c", ".cpp", ".h", ".hpp", ".py", ".sh", ".txt", ".cmake", ".proto", ".toml", ".build", ".1"}
PATTERN = re.compile(r"NNNN|[A-Z]{3,}\b(?!\.md)|[<>…$%]|\.\.\.")

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
DEFINITION = re.compile(r"^\[[^\]]+\]:\s+(\S+)")  # of [text][name]
FENCE = re.compile(r"^\s*(```|~~~)")
SECTION = re.compile(r"([\w./-]*[\w-]\.md\)?),?\s+section\s+(\d+)")
NAMED_DOCUMENT = re.compile(r"(?<![\w./-])((?:[\w.-]+/)+[\w.-]+\.md)\b")


def text_lines(text):
    """(number, line, is it an example) of a document."""
    fenced, indented, blank = False, False, True
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            fenced = not fenced
            yield number, line, True
            continue
        indented = line.startswith("    ") and (blank or indented)
        blank = not line.strip()
        yield number, line, fenced or indented


def slug(heading):
    """The anchor that forges make of a heading."""
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")


def headings(text):
    return [line.lstrip("#").strip() for _, line, example in text_lines(text)
            if not example and re.match(r"#{1,6} ", line)]


def has_section(text, number):
    return any(re.match(rf"{number}\.? ", heading) for heading in headings(text))


def alternatives(path):
    """{a,b} written out."""
    braces = re.search(r"\{([^{}]*)\}", path)
    if not braces:
        return [path]
    return [whole for one in braces.group(1).split(",")
            for whole in alternatives(path[:braces.start()] + one.strip() + path[braces.end():])]


def exists(root, path):
    for one in alternatives(path):
        # `control/ha/primary_fsm`: the files of that name, whatever their ending.
        if not (root / one).exists() and not any(root.glob(one)) and not any(root.glob(one + ".*")):
            return False
    return True


class Places:
    """Where documents lead. Reads each file that is asked for once."""

    def __init__(self, root):
        self.root = root
        self.folders = {path.name for path in root.iterdir() if path.is_dir() and path.name[0] != "."} - BUILT
        self.texts = {}
        # Behind the folder whatever may stand in a path; no dot or comma at the end, which are the sentence's.
        folders = "|".join(map(re.escape, sorted(self.folders))) or "(?!)"
        self.path = re.compile(rf"(?<![\w./~{{}}$-])((?:{folders})/(?:[\w./*+-]|\{{[^{{}}\s]*\}}|[A-Z<>…$])*)")

    def text(self, path):
        if path not in self.texts:
            self.texts[path] = path.read_text(encoding="utf-8", errors="replace")
        return self.texts[path]

    def link_fault(self, document, target):
        if re.match(r"[a-z]+:", target):
            return None
        name, _, anchor = target.partition("#")
        path = (document.parent / name) if name else document
        if not path.exists():
            return f"link to {target}: there is no {name}"
        if anchor and path.suffix == ".md" and anchor not in map(slug, headings(self.text(path))):
            return f"link to {target}: no heading gives #{anchor}"
        return None

    def find_document(self, document, name):
        """A document as others name it: from the root, beside them, as C++ includes, or by its name alone."""
        for path in (self.root / name, document.parent / name, self.root / "replicator" / name):
            if path.is_file():
                return path
        found = list(self.root.glob(f"docs/**/{name}")) if "/" not in name else []
        return found[0] if len(found) == 1 else None

    def section_faults(self, document, text):
        for match in SECTION.finditer(text):
            name, number = match.group(1).rstrip(")"), match.group(2)
            target = self.find_document(document, name)
            if target and not has_section(self.text(target), number):
                yield f"{name} has no section {number}"

    def path_faults(self, text):
        # What is QEMU's own is in another tree.
        for match in self.path.finditer(re.sub(r"QEMU's `?[\w./-]+", " ", text)):
            path = match.group(1).rstrip(".,")
            if not PATTERN.search(path) and not exists(self.root, path):
                yield f"there is no {path}"

    def document_faults(self, document):
        for number, line, example in text_lines(self.text(document)):
            if len(line) > COLUMNS and len(line.split()) > 1:
                yield number, f"{len(line)} columns, {COLUMNS} at most"
            if example:
                continue
            for target in LINK.findall(line) + DEFINITION.findall(line):
                fault = self.link_fault(document, target)
                if fault:
                    yield number, fault
            for fault in self.path_faults(DEFINITION.sub(" ", LINK.sub(" ", line))):
                yield number, fault
            for fault in self.section_faults(document, line):
                yield number, fault

    def source_faults(self, source):
        text = self.text(source)
        if ".md" not in text:
            return
        for number, line in enumerate(text.splitlines(), 1):
            for name in NAMED_DOCUMENT.findall(line):
                if not PATTERN.search(name) and not self.find_document(source, name):
                    yield number, f"there is no {name}"
            for fault in self.section_faults(source, line):
                yield number, fault


def faults(tree):
    """Sentences, each with its place."""
    places = Places(tree.root)
    for name, path in tree.paths.items():
        if name.startswith(".") or name in OWN_TESTS:
            continue
        if path.suffix == ".md":
            found = places.document_faults(path)
        elif path.suffix in SOURCES:
            found = places.source_faults(path)
        else:
            continue
        for number, fault in found:
            yield f"{name}:{number}: {fault}"
