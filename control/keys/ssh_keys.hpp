// SPDX-License-Identifier: GPL-2.0-or-later
//
// Keys for ssh that are made of a secret: whoever has a cluster's secret (control/daemon/cluster_store.hpp) gives
// the same keys at each start and on each host, and nothing else has to be kept. Ed25519, in OpenSSH's formats.
#pragma once

#include <string>
#include <string_view>

namespace kagemusha::control {

struct ssh_key {
    std::string public_key;  // "ssh-ed25519 AAAA…", a line without its end
    std::string private_key; // a file: "-----BEGIN OPENSSH PRIVATE KEY-----…"
};

// `purpose` tells the keys of one secret apart ("host/node1"). Nobody who has one key gets another one of it.
ssh_key ssh_key_of(std::string_view secret, std::string_view purpose);

} // namespace kagemusha::control
