// SPDX-License-Identifier: GPL-2.0-or-later
//
// The keys of a cluster: a CA that signs one certificate per host. A host is let in by whoever holds the same
// CA (replicator/net). Made with OpenSSL, Ed25519 throughout.
//
//   DIR/ca/ca.pem, ca-key.pem        the CA; its key signs further hosts later and belongs on no host
//   DIR/NAME/ca.pem, cert.pem, key.pem    what the host NAME needs
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kagemusha::control {

struct keys_request {
    std::string directory;
    // Each host with all of its names, DNS names or addresses. The first one names its directory and is what
    // others see in their logs.
    std::vector<std::vector<std::string>> hosts;
    std::uint32_t days = 3650;
    std::int64_t starts_in_s = -3600; // valid from now on, with an hour for clocks that differ
};

struct keys_result {
    std::string error; // a sentence; empty: all of it was made, otherwise nothing of it
    bool new_ca = false;
    std::string ca_name;
    std::vector<std::string> host_directories; // in the order of the request
};

// Makes what is not there yet. An existing CA in the directory signs; an existing host is an error: nothing
// is ever overwritten.
keys_result make_keys(const keys_request& request);

// "NAME,NAME…" of one --host.
std::vector<std::string> host_names(const std::string& text);

// What to do with it, for a person.
std::string keys_advice(const keys_request& request, const keys_result& result);

} // namespace kagemusha::control
