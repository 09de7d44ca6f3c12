// SPDX-License-Identifier: GPL-2.0-or-later
//
// The files that a guest is started from: kernel, initramfs, root image, and the payload with our drivers. They
// come with a release, and a guest that runs goes on reading those of its start. So a host keeps them
// (control/vm/kept_files.hpp), and a standby of the next release stands by with the ones that its primary names.
// What is chosen and what is dropped is decided here. Pure.
//
// What a peer says only selects among digests that this host has computed itself.
#pragma once

#include "control/ha/peer_identity.hpp"

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::ha {

// Names of parts, each with a digest as its value if the VM has such a file.
inline constexpr std::string_view guest_file_names[] = {"kernel", "initramfs", "root image", "payload"};
bool is_guest_file(std::string_view name);

// "sha256:" and 64 small hexadecimal digits.
bool is_digest(std::string_view value);

// Of a VM's files for its guest.
std::set<std::string> guest_files_of(const description_parts& parts);

// What this host is to describe itself with so that the VM can go here from a host that says `theirs`: its own
// parts, or kept files in place of some. Nothing: that is not possible.
std::optional<description_parts> parts_beside(const description_parts& own, const std::set<std::string>& kept,
                                              const description_parts& theirs);

// Of the kept files those that neither this host's release nor the VM's present run has.
std::vector<std::string> unwanted_files(const std::set<std::string>& kept, const description_parts& own,
                                        const description_parts& in_use);

} // namespace kagemusha::ha
