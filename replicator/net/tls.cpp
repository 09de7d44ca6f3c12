// SPDX-License-Identifier: GPL-2.0-or-later
// See tls.hpp.
#include "net/tls.hpp"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "net/openssl_ptr.hpp"

namespace kagemusha::net {

namespace {

constexpr char make_keys[] = "make the keys of all hosts with one `kage keys` and copy them";
constexpr char ca_file[] = "/ca.pem", crl_file[] = "/crl.pem";
constexpr std::size_t longest_name = 100;
constexpr std::size_t most_cas = 8; // in one ca.pem; more than two are nobody's need

using store_context_ptr = std::unique_ptr<X509_STORE_CTX, freer<X509_STORE_CTX_free>>;
using file_ptr = std::unique_ptr<std::FILE, freer<std::fclose>>;

// A cluster's CA signs the ends directly.
constexpr int max_chain_depth = 0; // CAs between it and a host

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

// Empty and a sentence in `error` when there is not one; at most `most`.
std::vector<x509_ptr> read_certificates(const std::string& path, std::size_t most, std::string& error) {
    std::vector<x509_ptr> found;
    const auto file = open_file(path, error);
    if (!file)
        return found;
    while (found.size() < most) {
        x509_ptr certificate(PEM_read_X509(file.get(), nullptr, nullptr, nullptr));
        if (!certificate)
            break;
        found.push_back(std::move(certificate));
    }
    if (found.empty())
        error = path + " holds no certificate: " + last_error() + "; make keys with `kage keys`";
    ERR_clear_error(); // where the file ends
    return found;
}

// The lists of revoked certificates that are there: none is right, a file that holds none is not.
bool read_crls(const std::string& path, std::vector<crl_ptr>& found, std::string& error) {
    const file_ptr file(std::fopen(path.c_str(), "re"));
    if (!file) {
        if (errno != ENOENT)
            error = "cannot read " + path + ": " + std::strerror(errno);
        return errno == ENOENT;
    }
    while (found.size() < most_cas) {
        crl_ptr crl(PEM_read_X509_CRL(file.get(), nullptr, nullptr, nullptr));
        if (!crl)
            break;
        found.push_back(std::move(crl));
    }
    if (found.empty())
        error = path + " holds no list of revoked certificates: " + last_error() +
                "; copy it again from where `kage keys` made it";
    ERR_clear_error();
    return !found.empty();
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

std::string subject_name(const X509_NAME* name) {
    const auto text_of = [name](int field) {
        char text[longest_name + 1] = "";
        if (!name || X509_NAME_get_text_by_NID(const_cast<X509_NAME*>(name), field, text, sizeof(text)) <= 0)
            return std::string();
        for (char* c = text; *c; ++c)
            if (*c < 0x20 || *c > 0x7e)
                *c = '?';
        return std::string(text);
    };
    const auto common = text_of(NID_commonName), host = text_of(NID_organizationalUnitName);
    if (common.empty())
        return "without a name";
    return host.empty() ? common : common + " at " + host;
}

std::shared_ptr<const tls_context> load_tls(const tls_files& files, mirror::role own, std::string& error) {
    ERR_clear_error();
    if (!is_certified_name(files.vm)) {
        error = "there are no keys for a VM named '" + files.vm.substr(0, longest_name) +
                "': a name has 1 to 32 letters, digits, '-', '_' and '.'";
        return nullptr;
    }
    const auto ca_path = files.directory + ca_file, cert_path = files.directory + "/" + certificate_file(own),
               key_path = files.directory + "/" + key_file(own);
    const auto cas = read_certificates(ca_path, most_cas, error);
    if (cas.empty())
        return nullptr;
    if (::access(cert_path.c_str(), F_OK) != 0 &&
        ::access((files.directory + "/cert.pem").c_str(), F_OK) == 0) {
        error = files.directory + " has the keys of a host, and no " + certificate_file(own) +
                " of the VM '" + files.vm +
                "': each VM has certificates of its own. Make them where the CA is, with `kage keys "
                "DIRECTORY --host HOST --vm " +
                files.vm + "`, and copy the host's directory again";
        return nullptr;
    }
    const auto certificates = read_certificates(cert_path, 1, error);
    if (certificates.empty())
        return nullptr;
    X509* const certificate = certificates.front().get();
    const auto key = read_key(key_path, error);
    if (!key)
        return nullptr;
    std::vector<crl_ptr> crls;
    if (!read_crls(files.directory + crl_file, crls, error))
        return nullptr;

    X509* signer = nullptr;
    for (const auto& ca : cas) {
        const key_ptr ca_key(X509_get_pubkey(ca.get()));
        if (!signer && ca_key && X509_verify(certificate, ca_key.get()) == 1)
            signer = ca.get();
    }
    ERR_clear_error();
    if (!signer) {
        error = cert_path + " is not signed by the CA in " + ca_path + ": " + make_keys;
        return nullptr;
    }
    if (X509_check_private_key(certificate, key.get()) != 1) {
        error = key_path + " does not belong to " + cert_path + ": " + make_keys;
        ERR_clear_error();
        return nullptr;
    }
    for (const auto& [path, one] : {std::pair(ca_path, signer), std::pair(cert_path, certificate)}) {
        if (X509_cmp_current_time(X509_get0_notAfter(one)) < 0) {
            error = path + " expired on " + date(X509_get0_notAfter(one)) +
                    ": renew it where the CA is, with `kage keys DIRECTORY --renew`, and copy it again";
            return nullptr;
        }
    }
    const auto name = certificate_name({files.vm, own, files.part});
    if (X509_check_host(certificate, name.data(), name.size(),
                        X509_CHECK_FLAG_NO_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT, nullptr) != 1) {
        error = cert_path + " is that of '" + subject_name(X509_get_subject_name(certificate)) + "', and '" +
                certificate_subject({files.vm, own, files.part}) +
                "' is needed: name the directory that `kage keys --vm " + files.vm + "` made";
        return nullptr;
    }

    const auto out = std::make_shared<tls_context>();
    out->directory = files.directory;
    out->certificate = cert_path;
    out->ca_name = subject_name(X509_get_subject_name(signer));
    out->peer = {files.vm, own == mirror::role::primary ? mirror::role::standby : mirror::role::primary,
                 files.part};
    SSL_CTX* const context = out->context.native_handle();
    X509_STORE* const store = SSL_CTX_get_cert_store(context);
    // The peer has the CA; a chain that we would put together from our own files is of no use to it.
    SSL_CTX_set_mode(context, SSL_MODE_NO_AUTO_CHAIN);
    bool ok = SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1;
    ok = ok && SSL_CTX_use_certificate(context, certificate) == 1;
    ok = ok && SSL_CTX_use_PrivateKey(context, key.get()) == 1;
    for (const auto& ca : cas)
        ok = ok && X509_STORE_add_cert(store, ca.get()) == 1;
    for (const auto& crl : crls)
        ok = ok && X509_STORE_add_crl(store, crl.get()) == 1;
    if (!crls.empty()) // from then on each CA that signs must have its list there
        ok = ok && X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK) == 1;
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

std::shared_ptr<tls_keys> tls_keys::open(const tls_files& files, mirror::role own, std::string& error) {
    // Before anything else asks for it: OpenSSL would clean up in an exit handler of its own, and QEMU ends
    // its devices, with connections that work, in an older one, which runs later.
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
    std::shared_ptr<tls_keys> keys(new tls_keys(files, own));
    keys->seen_ = keys->look(); // before they are read: a change meanwhile is seen later
    keys->context_ = load_tls(files, own, error);
    return keys->context_ ? keys : nullptr;
}

std::shared_ptr<const tls_context> tls_keys::current() {
    if (const auto now = look(); now != seen_) {
        seen_ = now;
        std::string error;
        if (auto read = load_tls(files_, own_, error))
            context_ = std::move(read);
        problem_ =
            error.empty()
                ? error
                : "the keys were changed and are of no use now, so the former ones still count: " + error;
    }
    return context_;
}

tls_keys::stamps tls_keys::look() const {
    const std::array<std::string, 4> names = {ca_file, crl_file, "/" + certificate_file(own_),
                                              "/" + key_file(own_)};
    stamps found;
    for (std::size_t i = 0; i < names.size(); ++i) {
        struct stat file{};
        if (::stat((files_.directory + names[i]).c_str(), &file) == 0)
            found[i] = {file.st_dev, file.st_ino, file.st_size, file.st_mtim.tv_sec, file.st_mtim.tv_nsec};
    }
    return found;
}

std::string why_not_trusted(const tls_context& tls, X509* certificate) {
    auto& context = const_cast<boost::asio::ssl::context&>(tls.context);
    const store_context_ptr check(X509_STORE_CTX_new());
    if (!check || X509_STORE_CTX_init(check.get(), SSL_CTX_get_cert_store(context.native_handle()),
                                      certificate, nullptr) != 1)
        return "no memory to verify the peer's certificate";
    X509_STORE_CTX_set_flags(check.get(), X509_V_FLAG_NO_CHECK_TIME);
    std::string why;
    if (X509_verify_cert(check.get()) != 1)
        why = verify_sentence(X509_STORE_CTX_get_error(check.get()), certificate, tls);
    ERR_clear_error();
    return why;
}

std::string verify_sentence(int error, X509* certificate, const tls_context& tls) {
    const auto whose = certificate
                           ? "the peer's certificate ('" + subject_name(X509_get_subject_name(certificate)) +
                                 "', issued by '" + subject_name(X509_get_issuer_name(certificate)) + "')"
                           : std::string("the peer's certificate");
    switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
        return whose + " expired on " + (certificate ? date(X509_get0_notAfter(certificate)) : "") + ": " +
               make_keys;
    case X509_V_ERR_CERT_NOT_YET_VALID:
        return whose + " is valid only from " + (certificate ? date(X509_get0_notBefore(certificate)) : "") +
               " on: compare the clocks of both hosts";
    case X509_V_ERR_HOSTNAME_MISMATCH:
        return whose + " is not that of '" + certificate_subject(tls.peer) +
               "': check the addresses, and that both hosts have keys of `kage keys --vm " + tls.peer.vm +
               "`";
    case X509_V_ERR_INVALID_PURPOSE:
        return whose + " is for the other role: '" + certificate_subject(tls.peer) + "' is expected here";
    case X509_V_ERR_CERT_REVOKED:
        return whose + " was revoked (" + tls.directory + crl_file +
               "): a host that is to come back needs new keys, `kage keys DIRECTORY --renew`";
    case X509_V_ERR_UNABLE_TO_GET_CRL:
        return whose + " is signed by a CA whose list of revoked certificates is not in " + tls.directory +
               crl_file + ": copy it there from where `kage keys` made it";
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
    const auto ours = "the peer does not accept this host's certificate (" + tls.certificate + "): ";
    switch (ERR_GET_REASON(error)) {
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
        return ours + "the peer's CA did not sign it; " + make_keys;
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
        return ours + "it expired, or the peer's clock is wrong; " + make_keys;
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
        return ours + "its name or purpose is not the one expected; the peer's log says more";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
        return ours + "it was revoked; renew this host's keys with `kage keys DIRECTORY --renew`";
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

std::string handshake_sentence(unsigned long error, const tls_context& tls) {
    if (error == 0 || ERR_GET_REASON(error) == SSL_R_UNEXPECTED_EOF_WHILE_READING)
        return "the peer ended the connection during the TLS handshake: does it have keys of `kage keys`, "
               "too?";
    return tls_sentence(error, tls, true);
}

std::string expect_peer(SSL* ssl, const tls_context& tls) {
    SSL_set_verify_depth(ssl, max_chain_depth);
    X509_VERIFY_PARAM* const parameters = SSL_get0_param(ssl);
    X509_VERIFY_PARAM_set_hostflags(parameters,
                                    X509_CHECK_FLAG_NO_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    const auto name = certificate_name(tls.peer);
    if (X509_VERIFY_PARAM_set1_host(parameters, name.data(), name.size()) != 1)
        return "no memory for the peer's name";
    return {};
}

} // namespace kagemusha::net
