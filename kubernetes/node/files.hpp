// SPDX-License-Identifier: GPL-2.0-or-later
//
// Files that others watch: written whole or not at all.
#pragma once

#include "kubernetes/core/registration_fsm.hpp"

#include <optional>
#include <string>

namespace kagemusha::kubernetes {

// "" or why not. Readers see the old content or the new one, also after a power cut. Its folder is made.
std::string write_atomically(const std::string& path, const std::string& content);
void remove_file(const std::string& path);
bool file_is_there(const std::string& path);

// Of a socket; nothing: there is none.
std::optional<file_identity> socket_at(const std::string& path);

} // namespace kagemusha::kubernetes
