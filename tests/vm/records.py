# SPDX-License-Identifier: GPL-2.0-or-later
"""
What guest/net_job.cpp keeps of its statements on a writable disk with ext4 (`keep FILE`): a record each, written and
synchronised before the peer is told. Read from outside, from a raw image.
"""
import os
import shutil
import struct
import subprocess

RECORD_BYTES = 4096
PIECE_BYTES = 256 * RECORD_BYTES
MASK = (1 << 64) - 1


def program(name):
    """Of e2fsprogs. Debian leaves their directory out of an ordinary user's path."""
    return shutil.which(name) or f"/usr/sbin/{name}"


def mix(a, b):
    x = (a * 0x9e3779b97f4a7c15 & MASK) ^ b
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9 & MASK
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb & MASK
    return x ^ (x >> 31)


def record(block):
    """(number, chain before, chain) of an intact record of net_job.cpp; None: it is none, and an error if it is broken"""
    if block[:8] != b"RECORD01":
        return None
    words = struct.unpack("<512Q", block)
    checksum = 0
    for word in words[:-1]:
        checksum = mix(checksum, word)
    assert checksum == words[-1], f"record {words[1]} is broken"
    return words[1], words[3], words[4]


def make_file_system(path, size_bytes):
    with open(path, "wb") as image:
        image.truncate(size_bytes)
    subprocess.run([program("mkfs.ext4"), "-q", "-b", "4096", str(path)], check=True)


def dump(image, name, to):
    """A file of an ext4 file system"""
    subprocess.run([program("debugfs"), "-R", f"dump /{name} {to}", str(image)], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)


def missed(image, told):
    """Those of the told statements that are not in this image, which a VM may have open."""
    wanted, found = {s.number for s in told}, set()
    for block in blocks(image):
        if block[:8] != b"RECORD01" or int.from_bytes(block[8:16], "little") not in wanted:
            continue
        try:
            one = record(block)
        except AssertionError:
            one = None  # on its way to the image at this moment; one that was told is missed below
        if one:
            found.add((one[0], one[2]))
    return [s for s in told if (s.number, s.chain) not in found]


def blocks(image):
    """Those that hold anything."""
    with open(image, "rb", buffering=0) as file:
        end = 0
        while True:
            try:
                begin = os.lseek(file.fileno(), end, os.SEEK_DATA)
                end = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
            except OSError:
                return  # nothing but holes
            file.seek(begin - begin % RECORD_BYTES)
            while file.tell() < end and (data := file.read(min(PIECE_BYTES, end - file.tell()))):
                for at in range(0, len(data), RECORD_BYTES):
                    yield data[at:at + RECORD_BYTES]


def check_history(image, said, path):
    """Of a file system that was unmounted: it is clean, its file `records` is all that was said, once and in order. `path`:
    where the file is put. → records, told ones"""
    done = subprocess.run([program("e2fsck"), "-fn", str(image)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    assert done.returncode == 0, done.stdout
    dump(image, "records", path)
    told = {s.number: s.chain for s in said}
    chain, count = 0, 0
    with open(path, "rb") as records:
        while block := records.read(RECORD_BYTES):
            number, before, after = record(block)
            count += 1
            assert (number, before) == (count, chain), f"{number} ({before:x}) after {count - 1} ({chain:x})"
            assert told.get(number, after) == after, f"{number} was told otherwise"
            chain = after
    assert count >= max(told), f"{count} records, but {max(told)} were told"
    return count, len(told)
