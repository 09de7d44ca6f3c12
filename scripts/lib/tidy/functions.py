# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds the functions of a C or C++ file and their lines, without a compiler.

A function is a pair of braces outside of any other function whose opening brace follows a parameter list. So a lambda
belongs to the function that it stands in, and a test (`TEST(a, b) {`) is a function. Preprocessor lines are left out,
and of `#if … #else …` only the first branch is read: both may open the same brace.
"""

import re

_TOKEN = re.compile(
    r"""(?P<raw>\bu?8?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)")"""
    r"""|(?P<string>"(?:\\.|[^"\\\n])*")"""
    r"""|(?P<char>(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+')"""
    r"""|(?P<block>/\*.*?\*/)"""
    r"""|(?P<line>//[^\n]*)""",
    re.DOTALL)
_CONDITION = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b")
# What may stand between the parameters and the brace: qualifiers, a trailing type, initialisers.
_FUNCTION = re.compile(r"\)\s*(?:(?:const|noexcept|override|final|mutable|try|requires|&&?|__\w+)[^;{}]*"
                       r"|->[^;{}]*|:(?!:)[^;{}]*)?$", re.DOTALL)
_TYPE = re.compile(r"^\s*(?:template\s*<.*>\s*)?(?:typedef\s+)?(?:namespace|class|struct|union|enum|extern)\b[^()]*$",
                   re.DOTALL)
_TEST = re.compile(r"\bTEST(?:_[FP])?\s*\(\s*(\w+)\s*,\s*(\w+)\s*\)")
_NAME = re.compile(r"(operator\s*[^\s(]+|~?\w+)\s*\(")


def _blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def _without_preprocessor(text):
    lines, skipped, continued = [], [], False
    for line in text.split("\n"):
        condition = None if continued else _CONDITION.match(line)
        if condition:
            word = condition.group(1)
            if word.startswith("if"):
                skipped.append(False)
            elif word == "endif":
                if skipped:
                    skipped.pop()
            elif skipped:
                skipped[-1] = True
        is_directive = continued or line.lstrip().startswith("#")
        continued = is_directive and line.endswith("\\")
        lines.append("" if is_directive or any(skipped) else line)
    return "\n".join(lines)


def _name(head):
    test = _TEST.search(head)
    if test:
        return f"{test.group(1)}.{test.group(2)}"
    names = [name for name in _NAME.findall(head) if name not in ("__attribute__", "noexcept", "requires", "decltype")]
    return names[0] if names else "?"


def functions(text):
    """(name, first line, number of lines) of each function: from the line of its brace to the one that closes it."""
    text = _without_preprocessor(_TOKEN.sub(_blank, text))
    found, depth, inside, head, line, parentheses = [], 0, None, "", 1, 0
    for char in text:
        if char == "\n":
            line += 1
        if inside is None and char in "()":
            parentheses += 1 if char == "(" else -1
        if char == "{":
            if inside is None and parentheses == 0 and _FUNCTION.search(head) and not _TYPE.search(head):
                inside = (depth, _name(head), line)
            depth += 1
            head = ""
        elif char == "}":
            depth -= 1
            if inside and inside[0] == depth:
                found.append((inside[1], inside[2], line - inside[2] + 1))
                inside, parentheses = None, 0
            head = ""
        elif char == ";" and parentheses == 0:
            head = ""
        elif inside is None:
            head += char
    return found
