// SPDX-License-Identifier: GPL-2.0-or-later
// What the parts of make_corpus share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kagemusha::fuzz {

// False, and a line on standard error, if it can't be written.
bool write_file(const std::string& path, const std::vector<std::uint8_t>& bytes);

// message/, entry/ and vm_state/ of the corpus.
bool write_message_corpus(const std::string& root);

// disk/
bool write_disk_corpus(const std::string& root);

// cuda_image/
bool write_image_corpus(const std::string& root);

} // namespace kagemusha::fuzz
