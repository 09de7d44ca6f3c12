// SPDX-License-Identifier: GPL-2.0-or-later
//
// The mark of a disk image, in a file beside it: IMAGE.kagemusha. What it says is control/ha/disk_mark.hpp.
//
// The file has two slots of one block each, which are written in turns, each with a number that counts up and
// a checksum. So a mark that was written is replaced in place, without room on the file system, and whatever
// a loss of power leaves of the one slot, the other one is there.
//
//   0     4096    8192
//   │ slot │ slot │      slot: "kagemusha-disk-mark COUNT CRC32 MARK\n", then blank lines
//
// Earlier releases wrote one line, "copy: …" or "protected: …", which is read without a lineage, and no
// file for `newest`.
#pragma once

#include "control/ha/disk_mark.hpp"

#include <string>
#include <vector>

namespace kagemusha::control {

// Of all images of one VM (ha::least). `error`: a sentence when one can't be read.
ha::disk_mark read_marks(const std::vector<std::string>& images, std::string& error);

// What was written to the images is on the disk when it returns. A sentence when that failed. Not enough
// while a QEMU has them open: it keeps tables of qcow2 in its memory.
std::string flush_images(const std::vector<std::string>& images);

// Is on the disk when it returns. A sentence when that failed.
std::string write_marks(const std::vector<std::string>& images, const ha::disk_mark& mark);

} // namespace kagemusha::control
