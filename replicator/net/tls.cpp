// SPDX-License-Identifier: GPL-2.0-or-later
// See tls.hpp.
#include "net/tls.hpp"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace kagemusha::net {

namespace {

constexpr char make_keys[] = "make the keys of all hosts with one `kage keys` and copy them";
constexpr std::size_t longest_name = 100;

template <auto Free>
struct freer {
    template <class T>
    void operator()(T* object) const {
        Free(object);
    }
};
using x509_ptr = std::unique_ptr<X509, freer<X509_free>>;
using key_ptr = std::unique_ptr<EVP_PKEY, freer<EVP_PKEY_free>>;
using file_ptr = std::unique_ptr<std::FILE, freer<std::fclose>>;

std::string last_error() {
    const unsigned long error = ERR_peek_last_error();
    ERR_clear_error();
    const char* const reason = ERR_reason_error_string(error);
    return reason ? reason : "unknown reason";
}

file_ptr open_file(const std::string& path, std::string& error) {
    file_ptr file(std::fopen(path.c_str(), "re"));
    if (!file)
        error = "cannot read " + path + ": " + std::strerror(errno) + "; make keys with `kage keys`";
    return file;
}

x509_ptr read_certificate(const std::string& path, std::string& error) {
    const auto file = open_file(path, error);
    if (!file)
        return nullptr;
    x509_ptr certificate(PEM_read_X509(file.get(), nullptr, nullptr, nullptr));
    if (!certificate)
        error = path + " holds no certificate: " + last_error() + "; make keys with `kage keys`";
    return certificate;
}

key_ptr read_key(const std::string& path, std::string& error) {
    const auto file = open_file(path, error);
    if (!file)
        return nullptr;
    struct stat found;
    if (::fstat(::fileno(file.get()), &found) != 0 || (found.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        error = path + " can be read by others than its owner: chmod 600 " + path;
        return nullptr;
    }
    // A password would have to be asked for; there is nobody to ask.
    const auto no_password = [](char*, int, int, void*) { return -1; };
    key_ptr key(PEM_read_PrivateKey(file.get(), nullptr, no_password, nullptr));
    if (!key)
        error = path + " holds no private key without a password: " + last_error() +
                "; make keys with `kage keys`";
    return key;
}

std::string date(const ASN1_TIME* time) {
    std::tm parts{};
    char text[32] = "an unknown date";
    if (ASN1_TIME_to_tm(time, &parts) == 1)
        std::strftime(text, sizeof(text), "%Y-%m-%d", &parts);
    return text;
}

} // namespace

tls_context::tls_context() : context(boost::asio::ssl::context::tls) {}

std::string common_name(const X509_NAME* name) {
    char text[longest_name + 1] = "";
    if (!name ||
        X509_NAME_get_text_by_NID(const_cast<X509_NAME*>(name), NID_commonName, text, sizeof(text)) <= 0)
        return "without a name";
    for (char* c = text; *c; ++c) {
        if (*c < 0x20 || *c > 0x7e)
            *c = '?';
    }
    return text;
}

std::shared_ptr<const tls_context> load_tls(const tls_files& files, std::string& error) {
    ERR_clear_error();
    const auto ca_path = files.directory + "/ca.pem", cert_path = files.directory + "/cert.pem",
               key_path = files.directory + "/key.pem";
    const auto ca = read_certificate(ca_path, error);
    if (!ca)
        return nullptr;
    const auto certificate = read_certificate(cert_path, error);
    if (!certificate)
        return nullptr;
    const auto key = read_key(key_path, error);
    if (!key)
        return nullptr;

    const key_ptr ca_key(X509_get_pubkey(ca.get()));
    if (!ca_key || X509_verify(certificate.get(), ca_key.get()) != 1) {
        error = cert_path + " is not signed by the CA in " + ca_path + ": " + make_keys;
        ERR_clear_error();
        return nullptr;
    }
    if (X509_check_private_key(certificate.get(), key.get()) != 1) {
        error = key_path + " does not belong to " + cert_path + ": " + make_keys;
        ERR_clear_error();
        return nullptr;
    }
    for (const auto& [path, one] : {std::pair(ca_path, ca.get()), std::pair(cert_path, certificate.get())}) {
        if (X509_cmp_current_time(X509_get0_notAfter(one)) < 0) {
            error = path + " expired on " + date(X509_get0_notAfter(one)) + ": " + make_keys;
            return nullptr;
        }
    }

    const auto out = std::make_shared<tls_context>();
    out->directory = files.directory;
    out->ca_name = common_name(X509_get_subject_name(ca.get()));
    SSL_CTX* const context = out->context.native_handle();
    // The peer has the CA; a chain that we would put together from our own files is of no use to it.
    SSL_CTX_set_mode(context, SSL_MODE_NO_AUTO_CHAIN);
    bool ok = SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1;
    ok = ok && SSL_CTX_use_certificate(context, certificate.get()) == 1;
    ok = ok && SSL_CTX_use_PrivateKey(context, key.get()) == 1;
    ok = ok && X509_STORE_add_cert(SSL_CTX_get_cert_store(context), ca.get()) == 1;
    // Each connection proves itself anew: no session is resumed.
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    ok = ok && SSL_CTX_set_num_tickets(context, 0) == 1;
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    if (!ok) {
        error = "the keys in " + files.directory + " are of no use for TLS 1.3: " + last_error();
        return nullptr;
    }
    return out;
}

std::string verify_sentence(int error, X509* certificate, const tls_context& tls,
                            const std::string& wanted_name) {
    const auto whose = certificate
                           ? "the peer's certificate ('" + common_name(X509_get_subject_name(certificate)) +
                                 "', issued by '" + common_name(X509_get_issuer_name(certificate)) + "')"
                           : std::string("the peer's certificate");
    switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
        return whose + " expired on " + (certificate ? date(X509_get0_notAfter(certificate)) : "") + ": " +
               make_keys;
    case X509_V_ERR_CERT_NOT_YET_VALID:
        return whose + " is valid only from " + (certificate ? date(X509_get0_notBefore(certificate)) : "") +
               " on: compare the clocks of both hosts";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        return whose + " is not for '" + wanted_name +
               "': connect by a name that `kage keys --host` was given, or name the peer's certificate";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    case X509_V_ERR_AKID_SKID_MISMATCH:
    case X509_V_ERR_AKID_ISSUER_SERIAL_MISMATCH:
        return whose + " is not signed by '" + tls.ca_name + "' (" + tls.directory + "/ca.pem): " + make_keys;
    default:
        return whose + " is refused: " + X509_verify_cert_error_string(error) + "; " + make_keys;
    }
}

std::string tls_sentence(unsigned long error, const tls_context& tls, bool in_handshake) {
    const auto ours = "the peer does not accept this host's certificate (" + tls.directory + "/cert.pem): ";
    switch (ERR_GET_REASON(error)) {
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
        return ours + "the peer's CA did not sign it; " + make_keys;
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
        return ours + "it expired, or the peer's clock is wrong; " + make_keys;
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
        return ours + "its name or purpose is not the one expected; the peer's log says more";
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
        return "the peer wants a certificate and got none: " + std::string(make_keys);
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
        return "the peer showed no certificate: " + std::string(make_keys);
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
        return "the peer does not speak TLS 1.3";
    default:
        break;
    }
    const char* const reason = ERR_reason_error_string(error);
    const std::string because = reason ? reason : "unknown reason";
    if (in_handshake)
        return "the peer does not speak TLS as expected (" + because +
               "): is it set up with keys of `kage keys`, too?";
    return "TLS failed: " + because;
}

} // namespace kagemusha::net
