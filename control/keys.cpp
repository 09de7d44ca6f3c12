// SPDX-License-Identifier: GPL-2.0-or-later
//
// See keys.hpp.
#include "control/keys.hpp"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>

namespace kagemusha::control {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t longest_name = 64; // of a certificate's common name (RFC 5280)
constexpr std::size_t most_names = 64;
constexpr char ca_directory[] = "ca";

template <auto Free>
struct freer {
    template <class T>
    void operator()(T* object) const {
        Free(object);
    }
};
using x509_ptr = std::unique_ptr<X509, freer<X509_free>>;
using key_ptr = std::unique_ptr<EVP_PKEY, freer<EVP_PKEY_free>>;
using bio_ptr = std::unique_ptr<BIO, freer<BIO_free>>;
using extension_ptr = std::unique_ptr<X509_EXTENSION, freer<X509_EXTENSION_free>>;
using bignum_ptr = std::unique_ptr<BIGNUM, freer<BN_free>>;
using address_ptr = std::unique_ptr<ASN1_OCTET_STRING, freer<ASN1_OCTET_STRING_free>>;

struct identity {
    x509_ptr certificate;
    key_ptr key;
};

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

// It becomes a directory's name and a part of OpenSSL's configuration text, so there is no room for anything
// unusual in it.
bool is_host_name(const std::string& name) {
    const auto plain = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
               c == '_' || c == '.';
    };
    if (name.empty() || name.size() > longest_name || name == ca_directory)
        return false;
    return is_address(name) ||
           (name.front() != '.' && name.front() != '-' && std::all_of(name.begin(), name.end(), plain));
}

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

// A certificate with everything but extensions and signature. Empty pointers on failure.
identity begin_identity(const std::string& name, const keys_request& request) {
    identity out{x509_ptr(X509_new()), key_ptr(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"))};
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
    const bool ok = add("O", "Kagemusha") && add("CN", name) &&
                    X509_time_adj_ex(X509_getm_notBefore(certificate), 0,
                                     static_cast<long>(request.starts_in_s), nullptr) &&
                    X509_time_adj_ex(X509_getm_notAfter(certificate), static_cast<int>(request.days),
                                     static_cast<long>(request.starts_in_s), nullptr) &&
                    X509_set_pubkey(certificate, out.key.get()) == 1;
    return ok ? std::move(out) : identity{};
}

// Ed25519 has its hash inside: no digest is named.
bool sign(X509* certificate, const identity& issuer) {
    return X509_set_issuer_name(certificate, X509_get_subject_name(issuer.certificate.get())) == 1 &&
           X509_sign(certificate, issuer.key.get(), nullptr) > 0;
}

identity new_ca(const keys_request& request) {
    unsigned char random[4];
    if (RAND_bytes(random, sizeof(random)) != 1)
        return {};
    // Two clusters are told apart by their CA's name in every error about it.
    std::string name = "kagemusha cluster ";
    for (const unsigned char byte : random) {
        name += "0123456789abcdef"[byte >> 4];
        name += "0123456789abcdef"[byte & 15];
    }
    auto ca = begin_identity(name, request);
    X509* const certificate = ca.certificate.get();
    const bool ok =
        certificate &&
        add_extension(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
        add_extension(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign") &&
        add_extension(certificate, certificate, NID_subject_key_identifier, "hash") && sign(certificate, ca);
    return ok ? std::move(ca) : identity{};
}

identity new_host(const std::vector<std::string>& names, const identity& ca, const keys_request& request) {
    auto host = begin_identity(names.front(), request);
    X509* const certificate = host.certificate.get();
    X509* const issuer = ca.certificate.get();
    std::string alternatives;
    for (const auto& name : names)
        alternatives +=
            (alternatives.empty() ? "" : ",") + std::string(is_address(name) ? "IP:" : "DNS:") + name;
    const bool ok = certificate &&
                    add_extension(certificate, issuer, NID_basic_constraints, "critical,CA:FALSE") &&
                    add_extension(certificate, issuer, NID_key_usage, "critical,digitalSignature") &&
                    add_extension(certificate, issuer, NID_ext_key_usage, "serverAuth,clientAuth") &&
                    add_extension(certificate, issuer, NID_subject_alt_name, alternatives) &&
                    add_extension(certificate, issuer, NID_subject_key_identifier, "hash") &&
                    add_extension(certificate, issuer, NID_authority_key_identifier, "keyid:always") &&
                    sign(certificate, ca);
    return ok ? std::move(host) : identity{};
}

std::string subject_of(X509* certificate) {
    char text[longest_name + 1] = "";
    X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, text, sizeof(text));
    return text;
}

identity read_ca(const std::string& directory, std::string& error) {
    identity ca;
    const auto cert_path = directory + "/ca.pem", key_path = directory + "/ca-key.pem";
    const auto no_password = [](char*, int, int, void*) { return -1; };
    if (const bio_ptr file(BIO_new_file(cert_path.c_str(), "r")); file)
        ca.certificate.reset(PEM_read_bio_X509(file.get(), nullptr, nullptr, nullptr));
    if (const bio_ptr file(BIO_new_file(key_path.c_str(), "r")); file)
        ca.key.reset(PEM_read_bio_PrivateKey(file.get(), nullptr, no_password, nullptr));
    if (!ca.certificate)
        error = cert_path + " cannot be read as the CA's certificate: " + openssl_says();
    else if (!ca.key)
        error = key_path + " cannot be read as the CA's key: " + openssl_says();
    else if (X509_check_private_key(ca.certificate.get(), ca.key.get()) != 1)
        error = key_path + " does not belong to " + cert_path;
    else if (X509_cmp_current_time(X509_get0_notAfter(ca.certificate.get())) < 0)
        error = "the CA in " + directory + " expired: make new keys in another directory";
    ERR_clear_error();
    return ca;
}

std::string pem(X509* certificate) {
    const bio_ptr memory(BIO_new(BIO_s_mem()));
    char* text = nullptr;
    if (!memory || PEM_write_bio_X509(memory.get(), certificate) != 1)
        return {};
    const long bytes = BIO_get_mem_data(memory.get(), &text);
    return {text, static_cast<std::size_t>(bytes)};
}

std::string pem(EVP_PKEY* key) {
    const bio_ptr memory(BIO_new(BIO_s_mem()));
    char* text = nullptr;
    if (!memory || PEM_write_bio_PrivateKey(memory.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1)
        return {};
    const long bytes = BIO_get_mem_data(memory.get(), &text);
    return {text, static_cast<std::size_t>(bytes)};
}

// Only for its owner, and never over another file.
std::string write_new_file(const std::string& path, const std::string& text) {
    if (text.empty())
        return "cannot make " + path + ": " + openssl_says();
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (fd < 0)
        return "cannot make " + path + ": " + std::strerror(errno);
    const auto written = ::write(fd, text.data(), text.size());
    const int failed = written == static_cast<ssize_t>(text.size()) ? 0 : written < 0 ? errno : ENOSPC;
    if (::close(fd) != 0 || failed != 0)
        return "cannot write " + path + ": " + std::strerror(failed ? failed : errno);
    return {};
}

// A directory that gets its name when it is complete; otherwise it goes away again.
class new_directory {
public:
    explicit new_directory(std::string path) : path_(std::move(path)), unfinished_(path_ + ".unfinished") {}
    ~new_directory() {
        std::error_code ignored;
        if (made_)
            fs::remove_all(named_ ? path_ : unfinished_, ignored);
    }
    new_directory(const new_directory&) = delete;
    new_directory& operator=(const new_directory&) = delete;

    std::string make() {
        if (::mkdir(unfinished_.c_str(), S_IRWXU) != 0)
            return "cannot make " + unfinished_ + ": " + std::strerror(errno);
        made_ = true;
        return {};
    }
    std::string add(const std::string& name, const std::string& text) {
        return write_new_file(unfinished_ + "/" + name, text);
    }
    std::string give_name() {
        std::error_code failed;
        if (fs::exists(fs::symlink_status(path_, failed)))
            return path_ + " exists already and is not overwritten";
        if (::rename(unfinished_.c_str(), path_.c_str()) != 0)
            return "cannot make " + path_ + ": " + std::strerror(errno);
        named_ = true;
        return {};
    }
    void keep() { made_ = false; }
    const std::string& path() const { return path_; }

private:
    std::string path_, unfinished_;
    bool made_ = false, named_ = false;
};

std::string check(const keys_request& request) {
    if (request.hosts.empty())
        return "no host was named";
    std::set<std::string> directories;
    for (const auto& names : request.hosts) {
        if (names.empty() || names.size() > most_names)
            return "a host has 1 to " + std::to_string(most_names) + " names";
        for (const auto& name : names) {
            if (!is_host_name(name))
                return "'" + name +
                       "' is no name for a host: letters, digits, '-', '_' and '.' (at most 64; not 'ca'), "
                       "or an "
                       "IP address";
        }
        if (!directories.insert(names.front()).second)
            return "the host " + names.front() + " was named twice";
        std::error_code ignored;
        const auto path = request.directory + "/" + names.front();
        if (fs::exists(fs::symlink_status(path, ignored)))
            return path + " exists already and is not overwritten; remove it to make new keys for this host";
    }
    return {};
}

} // namespace

std::vector<std::string> host_names(const std::string& text) {
    std::vector<std::string> names{{}};
    for (const char c : text) {
        if (c == ',')
            names.emplace_back();
        else
            names.back() += c;
    }
    return names;
}

keys_result make_keys(const keys_request& request) {
    keys_result result;
    ERR_clear_error();
    result.error = check(request);
    if (!result.error.empty())
        return result;
    std::error_code failed;
    fs::create_directories(request.directory, failed);
    if (failed) {
        result.error = "cannot make " + request.directory + ": " + failed.message();
        return result;
    }

    std::vector<std::unique_ptr<new_directory>> made;
    const auto add_directory = [&](const std::string& name,
                                   const std::vector<std::pair<std::string, std::string>>& files) {
        made.push_back(std::make_unique<new_directory>(request.directory + "/" + name));
        result.error = made.back()->make();
        for (const auto& [file, text] : files) {
            if (result.error.empty())
                result.error = made.back()->add(file, text);
        }
        return result.error.empty();
    };

    identity ca;
    result.new_ca = !fs::exists(request.directory + "/" + ca_directory, failed);
    if (result.new_ca) {
        ca = new_ca(request);
        if (!ca.certificate) {
            result.error = "cannot make a CA: " + openssl_says();
            return result;
        }
        if (!add_directory(ca_directory,
                           {{"ca.pem", pem(ca.certificate.get())}, {"ca-key.pem", pem(ca.key.get())}}))
            return result;
    } else {
        ca = read_ca(request.directory + "/" + ca_directory, result.error);
        if (!result.error.empty())
            return result;
    }
    result.ca_name = subject_of(ca.certificate.get());

    for (const auto& names : request.hosts) {
        const auto host = new_host(names, ca, request);
        if (!host.certificate) {
            result.error = "cannot make the certificate of " + names.front() + ": " + openssl_says();
            return result;
        }
        if (!add_directory(names.front(), {{"ca.pem", pem(ca.certificate.get())},
                                           {"cert.pem", pem(host.certificate.get())},
                                           {"key.pem", pem(host.key.get())}}))
            return result;
    }
    for (const auto& directory : made) {
        result.error = directory->give_name();
        if (!result.error.empty())
            return result;
    }
    for (const auto& directory : made) {
        directory->keep();
        if (directory->path() != request.directory + "/" + ca_directory)
            result.host_directories.push_back(directory->path());
    }
    return result;
}

std::string keys_advice(const keys_request& request, const keys_result& result) {
    const auto ca = request.directory + "/" + ca_directory;
    std::string text =
        (result.new_ca ? "A new CA, '" : "Signed by the CA that was there, '") + result.ca_name + "': " + ca +
        "\n" +
        "Its ca-key.pem signs further hosts (the same command with other hosts). Whoever has it "
        "can let hosts in: keep it away from the hosts themselves.\n";
    for (std::size_t i = 0; i < result.host_directories.size(); ++i) {
        const auto& directory = result.host_directories[i];
        text += "\nHost " + request.hosts[i].front();
        for (std::size_t n = 1; n < request.hosts[i].size(); ++n)
            text += (n == 1 ? " (also " : ", ") + request.hosts[i][n];
        text += std::string(request.hosts[i].size() > 1 ? ")" : "") + ": " + directory +
                "\n  copy it there as a directory that only QEMU's user can read, for example\n  scp -rp " +
                directory + " " + request.hosts[i].front() + ":/etc/kagemusha-keys\n";
    }
    return text;
}

} // namespace kagemusha::control
