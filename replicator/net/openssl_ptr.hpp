// SPDX-License-Identifier: GPL-2.0-or-later
// openssl_ptr: owners of OpenSSL's objects.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>

namespace kagemusha::net {

template <auto Free>
struct freer {
    template <class T>
    void operator()(T* object) const {
        Free(object);
    }
};
using x509_ptr = std::unique_ptr<X509, freer<X509_free>>;
using key_ptr = std::unique_ptr<EVP_PKEY, freer<EVP_PKEY_free>>;
using crl_ptr = std::unique_ptr<X509_CRL, freer<X509_CRL_free>>;

} // namespace kagemusha::net
