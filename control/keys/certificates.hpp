// SPDX-License-Identifier: GPL-2.0-or-later
//
// What `kage keys` makes, in memory: a CA, certificates that it signs, and its list of revoked ones. OpenSSL
// does all of it, Ed25519 throughout. Nothing here reads or writes a file but the reading of PEM.
#pragma once

#include "net/openssl_ptr.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kagemusha::control {

using net::crl_ptr;
using net::freer;
using net::key_ptr;
using net::x509_ptr;

struct key_pair { // empty pointers: OpenSSL failed, openssl_says() has why
    x509_ptr certificate;
    key_ptr key;
};

// What to put into a certificate.
struct certificate_request {
    std::string name;                    // the subject's common name
    std::string host;                    // on which it may be; "": the name is a host's
    std::vector<std::string> names;      // DNS names and addresses
    bool server = false, client = false; // which ends of a connection it is good for
    std::uint32_t days = 0;
    std::int64_t starts_in_s = 0;
};

key_pair new_ca(std::uint32_t days, std::int64_t starts_in_s);
key_pair new_certificate(const certificate_request& request, const key_pair& ca);

// The list that says of `revoked` and of those in `before` (may be null) that they count no more. It is good
// for as long as the CA, so that nobody has to make it anew to keep a cluster running.
crl_ptr new_revocations(const key_pair& ca, const X509_CRL* before, const std::vector<X509*>& revoked);

std::string pem(X509* certificate);
std::string pem(EVP_PKEY* key);
std::string pem(X509_CRL* list);

// Null (or none) when there is none, or it is something else.
x509_ptr read_certificate(const std::string& path);
std::vector<x509_ptr> read_certificates(const std::string& path);
key_ptr read_key(const std::string& path); // only one without a password
crl_ptr read_revocations(const std::string& path);

std::string common_name(X509* certificate);
std::string host_of(X509* certificate);               // for which host it was made
std::vector<std::string> names_of(X509* certificate); // its common name first, then the others it is good for
std::int64_t expires_at_s(const X509* certificate);   // seconds since 1970

bool is_address(const std::string& name);
std::string openssl_says();

} // namespace kagemusha::control
