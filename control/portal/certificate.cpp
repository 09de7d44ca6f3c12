// SPDX-License-Identifier: GPL-2.0-or-later
//
// See certificate.hpp.
#include "control/portal/certificate.hpp"

#include "control/base/process.hpp"
#include "control/keys/certificates.hpp"

#include <fmt/format.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>

namespace kagemusha::control::portal {

namespace fs = std::filesystem;

namespace {

constexpr char own_name[] = "kagemusha portal"; // common name of those that we made
constexpr int days = 800;                       // Safari takes none of more than 825
constexpr std::int64_t renewed_before_s = 30 * 86400;

using extension_ptr = std::unique_ptr<X509_EXTENSION, freer<X509_EXTENSION_free>>;
using bignum_ptr = std::unique_ptr<BIGNUM, freer<BN_free>>;

bool add_extension(X509* certificate, int nid, const std::string& value) {
    X509V3_CTX context;
    X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
    const extension_ptr extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
    return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

key_pair make(const std::vector<std::string>& names) {
    key_pair out{x509_ptr(X509_new()), key_ptr(EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"))};
    X509* const made = out.certificate.get();
    const bignum_ptr serial(BN_new());
    if (!made || !out.key || !serial || BN_rand(serial.get(), 127, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) != 1)
        return {};
    std::string list;
    for (const auto& name : names)
        list += (list.empty() ? "" : ",") + std::string(is_address(name) ? "IP:" : "DNS:") + name;
    X509_NAME* const subject = X509_get_subject_name(made);
    const bool ok =
        X509_set_version(made, X509_VERSION_3) == 1 &&
        BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(made)) != nullptr &&
        X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                                   reinterpret_cast<const unsigned char*>(own_name), -1, -1, 0) == 1 &&
        X509_set_issuer_name(made, subject) == 1 &&
        X509_time_adj_ex(X509_getm_notBefore(made), 0, -3600, nullptr) &&
        X509_time_adj_ex(X509_getm_notAfter(made), days, 0, nullptr) &&
        X509_set_pubkey(made, out.key.get()) == 1 &&
        add_extension(made, NID_basic_constraints, "critical,CA:FALSE") &&
        add_extension(made, NID_key_usage, "critical,digitalSignature") &&
        add_extension(made, NID_ext_key_usage, "serverAuth") &&
        add_extension(made, NID_subject_alt_name, list) && X509_sign(made, out.key.get(), EVP_sha256()) > 0;
    return ok ? std::move(out) : key_pair{};
}

std::string fingerprint_of(X509* certificate) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    std::string out;
    if (X509_digest(certificate, EVP_sha256(), digest, &size) == 1)
        for (unsigned i = 0; i < size; ++i)
            out += fmt::format("{}{:02X}", i == 0 ? "" : ":", digest[i]);
    return out;
}

std::string write_secret(const std::string& path, const std::string& text) {
    const auto made = path + ".new";
    ::unlink(made.c_str());
    {
        const unique_fd fd(::open(made.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
        if (!fd || ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
            ::fsync(fd.get()) != 0)
            return fmt::format("cannot write {}: {}", path, std::strerror(errno));
    }
    return ::rename(made.c_str(), path.c_str()) == 0
               ? std::string()
               : fmt::format("cannot write {}: {}", path, std::strerror(errno));
}

bool is_good(X509* certificate, const std::vector<std::string>& names) {
    if (common_name(certificate) != own_name)
        return true; // somebody's own: its names and dates are his matter
    const auto has = names_of(certificate);
    return expires_at_s(certificate) > std::time(nullptr) + renewed_before_s &&
           std::ranges::all_of(names,
                               [&](const auto& one) { return std::ranges::find(has, one) != has.end(); });
}

} // namespace

certificate_files portal_certificate(const std::string& folder, const std::vector<std::string>& names,
                                     std::string& error) {
    certificate_files out{folder + "/cert.pem", folder + "/key.pem", {}};
    std::error_code failed;
    fs::create_directories(folder, failed);
    if (failed) {
        error = fmt::format("cannot make {}: {}", folder, failed.message());
        return out;
    }
    auto certificate = read_certificate(out.certificate);
    auto key = read_key(out.key);
    if (!certificate || !key || !is_good(certificate.get(), names) ||
        X509_check_private_key(certificate.get(), key.get()) != 1) {
        ERR_clear_error();
        auto made = make(names);
        if (!made.certificate) {
            error = "cannot make the portal's certificate: " + openssl_says();
            return out;
        }
        certificate = std::move(made.certificate);
        error = write_secret(out.key, pem(made.key.get()));
        if (error.empty())
            error = write_secret(out.certificate, pem(certificate.get()));
    }
    out.fingerprint = fingerprint_of(certificate.get());
    return out;
}

} // namespace kagemusha::control::portal
