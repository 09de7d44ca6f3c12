// SPDX-License-Identifier: GPL-2.0-or-later
//
// See qemu_keys.hpp.
#include "control/keys/qemu_keys.hpp"

#include "control/keys/certificates.hpp"
#include "net/identity.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

namespace kagemusha::control {

namespace fs = std::filesystem;

namespace {

constexpr mirror::role roles[] = {mirror::role::primary, mirror::role::standby};

std::optional<std::string> content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return file ? std::optional(text.str()) : std::nullopt;
}

// Who reads meanwhile gets the old or the new one.
std::string replace(const std::string& path, const std::string& text, std::optional<std::uint32_t> owner) {
    const auto unfinished = path + ".unfinished";
    ::unlink(unfinished.c_str());
    const int fd = ::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
    const bool written = fd >= 0 &&
                         ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                         (!owner || ::fchown(fd, *owner, *owner) == 0);
    if (fd >= 0)
        ::close(fd);
    if (written && ::rename(unfinished.c_str(), path.c_str()) == 0)
        return {};
    return "cannot write " + path + ": " + std::strerror(errno);
}

// QEMU's names for them: its standby end listens, its primary end connects.
std::string link_names(const std::string& directory) {
    const std::pair<const char*, const char*> names[] = {{"ca.pem", "ca-cert.pem"},
                                                         {"crl.pem", "ca-crl.pem"},
                                                         {"standby-cert.pem", "server-cert.pem"},
                                                         {"standby-key.pem", "server-key.pem"},
                                                         {"primary-cert.pem", "client-cert.pem"},
                                                         {"primary-key.pem", "client-key.pem"}};
    for (const auto& [ours, qemus] : names) {
        const auto link = fs::path(directory) / qemus;
        std::error_code failed;
        fs::remove(link, failed);
        fs::create_symlink(ours, link, failed);
        if (failed)
            return "cannot make " + link.string() + ": " + failed.message();
    }
    return {};
}

} // namespace

std::string copy_qemu_keys(const std::string& keys, const std::string& vm, const std::string& to,
                           bool& changed, std::optional<std::uint32_t> owner) {
    changed = false;
    const auto from = net::keys_directory(keys, vm, net::link_part::qemu);
    std::vector<std::string> names{"ca.pem", "crl.pem"};
    for (const auto role : roles) {
        const auto cert = read_certificate(from + "/" + net::certificate_file(role));
        const auto key = read_key(from + "/" + net::key_file(role));
        openssl_says();
        if (!cert || !key)
            return from + " has no " + (cert ? net::key_file(role) : net::certificate_file(role)) +
                   ": each VM has certificates of its own. Make them where the CA is, with `kage keys "
                   "DIRECTORY "
                   "--host HOST --vm " +
                   vm + "`, and copy the host's directory again";
        if (X509_check_private_key(cert.get(), key.get()) != 1) {
            openssl_says();
            return from + "/" + net::key_file(role) + " does not belong to " + net::certificate_file(role);
        }
        names.insert(names.end(), {net::certificate_file(role), net::key_file(role)});
    }
    std::vector<std::pair<std::string, std::string>> copies;
    for (const auto& name : names) {
        auto text = content(from + "/" + name);
        if (!text && name != "crl.pem")
            return "cannot read " + from + "/" + name + ": " + std::strerror(errno);
        if (text && content(to + "/" + name) != text)
            copies.emplace_back(to + "/" + name, std::move(*text));
    }
    if (copies.empty())
        return {};
    if (::mkdir(to.c_str(), S_IRWXU) != 0 && errno != EEXIST)
        return "cannot make " + to + ": " + std::strerror(errno);
    changed = true;
    for (const auto& [path, text] : copies)
        if (auto error = replace(path, text, owner); !error.empty())
            return error;
    return link_names(to);
}

} // namespace kagemusha::control
