// SPDX-License-Identifier: GPL-2.0-or-later
//
// See certificates.hpp.
#include "control/keys/certificates.hpp"

#include "base/hexadecimal.hpp"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <arpa/inet.h>

#include <ctime>

namespace kagemusha::control {

namespace {

using bio_ptr = std::unique_ptr<BIO, freer<BIO_free>>;
using extension_ptr = std::unique_ptr<X509_EXTENSION, freer<X509_EXTENSION_free>>;
using bignum_ptr = std::unique_ptr<BIGNUM, freer<BN_free>>;
using address_ptr = std::unique_ptr<ASN1_OCTET_STRING, freer<ASN1_OCTET_STRING_free>>;
using revoked_ptr = std::unique_ptr<X509_REVOKED, freer<X509_REVOKED_free>>;
using time_ptr = std::unique_ptr<ASN1_TIME, freer<ASN1_TIME_free>>;
using integer_ptr = std::unique_ptr<ASN1_INTEGER, freer<ASN1_INTEGER_free>>;

constexpr long clocks_differ_s = 3600; // by no more than that

bool add_extension(X509* certificate, X509* issuer, int nid, const std::string& value) {
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
    const extension_ptr extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
    return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

// 127 random bits: no two certificates of a CA have the same number.
bool set_serial(X509* certificate) {
    const bignum_ptr number(BN_new());
    return number && BN_rand(number.get(), 127, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1 &&
           BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

// A certificate with everything but extensions and signature.
key_pair begin(const certificate_request& request) {
    key_pair out{x509_ptr(X509_new()), key_ptr(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"))};
    X509* const certificate = out.certificate.get();
    if (!certificate || !out.key || X509_set_version(certificate, X509_VERSION_3) != 1 ||
        !set_serial(certificate))
        return {};
    X509_NAME* const subject = X509_get_subject_name(certificate);
    const auto add = [&](const char* field, const std::string& text) {
        return X509_NAME_add_entry_by_txt(subject, field, MBSTRING_UTF8,
                                          reinterpret_cast<const unsigned char*>(text.data()),
                                          static_cast<int>(text.size()), -1, 0) == 1;
    };
    // The subject's order is part of what QEMU compares (control/qemu/qemu_command.cpp).
    const bool ok = add("O", "Kagemusha") && (request.host.empty() || add("OU", request.host)) &&
                    add("CN", request.name) &&
                    X509_time_adj_ex(X509_getm_notBefore(certificate), 0,
                                     static_cast<long>(request.starts_in_s), nullptr) &&
                    X509_time_adj_ex(X509_getm_notAfter(certificate), static_cast<int>(request.days),
                                     static_cast<long>(request.starts_in_s), nullptr) &&
                    X509_set_pubkey(certificate, out.key.get()) == 1;
    return ok ? std::move(out) : key_pair{};
}

// Ed25519 has its hash inside: no digest is named.
bool sign(X509* certificate, const key_pair& issuer) {
    return X509_set_issuer_name(certificate, X509_get_subject_name(issuer.certificate.get())) == 1 &&
           X509_sign(certificate, issuer.key.get(), nullptr) > 0;
}

template <class Write>
std::string written(Write write) {
    const bio_ptr memory(BIO_new(BIO_s_mem()));
    char* text = nullptr;
    if (!memory || write(memory.get()) != 1)
        return {};
    const long bytes = BIO_get_mem_data(memory.get(), &text);
    return {text, static_cast<std::size_t>(bytes)};
}

std::string text_of(X509* certificate, int field) {
    char text[129] = "";
    X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), field, text, sizeof(text));
    return text;
}

bool add_revoked(X509_CRL* list, const ASN1_INTEGER* serial, const ASN1_TIME* when) {
    revoked_ptr entry(X509_REVOKED_new());
    if (!entry || X509_REVOKED_set_serialNumber(entry.get(), const_cast<ASN1_INTEGER*>(serial)) != 1 ||
        X509_REVOKED_set_revocationDate(entry.get(), const_cast<ASN1_TIME*>(when)) != 1 ||
        X509_CRL_add0_revoked(list, entry.get()) != 1)
        return false;
    [[maybe_unused]] const auto* const of_the_list = entry.release();
    return true;
}

} // namespace

std::string openssl_says() {
    const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
    ERR_clear_error();
    return reason ? reason : "unknown reason";
}

bool is_address(const std::string& name) {
    const address_ptr address(a2i_IPADDRESS(name.c_str()));
    ERR_clear_error();
    return address != nullptr;
}

key_pair new_ca(std::uint32_t days, std::int64_t starts_in_s) {
    unsigned char random[4];
    if (RAND_bytes(random, sizeof(random)) != 1)
        return {};
    // Two clusters are told apart by their CA's name in every error about it.
    certificate_request request;
    request.name = "kagemusha cluster " + hexadecimal({reinterpret_cast<const char*>(random), sizeof random});
    request.days = days;
    request.starts_in_s = starts_in_s;
    auto ca = begin(request);
    X509* const certificate = ca.certificate.get();
    const bool ok =
        certificate &&
        add_extension(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
        add_extension(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign") &&
        add_extension(certificate, certificate, NID_subject_key_identifier, "hash") && sign(certificate, ca);
    return ok ? std::move(ca) : key_pair{};
}

key_pair new_certificate(const certificate_request& request, const key_pair& ca) {
    auto made = begin(request);
    X509* const certificate = made.certificate.get();
    X509* const issuer = ca.certificate.get();
    std::string names, purposes;
    for (const auto& name : request.names)
        names += (names.empty() ? "" : ",") + std::string(is_address(name) ? "IP:" : "DNS:") + name;
    if (request.server)
        purposes = "serverAuth";
    if (request.client)
        purposes += purposes.empty() ? "clientAuth" : ",clientAuth";
    const bool ok = certificate &&
                    add_extension(certificate, issuer, NID_basic_constraints, "critical,CA:FALSE") &&
                    add_extension(certificate, issuer, NID_key_usage, "critical,digitalSignature") &&
                    add_extension(certificate, issuer, NID_ext_key_usage, purposes) &&
                    add_extension(certificate, issuer, NID_subject_alt_name, names) &&
                    add_extension(certificate, issuer, NID_subject_key_identifier, "hash") &&
                    add_extension(certificate, issuer, NID_authority_key_identifier, "keyid:always") &&
                    sign(certificate, ca);
    return ok ? std::move(made) : key_pair{};
}

crl_ptr new_revocations(const key_pair& ca, const X509_CRL* before, const std::vector<X509*>& revoked) {
    crl_ptr list(X509_CRL_new());
    const time_ptr now(ASN1_TIME_set(nullptr, std::time(nullptr))),
        valid_from(ASN1_TIME_adj(nullptr, std::time(nullptr), 0, -clocks_differ_s));
    long number = 1;
    if (before) {
        const integer_ptr last(
            static_cast<ASN1_INTEGER*>(X509_CRL_get_ext_d2i(before, NID_crl_number, nullptr, nullptr)));
        number = last ? ASN1_INTEGER_get(last.get()) + 1 : number;
    }
    const integer_ptr number_text(ASN1_INTEGER_new());
    bool ok = list && now && valid_from && number_text &&
              X509_CRL_set_version(list.get(), X509_CRL_VERSION_2) == 1 &&
              X509_CRL_set_issuer_name(list.get(), X509_get_subject_name(ca.certificate.get())) == 1 &&
              X509_CRL_set1_lastUpdate(list.get(), valid_from.get()) == 1 &&
              X509_CRL_set1_nextUpdate(list.get(), X509_get0_notAfter(ca.certificate.get())) == 1 &&
              ASN1_INTEGER_set(number_text.get(), number) == 1 &&
              X509_CRL_add1_ext_i2d(list.get(), NID_crl_number, number_text.get(), 0, 0) == 1;
    auto* const old = before ? X509_CRL_get_REVOKED(const_cast<X509_CRL*>(before)) : nullptr;
    for (int i = 0; ok && i < sk_X509_REVOKED_num(old); ++i) {
        const X509_REVOKED* const entry = sk_X509_REVOKED_value(old, i);
        ok = add_revoked(list.get(), X509_REVOKED_get0_serialNumber(entry),
                         X509_REVOKED_get0_revocationDate(entry));
    }
    for (X509* const certificate : revoked) {
        const ASN1_INTEGER* const serial = X509_get0_serialNumber(certificate);
        X509_REVOKED* known = nullptr;
        ok = ok && (X509_CRL_get0_by_serial(list.get(), &known, const_cast<ASN1_INTEGER*>(serial)) == 1 ||
                    add_revoked(list.get(), serial, now.get()));
    }
    ok = ok && X509_CRL_sort(list.get()) == 1 && X509_CRL_sign(list.get(), ca.key.get(), nullptr) > 0;
    return ok ? std::move(list) : nullptr;
}

std::string pem(X509* certificate) {
    return written([&](BIO* to) { return PEM_write_bio_X509(to, certificate); });
}

std::string pem(EVP_PKEY* key) {
    return written(
        [&](BIO* to) { return PEM_write_bio_PrivateKey(to, key, nullptr, nullptr, 0, nullptr, nullptr); });
}

std::string pem(X509_CRL* list) {
    return written([&](BIO* to) { return PEM_write_bio_X509_CRL(to, list); });
}

std::vector<x509_ptr> read_certificates(const std::string& path) {
    std::vector<x509_ptr> found;
    const bio_ptr file(BIO_new_file(path.c_str(), "r"));
    while (file) {
        x509_ptr one(PEM_read_bio_X509(file.get(), nullptr, nullptr, nullptr));
        if (!one)
            break;
        found.push_back(std::move(one));
    }
    return found;
}

x509_ptr read_certificate(const std::string& path) {
    auto found = read_certificates(path);
    return found.empty() ? nullptr : std::move(found.front());
}

key_ptr read_key(const std::string& path) {
    const auto no_password = [](char*, int, int, void*) { return -1; };
    const bio_ptr file(BIO_new_file(path.c_str(), "r"));
    return key_ptr(file ? PEM_read_bio_PrivateKey(file.get(), nullptr, no_password, nullptr) : nullptr);
}

crl_ptr read_revocations(const std::string& path) {
    const bio_ptr file(BIO_new_file(path.c_str(), "r"));
    return crl_ptr(file ? PEM_read_bio_X509_CRL(file.get(), nullptr, nullptr, nullptr) : nullptr);
}

std::string common_name(X509* certificate) {
    return text_of(certificate, NID_commonName);
}

std::string host_of(X509* certificate) {
    const auto host = text_of(certificate, NID_organizationalUnitName);
    return host.empty() ? common_name(certificate) : host;
}

std::vector<std::string> names_of(X509* certificate) {
    std::vector<std::string> names{common_name(certificate)};
    const auto free = [](GENERAL_NAMES* all) { GENERAL_NAMES_free(all); };
    const std::unique_ptr<GENERAL_NAMES, decltype(free)> all(
        static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)),
        free);
    for (int i = 0; i < sk_GENERAL_NAME_num(all.get()); ++i) {
        int kind = 0;
        const auto* const value = static_cast<const ASN1_STRING*>(
            GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(all.get(), i), &kind));
        const auto* const bytes = ASN1_STRING_get0_data(value);
        const auto size = static_cast<std::size_t>(ASN1_STRING_length(value));
        std::string name;
        if (kind == GEN_DNS) {
            name.assign(reinterpret_cast<const char*>(bytes), size);
        } else if (kind == GEN_IPADD) {
            char text[INET6_ADDRSTRLEN] = "";
            if (::inet_ntop(size == 4 ? AF_INET : AF_INET6, bytes, text, sizeof(text)))
                name = text;
        }
        if (!name.empty() && name != names.front())
            names.push_back(name);
    }
    return names;
}

std::int64_t expires_at_s(const X509* certificate) {
    std::tm parts{};
    return ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &parts) == 1 ? ::timegm(&parts) : 0;
}

} // namespace kagemusha::control
