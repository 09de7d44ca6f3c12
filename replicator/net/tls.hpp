// SPDX-License-Identifier: GPL-2.0-or-later
// tls: the keys of this host (`kage keys`), and what is wrong with a handshake in words. Mutual TLS 1.3: a
// host belongs to a cluster when the cluster's CA signed its certificate. For the sources of this folder
// only.
#ifndef KAGEMUSHA_NET_TLS_HPP
#define KAGEMUSHA_NET_TLS_HPP

#include <boost/asio/ssl/context.hpp>

#include <memory>
#include <string>

#include "net/link.hpp"

namespace kagemusha::net {

struct tls_context {
    tls_context();
    boost::asio::ssl::context context;
    std::string directory;
    std::string ca_name; // of the certificate in ca.pem
};

// Reads and checks ca.pem, cert.pem and key.pem. Null and a sentence in `error` when this host could not
// prove itself with them, so that nobody has to guess from a failed handshake.
std::shared_ptr<const tls_context> load_tls(const tls_files& files, std::string& error);

// Name in a certificate's subject (its common name), printable and short whatever it holds.
std::string common_name(const X509_NAME* name);

// What X509_verify_cert (`error`: X509_V_ERR_…) found wrong with the peer's certificate.
std::string verify_sentence(int error, X509* certificate, const tls_context& tls,
                            const std::string& wanted_name);

// Of OpenSSL's error code; what the peer's alert says about our certificate included. `in_handshake`: nothing
// of the peer's was understood yet.
std::string tls_sentence(unsigned long error, const tls_context& tls, bool in_handshake);

} // namespace kagemusha::net

#endif
