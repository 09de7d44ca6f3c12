# SPDX-License-Identifier: GPL-2.0-or-later
"""
Programs of others, as Debian has them, for `--full`: each is a command that ends by itself and says whether it is right.
Their seconds are those from start to end, with what the GPU's runtime compiles meanwhile.
"""
import hashlib
import re
import shutil

WORD = "kagem"
WORDS_MD5 = hashlib.md5(WORD.encode()).hexdigest()  # hashcat's work, not a protection of anything

# `expect`: must be in what it prints (a regular expression); `needs`: the file without which it is not there.
PROGRAMS = [
    {"name": "clblast", "kind": "real", "what": "CLBlast's own tests of AXPY", "command": "clblast_test_xaxpy",
     "needs": "clblast_test_xaxpy", "expect": r"[1-9][0-9]* test\(s\) passed"},
    {"name": "clpeak", "kind": "real", "what": "clpeak: bandwidth of the GPU's memory, latency of a launch",
     "command": "clpeak --global-bandwidth --kernel-latency", "needs": "clpeak",
     "expect": r"Kernel launch latency : +[0-9.]+ us"},
    {"name": "hashcat", "kind": "real", "what": "hashcat: a word of five letters from its MD5 (not logged: a standby that executes nothing does not know its kernels)",
     # Names of its kernels are made by macros, which a standby that executes nothing does not know.
     "not_in": ["logged"],
     "command": f"hashcat -m 0 -a 3 -D 1,2 --potfile-disable --quiet {WORDS_MD5} '?l?l?l?l?l'", "needs": "hashcat",
     "expect": f"{WORDS_MD5}:{WORD}"},
]


def programs(is_there=shutil.which):
    """As results have them. What this host does not have does not run natively."""
    return [{**program, "not_in": program.get("not_in", []) + ([] if is_there(program["needs"]) else ["native"])} for program in PROGRAMS]


def wrong(program, status, said):
    """What is wrong with such a run, or ""."""
    text = "\n".join(said)
    if status != 0:
        return f"status {status}: {' / '.join(said[-3:])}"
    if not re.search(program["expect"], text):
        return f"it did not say '{program['expect']}', but: {' / '.join(said[-3:])}"
    return ""
