// SPDX-License-Identifier: GPL-2.0-or-later
//
// The keys of a cluster, as files: a CA, and certificates that say which VM an end may speak for, in which
// role and part (net/identity.hpp). control/keys/certificates.hpp makes them.
//
//   DIR/ca/ca.pem, ca-key.pem     the CA; its key signs further certificates and belongs on no host
//   DIR/ca/issued.pem, crl.pem    every certificate that it signed, and those that were revoked
//   DIR/HOST/                     what the host HOST needs, to be copied there as a whole:
//     ca.pem, cert.pem, key.pem       the host's own name; for an etcd, no link of a VM lets it in
//     vm/VM/{supervisor,qemu}/        ca.pem, crl.pem, {primary,standby}-{cert,key}.pem
//
// QEMU only ever sees the files in qemu/ of its own VM (control/keys/qemu_keys.hpp).
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
    std::vector<std::string> vms; // that each of these hosts may run
    std::uint32_t days = 365;     // certificates
    std::uint32_t ca_days = 3650;
    std::int64_t starts_in_s = -3600; // valid from now on, with an hour for clocks that differ
};

struct keys_result {
    std::string error; // a sentence; empty: all of it was made, otherwise nothing of it
    bool new_ca = false;
    std::string ca_name;
    std::vector<std::string>
        host_directories;                  // in the order of the request; of renew_keys: that have changed
    std::vector<std::string> certificates; // renewed or revoked, as people see them
};

// Makes what is not there yet. An existing CA in the directory signs. An existing host is an error unless it
// gets keys of another VM: nothing is ever overwritten.
keys_result make_keys(const keys_request& request);

// New certificates and keys in the place of those that are there: of all hosts and VMs, or of the named ones.
// The old ones count until they expire or are revoked. An error may leave some of it done.
keys_result renew_keys(const keys_request& request);

// No certificate counts any more that was ever made for the named hosts (or, with VMs, for these VMs there),
// wherever the list of them (crl.pem) has arrived.
keys_result revoke_keys(const keys_request& request);

// "NAME,NAME…" of one --host.
std::vector<std::string> host_names(const std::string& text);

// What to do with it, for a person.
std::string keys_advice(const keys_request& request, const keys_result& result);
std::string renew_advice(const keys_request& request, const keys_result& result);
std::string revoke_advice(const keys_request& request, const keys_result& result);

} // namespace kagemusha::control
