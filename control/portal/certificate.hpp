// SPDX-License-Identifier: GPL-2.0-or-later
//
// The portal's own certificate: made once, signed by itself, ECDSA P-256 (browsers know no Ed25519). Whoever
// puts one of another CA in its place keeps it.
#pragma once

#include <string>
#include <vector>

namespace kagemusha::control::portal {

struct certificate_files {
    std::string certificate, key; // paths, PEM
    std::string fingerprint;      // SHA-256, AB:CD:…, as browsers show it
};

// Of `folder`, made if it is not there, is about to expire, or, being ours, lacks one of `names` (DNS names and
// addresses). A sentence in `error`.
certificate_files portal_certificate(const std::string& folder, const std::vector<std::string>& names,
                                     std::string& error);

} // namespace kagemusha::control::portal
