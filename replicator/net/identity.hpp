// SPDX-License-Identifier: GPL-2.0-or-later
// identity: who may be at an end of a link, as it is written into certificates (`kage keys --vm`) and as the
// other end expects it. Pure.
//
// A certificate is good for one VM, one role and one part. The part keeps a QEMU, which a guest may have
// taken over, from speaking for its supervisor: QEMU never has the supervisor's key.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "mirror/protocol/message.hpp"

namespace kagemusha::net {

enum class link_part : std::uint8_t {
    supervisor, // the connection between both supervisors
    qemu        // the GPU's log, and QEMU's stream of the VM's state
};

struct peer_identity {
    std::string vm;
    mirror::role role = mirror::role::primary;
    link_part part = link_part::qemu;
};

// 1 to 32 letters, digits, '-', '_' and '.', not beginning with '.' or '-': it becomes a part of names and
// paths.
bool is_certified_name(std::string_view vm);

// The certificate's only alternative name (a DNS name), which the other end compares. Names are compared
// without case by everybody who follows the standards, VMs' names are not: so 'W' is written as "_w", and '_'
// as "__". `vm` satisfies is_certified_name().
std::string certificate_name(const peer_identity& who);
inline constexpr std::string_view certificate_domain = ".vm.kagemusha"; // the end of each such name

// The certificate's common name, for people and for QEMU, which compares subjects: "standby of web (QEMU)".
std::string certificate_subject(const peer_identity& who);

// The names of a role's files in a directory of keys: "primary-cert.pem", "primary-key.pem".
std::string certificate_file(mirror::role role);
std::string key_file(mirror::role role);

// Where the files of a VM's part are in a host's directory of `kage keys`.
std::string keys_directory(const std::string& of_host, const std::string& vm, link_part part);

} // namespace kagemusha::net
