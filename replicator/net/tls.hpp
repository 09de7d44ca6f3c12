// SPDX-License-Identifier: GPL-2.0-or-later
// tls: the keys of one end of a VM's link (`kage keys --vm`), and what is wrong with a handshake in words.
// Mutual TLS 1.3: the peer's certificate is signed by the cluster's CA, not revoked, and made for the other
// role of the same VM and part (identity.hpp). For the sources of this folder only.
#pragma once

#include <boost/asio/ssl/context.hpp>

#include <sys/types.h>

#include <array>
#include <ctime>
#include <memory>
#include <string>

#include "net/identity.hpp"
#include "net/link.hpp"

namespace kagemusha::net {

struct tls_context {
    tls_context();
    boost::asio::ssl::context context;
    std::string directory, certificate; // the directory of the keys, and the path of our certificate
    std::string ca_name;                // of the first certificate in ca.pem
    peer_identity peer;                 // who alone may be at the other end
};

// Reads and checks ca.pem (one CA or several, while one follows another), crl.pem if there is one, and the
// certificate and key of `own`. Null and a sentence in `error` when this end could not prove itself with
// them, so that nobody has to guess from a failed handshake.
std::shared_ptr<const tls_context> load_tls(const tls_files& files, mirror::role own, std::string& error);

// Keys that are read again when their files have changed: new certificates and lists of revoked ones count
// from the next connection on, without a restart. One thread.
class tls_keys {
public:
    // Null and a sentence in `error`: they are of no use.
    static std::shared_ptr<tls_keys> open(const tls_files& files, mirror::role own, std::string& error);
    // As the files are now; or, if those are of no use, as they were when they could last be used.
    std::shared_ptr<const tls_context> current();
    const std::string& problem() const { return problem_; } // why the files are of no use now; else empty

private:
    struct stamp {
        dev_t device = 0;
        ino_t inode = 0;
        off_t bytes = 0;
        std::time_t changed_s = 0;
        long changed_ns = 0;
        friend bool operator==(const stamp&, const stamp&) = default;
    };
    using stamps = std::array<stamp, 4>;
    tls_keys(const tls_files& files, mirror::role own) : files_(files), own_(own) {}
    stamps look() const;

    const tls_files files_;
    const mirror::role own_;
    stamps seen_;
    std::string problem_;
    std::shared_ptr<const tls_context> context_;
};

// Whom a certificate's subject names: its common name, with the host that it was made for if it names one.
// Printable and short whatever it holds.
std::string subject_name(const X509_NAME* name);

// What X509_verify_cert (`error`: X509_V_ERR_…) found wrong with the peer's certificate.
std::string verify_sentence(int error, X509* certificate, const tls_context& tls);

// Empty, or why the CA of `tls` does not stand for this certificate (any more). Its dates do not matter.
std::string why_not_trusted(const tls_context& tls, X509* certificate);

// Of OpenSSL's error code; what the peer's alert says about our certificate included. `in_handshake`: nothing
// of the peer's was understood yet.
std::string tls_sentence(unsigned long error, const tls_context& tls, bool in_handshake);

// The same for a handshake that failed; 0: the peer ended the connection.
std::string handshake_sentence(unsigned long error, const tls_context& tls);

// Before a handshake: the certificate of `tls.peer` alone is accepted. Empty, or why that can't be.
std::string expect_peer(SSL* ssl, const tls_context& tls);

} // namespace kagemusha::net
