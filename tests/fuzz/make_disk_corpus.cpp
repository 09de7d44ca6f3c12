// SPDX-License-Identifier: GPL-2.0-or-later
// The valid part of disk_fuzz's corpus, made by the writer that a primary's QEMU has.
#include "disk_stream.hpp"
#include "fuzz_input.hpp"
#include "make_corpus.hpp"

namespace kagemusha::fuzz {

namespace {

constexpr std::uint32_t part = CHECKPOINT_DISK_PART_BYTES;

std::vector<std::uint8_t> filled(std::size_t bytes, std::uint8_t with) {
    return std::vector<std::uint8_t>(bytes, with);
}

bool write_stream(const std::string& path, std::uint32_t parts, std::uint16_t more, bool complete,
                  const std::vector<disk_range>& ranges) {
    writer out;
    out.value(parts);
    out.value(more);
    const auto stream = disk_stream(std::uint64_t{parts} * part + more, complete, ranges);
    out.array(std::span(stream));
    return write_file(path, out.bytes());
}

} // namespace

bool write_disk_corpus(const std::string& root) {
    const std::uint32_t zero_parts = CHECKPOINT_DISK_ZERO_BYTES / part;
    return write_stream(root + "/disk/valid-nothing", 16, 0, true, {}) &&
           write_stream(root + "/disk/valid-no-disk", 0, 0, true, {}) &&
           write_stream(root + "/disk/valid-data", 16, 0, false, {{part, part, filled(part, 0x5a)}}) &&
           write_stream(root + "/disk/valid-zeroes", 4 * zero_parts, 0, false,
                        {{0, CHECKPOINT_DISK_ZERO_BYTES, {}},
                         {CHECKPOINT_DISK_ZERO_BYTES, part, {}},
                         {std::uint64_t{3} * CHECKPOINT_DISK_ZERO_BYTES, CHECKPOINT_DISK_ZERO_BYTES, {}}}) &&
           write_stream(root + "/disk/valid-end", 4, 512, true,
                        {{0, part, {}}, {2 * part, part, filled(part, 1)}, {4 * part, 512, filled(512, 2)}});
}

} // namespace kagemusha::fuzz
