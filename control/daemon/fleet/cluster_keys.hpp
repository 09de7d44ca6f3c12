// SPDX-License-Identifier: GPL-2.0-or-later
//
// Keys for the links of a cluster between hosts: from supervisor to supervisor, QEMU to QEMU, switch to switch.
// Each cluster has a CA of its own, whose key is a part of its record in etcd; a host makes what it needs with
// it, and keeps no copy of it.
#pragma once

#include <string>

namespace kagemusha::control::daemon {

struct cluster_ca {
    std::string certificate, key; // PEM; "": the cluster is that of one host
    bool operator==(const cluster_ca&) const = default;
};

cluster_ca new_cluster_ca();

// Makes in `folder`, unless they are there, HOST/ca.pem, cert.pem, key.pem, and with a `vm` the keys that let
// this host run it, as `kage keys` does. "" or a sentence.
std::string make_cluster_keys(const std::string& folder, const cluster_ca& ca, const std::string& host,
                              const std::string& vm);

} // namespace kagemusha::control::daemon
