// SPDX-License-Identifier: GPL-2.0-or-later
//
// See keys.hpp.
#include "control/keys/keys.hpp"

#include "control/keys/certificates.hpp"
#include "net/identity.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

namespace kagemusha::control {

namespace fs = std::filesystem;
using net::link_part;

namespace {

constexpr std::size_t longest_name = 64; // of a certificate's common name (RFC 5280)
constexpr std::size_t most_names = 64;
constexpr char ca_directory[] = "ca";
constexpr link_part parts[] = {link_part::supervisor, link_part::qemu};
constexpr mirror::role roles[] = {mirror::role::primary, mirror::role::standby};

using file_list = std::vector<std::pair<std::string, std::string>>; // relative path, content

// It becomes a directory's name and a part of OpenSSL's configuration text, so there is no room for anything
// unusual in it. Names of VMs' ends are never a host's.
bool is_host_name(const std::string& name) {
    const auto plain = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
               c == '_' || c == '.';
    };
    if (name.empty() || name.size() > longest_name || name == ca_directory)
        return false;
    std::string lower = name;
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    if (lower.ends_with(net::certificate_domain))
        return false;
    return is_address(name) ||
           (name.front() != '.' && name.front() != '-' && std::all_of(name.begin(), name.end(), plain));
}

bool exists(const std::string& path) {
    std::error_code ignored;
    return fs::exists(fs::symlink_status(path, ignored));
}

std::string fill(const std::string& path, int flags, const std::string& text) {
    if (text.empty())
        return "cannot make " + path + ": " + openssl_says();
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, S_IRUSR | S_IWUSR);
    if (fd < 0)
        return "cannot make " + path + ": " + std::strerror(errno);
    const auto written = ::write(fd, text.data(), text.size());
    const int failed = written == static_cast<ssize_t>(text.size()) ? 0 : written < 0 ? errno : ENOSPC;
    if (::close(fd) != 0 || failed != 0)
        return "cannot write " + path + ": " + std::strerror(failed ? failed : errno);
    return {};
}

// Only for its owner, and never over another file.
std::string write_new_file(const std::string& path, const std::string& text) {
    return fill(path, O_EXCL, text);
}

// In the place of the one that is there; who reads meanwhile gets one of both.
std::string replace_file(const std::string& path, const std::string& text) {
    const auto unfinished = path + ".unfinished";
    ::unlink(unfinished.c_str());
    auto error = write_new_file(unfinished, text);
    if (error.empty() && ::rename(unfinished.c_str(), path.c_str()) != 0)
        error = "cannot write " + path + ": " + std::strerror(errno);
    return error;
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
        if (auto error = make_one(unfinished_); !error.empty())
            return error;
        made_ = true;
        return {};
    }
    // `name` may have directories of its own before it.
    std::string add(const std::string& name, const std::string& text) {
        for (auto slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1)) {
            const auto parent = unfinished_ + "/" + name.substr(0, slash);
            if (auto error = exists(parent) ? std::string() : make_one(parent); !error.empty())
                return error;
        }
        return write_new_file(unfinished_ + "/" + name, text);
    }
    std::string give_name() {
        if (exists(path_))
            return path_ + " exists already and is not overwritten";
        if (::rename(unfinished_.c_str(), path_.c_str()) != 0)
            return "cannot make " + path_ + ": " + std::strerror(errno);
        named_ = true;
        return {};
    }
    void keep() { made_ = false; }

private:
    static std::string make_one(const std::string& path) {
        return ::mkdir(path.c_str(), S_IRWXU) == 0 ? std::string()
                                                   : "cannot make " + path + ": " + std::strerror(errno);
    }
    std::string path_, unfinished_;
    bool made_ = false, named_ = false;
};

// The CA, and what it does for one request.
class authority {
public:
    explicit authority(const keys_request& request)
        : request_(request), directory_(request.directory + "/" + ca_directory) {}

    // Empty, or what is wrong with it.
    std::string open() {
        const auto cert_path = directory_ + "/ca.pem", key_path = directory_ + "/ca-key.pem";
        ca_.certificate = read_certificate(cert_path);
        if (!ca_.certificate)
            return cert_path + " cannot be read as the CA's certificate: " + openssl_says();
        ca_.key = read_key(key_path);
        if (!ca_.key)
            return key_path + " cannot be read as the CA's key: " + openssl_says();
        if (X509_check_private_key(ca_.certificate.get(), ca_.key.get()) != 1)
            return key_path + " does not belong to " + cert_path;
        if (X509_cmp_current_time(X509_get0_notAfter(ca_.certificate.get())) < 0)
            return "the CA in " + directory_ + " expired: make new keys in another directory";
        revoked_ = read_revocations(directory_ + "/crl.pem");
        if (!revoked_ && exists(directory_ + "/crl.pem"))
            return directory_ + "/crl.pem cannot be read as the CA's list of revoked certificates";
        openssl_says();
        if (revoked_)
            return {};
        // A CA from before there were such lists.
        const auto error = renew_list({});
        return error.empty() ? replace_file(directory_ + "/crl.pem", crl_text()) : error;
    }
    std::string make(file_list& files) {
        ca_ = new_ca(request_.ca_days, request_.starts_in_s);
        if (!ca_.certificate)
            return "cannot make a CA: " + openssl_says();
        if (auto error = renew_list({}); !error.empty())
            return error;
        files = {{"ca.pem", ca_text()}, {"ca-key.pem", pem(ca_.key.get())}, {"crl.pem", crl_text()}};
        return {};
    }

    std::string add_host(file_list& files, const std::vector<std::string>& names) {
        certificate_request wanted;
        wanted.name = names.front();
        wanted.names = names;
        wanted.server = wanted.client = true;
        files.emplace_back("ca.pem", ca_text());
        return add(files, wanted, "cert.pem", "key.pem");
    }
    // All parts and roles. `to`: the relative path of the VM's directory, with a slash, or "".
    std::string add_vm(file_list& files, const std::string& to, const std::string& host,
                       const std::string& vm) {
        std::string error;
        for (const auto part : parts) {
            const auto directory = to + (part == link_part::supervisor ? "supervisor/" : "qemu/");
            files.emplace_back(directory + "ca.pem", ca_text());
            files.emplace_back(directory + "crl.pem", crl_text());
            for (const auto role : roles)
                if (error.empty())
                    error = add_end(files, directory, host, {vm, role, part});
        }
        return error;
    }
    std::string add_end(file_list& files, const std::string& directory, const std::string& host,
                        const net::peer_identity& who) {
        certificate_request wanted;
        wanted.name = net::certificate_subject(who);
        wanted.host = host;
        wanted.names = {net::certificate_name(who)};
        wanted.client = who.role == mirror::role::primary; // it connects
        wanted.server = !wanted.client;
        return add(files, wanted, directory + net::certificate_file(who.role),
                   directory + net::key_file(who.role));
    }

    // Before any of them is handed out: what is not known can't be revoked.
    std::string record_issued() {
        return issued_.empty() ? std::string() : fill(directory_ + "/issued.pem", O_APPEND, issued_);
    }
    std::string renew_list(const std::vector<X509*>& more) {
        auto list = new_revocations(ca_, revoked_.get(), more);
        if (!list)
            return "cannot make the list of revoked certificates: " + openssl_says();
        revoked_ = std::move(list);
        return {};
    }

    const std::string& directory() const { return directory_; }
    std::string name() const { return common_name(ca_.certificate.get()); }
    std::string ca_text() const { return pem(ca_.certificate.get()); }
    std::string crl_text() const { return pem(revoked_.get()); }
    bool is_revoked(X509* certificate) const {
        X509_REVOKED* found = nullptr;
        return X509_CRL_get0_by_cert(revoked_.get(), &found, certificate) == 1;
    }

private:
    std::string add(file_list& files, certificate_request& wanted, const std::string& certificate,
                    const std::string& key) {
        wanted.days = request_.days;
        wanted.starts_in_s = request_.starts_in_s;
        const auto made = new_certificate(wanted, ca_);
        if (!made.certificate)
            return "cannot make the certificate of " + wanted.name + ": " + openssl_says();
        files.emplace_back(certificate, pem(made.certificate.get()));
        files.emplace_back(key, pem(made.key.get()));
        issued_ += files[files.size() - 2].second;
        return {};
    }

    const keys_request& request_;
    const std::string directory_;
    key_pair ca_;
    crl_ptr revoked_;
    std::string issued_;
};

std::string check_names(const keys_request& request) {
    std::set<std::string> known;
    for (const auto& names : request.hosts) {
        if (names.empty() || names.size() > most_names)
            return "a host has 1 to " + std::to_string(most_names) + " names";
        for (const auto& name : names)
            if (!is_host_name(name))
                return "'" + name +
                       "' is no name for a host: letters, digits, '-', '_' and '.' (at most 64; not 'ca', "
                       "not "
                       "in .vm.kagemusha), or an IP address";
        if (!known.insert(names.front()).second)
            return "the host " + names.front() + " was named twice";
    }
    known.clear();
    for (const auto& vm : request.vms) {
        if (!net::is_certified_name(vm))
            return "'" + vm + "' is no name of a VM: 1 to 32 letters, digits, '-', '_' and '.'";
        if (!known.insert(vm).second)
            return "the VM " + vm + " was named twice";
    }
    return {};
}

std::string check_new(const keys_request& request) {
    if (request.hosts.empty())
        return "no host was named";
    for (const auto& names : request.hosts) {
        const auto path = request.directory + "/" + names.front();
        if (!exists(path))
            continue;
        if (request.vms.empty())
            return path + " exists already and is not overwritten; `kage keys " + request.directory +
                   " --renew --host " + names.front() + "` makes new keys for this host";
        if (names.size() > 1)
            return path + " exists already: its other names are those that it was made with";
        for (const auto& vm : request.vms)
            if (exists(path + "/vm/" + vm))
                return path + "/vm/" + vm + " exists already and is not overwritten; `kage keys " +
                       request.directory + " --renew --host " + names.front() + " --vm " + vm +
                       "` makes new keys for it";
    }
    return {};
}

std::vector<std::string> directories_in(const std::string& path) {
    std::vector<std::string> names;
    std::error_code failed;
    for (fs::directory_iterator at(path, failed), end; !failed && at != end; at.increment(failed))
        if (at->is_directory(failed) && !at->is_symlink(failed))
            names.push_back(at->path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
}

// Of those that are there. An error when a named one is not.
std::string hosts_of(const keys_request& request, std::vector<std::string>& hosts) {
    for (const auto& name : directories_in(request.directory))
        if (name != ca_directory && exists(request.directory + "/" + name + "/ca.pem"))
            hosts.push_back(name);
    if (request.hosts.empty())
        return {};
    std::vector<std::string> named;
    for (const auto& names : request.hosts) {
        if (std::find(hosts.begin(), hosts.end(), names.front()) == hosts.end())
            return "there is no host " + names.front() + " in " + request.directory;
        named.push_back(names.front());
    }
    hosts = std::move(named);
    return {};
}

bool wanted(const keys_request& request, const std::string& vm) {
    return request.vms.empty() || std::find(request.vms.begin(), request.vms.end(), vm) != request.vms.end();
}

std::string replace_all(const std::string& directory, const file_list& files) {
    std::string error;
    for (const auto& [name, text] : files)
        if (error.empty())
            error = replace_file(directory + "/" + name, text);
    return error;
}

} // namespace

std::vector<std::string> host_names(const std::string& text) {
    std::vector<std::string> names{{}};
    for (const char c : text)
        if (c == ',')
            names.emplace_back();
        else
            names.back() += c;
    return names;
}

keys_result make_keys(const keys_request& request) {
    keys_result result;
    openssl_says();
    result.error = check_names(request);
    if (result.error.empty())
        result.error = check_new(request);
    if (!result.error.empty())
        return result;
    std::error_code failed;
    fs::create_directories(request.directory, failed);
    if (failed) {
        result.error = "cannot make " + request.directory + ": " + failed.message();
        return result;
    }

    std::vector<std::unique_ptr<new_directory>> made;
    const auto add_directory = [&](const std::string& path, const file_list& files) {
        made.push_back(std::make_unique<new_directory>(path));
        result.error = made.back()->make();
        for (const auto& [file, text] : files)
            if (result.error.empty())
                result.error = made.back()->add(file, text);
        return result.error.empty();
    };

    authority ca(request);
    result.new_ca = !exists(ca.directory());
    file_list files;
    result.error = result.new_ca ? ca.make(files) : ca.open();
    if (!result.error.empty() || (result.new_ca && !add_directory(ca.directory(), files)))
        return result;
    result.ca_name = ca.name();

    for (const auto& names : request.hosts) {
        const auto& host = names.front();
        const auto directory = request.directory + "/" + host;
        result.host_directories.push_back(directory);
        const bool is_new = !exists(directory);
        files.clear();
        if (is_new)
            result.error = ca.add_host(files, names);
        else if (::mkdir((directory + "/vm").c_str(), S_IRWXU) != 0 && errno != EEXIST)
            result.error = "cannot make " + directory + "/vm: " + std::strerror(errno);
        for (const auto& vm : request.vms) {
            if (!is_new)
                files.clear();
            if (result.error.empty())
                result.error = ca.add_vm(files, is_new ? "vm/" + vm + "/" : "", host, vm);
            if (!result.error.empty() || (!is_new && !add_directory(directory + "/vm/" + vm, files)))
                return result;
        }
        if (!result.error.empty() || (is_new && !add_directory(directory, files)))
            return result;
    }
    // The CA's directory, if it is new, is the first; then what it issued is recorded; then hosts get theirs.
    for (std::size_t i = 0; i < made.size(); ++i) {
        if (i == (result.new_ca ? 1u : 0u))
            result.error = ca.record_issued();
        if (result.error.empty())
            result.error = made[i]->give_name();
        if (!result.error.empty())
            return result;
    }
    for (const auto& directory : made)
        directory->keep();
    return result;
}

keys_result renew_keys(const keys_request& request) {
    keys_result result;
    std::vector<std::string> hosts;
    authority ca(request);
    result.error = check_names(request);
    if (result.error.empty())
        result.error = hosts_of(request, hosts);
    if (result.error.empty())
        result.error = ca.open();
    if (!result.error.empty())
        return result;
    result.ca_name = ca.name();
    std::vector<std::pair<std::string, file_list>> changes; // by their host's directory
    for (const auto& host : hosts) {
        const auto directory = request.directory + "/" + host;
        file_list files;
        if (request.vms.empty()) {
            const auto before = read_certificate(directory + "/cert.pem");
            if (!before)
                result.error = directory + "/cert.pem cannot be read as a certificate";
            else
                result.error = ca.add_host(files, names_of(before.get()));
            result.certificates.push_back(host);
        }
        for (const auto& vm : directories_in(directory + "/vm")) {
            if (!wanted(request, vm) || !net::is_certified_name(vm))
                continue;
            if (result.error.empty())
                result.error = ca.add_vm(files, "vm/" + vm + "/", host, vm);
            result.certificates.push_back(vm + " at " + host);
        }
        if (!result.error.empty())
            return result;
        if (!files.empty())
            changes.emplace_back(directory, std::move(files));
    }
    if (changes.empty())
        result.error = "there is nothing to renew in " + request.directory + ": no such keys were made";
    if (result.error.empty())
        result.error = ca.record_issued();
    for (const auto& [directory, files] : changes) {
        if (result.error.empty())
            result.error = replace_all(directory, files);
        result.host_directories.push_back(directory);
    }
    return result;
}

keys_result revoke_keys(const keys_request& request) {
    keys_result result;
    authority ca(request);
    result.error = request.hosts.empty() ? "no host was named" : check_names(request);
    if (result.error.empty())
        result.error = ca.open();
    if (!result.error.empty())
        return result;
    result.ca_name = ca.name();
    // What was issued, and what an earlier release made without writing it down.
    auto known = read_certificates(ca.directory() + "/issued.pem");
    for (const auto& names : request.hosts)
        if (auto own = read_certificate(request.directory + "/" + names.front() + "/cert.pem"))
            known.push_back(std::move(own));
    openssl_says();
    std::vector<X509*> revoked;
    for (const auto& names : request.hosts) {
        bool found = false;
        for (const auto& certificate : known) {
            X509* const one = certificate.get();
            const auto name = common_name(one);
            const bool fits = request.vms.empty() ||
                              std::any_of(request.vms.begin(), request.vms.end(), [&](const std::string& vm) {
                                  return name.find(" of " + vm + " (") != std::string::npos;
                              });
            if (host_of(one) != names.front() || !fits)
                continue;
            found = true;
            const bool over = X509_cmp_current_time(X509_get0_notAfter(one)) < 0;
            if (over || ca.is_revoked(one))
                continue;
            revoked.push_back(one);
            const auto text = name == names.front() ? name : name + " at " + names.front();
            if (std::find(result.certificates.begin(), result.certificates.end(), text) ==
                result.certificates.end())
                result.certificates.push_back(text);
        }
        if (!found) {
            result.error = "no certificate was ever made for the host " + names.front() +
                           (request.vms.empty() ? "" : " and these VMs") + " with the CA in " +
                           ca.directory();
            return result;
        }
    }
    result.error = ca.renew_list(revoked);
    if (result.error.empty())
        result.error = replace_file(ca.directory() + "/crl.pem", ca.crl_text());
    for (const auto& host : directories_in(request.directory)) {
        if (host == ca_directory)
            continue;
        for (const auto& vm : directories_in(request.directory + "/" + host + "/vm"))
            for (const auto part : parts) {
                const auto list = net::keys_directory(request.directory + "/" + host, vm, part) + "/crl.pem";
                if (result.error.empty() && exists(list))
                    result.error = replace_file(list, ca.crl_text());
            }
        result.host_directories.push_back(request.directory + "/" + host);
    }
    return result;
}

std::string keys_advice(const keys_request& request, const keys_result& result) {
    const auto ca = request.directory + "/" + ca_directory;
    std::string text = (result.new_ca ? "A new CA, '" : "Signed by the CA that was there, '") +
                       result.ca_name + "': " + ca + "\n" +
                       "Its ca-key.pem signs further certificates (the same command with other hosts or "
                       "VMs). Whoever has it "
                       "can let hosts in: keep it away from the hosts themselves.\n";
    std::string vms;
    for (const auto& vm : request.vms)
        vms += (vms.empty() ? "" : ", ") + vm;
    if (vms.empty())
        text += "No VM can be protected with them yet: `kage keys " + request.directory +
                " --host HOST --vm VM` makes the certificates of a VM for each host that may run it.\n";
    for (std::size_t i = 0; i < result.host_directories.size(); ++i) {
        const auto& directory = result.host_directories[i];
        text += "\nHost " + request.hosts[i].front();
        for (std::size_t n = 1; n < request.hosts[i].size(); ++n)
            text += (n == 1 ? " (also " : ", ") + request.hosts[i][n];
        text += std::string(request.hosts[i].size() > 1 ? ")" : "") + (vms.empty() ? "" : ", for " + vms) +
                ": " + directory +
                "\n  copy it there as a directory that only the user of `kage` can read, for example\n"
                "  scp -rp " +
                directory + "/. " + request.hosts[i].front() + ":/etc/kagemusha-keys\n";
    }
    return text;
}

namespace {

std::string lines(const std::vector<std::string>& all) {
    std::string text;
    for (const auto& one : all)
        text += "  " + one + "\n";
    return text;
}

std::string copies(const keys_result& result) {
    std::string text = "Copy the directories to their hosts again; running VMs read them within a second:\n";
    for (const auto& directory : result.host_directories)
        text += "  scp -rp " + directory + "/. " + fs::path(directory).filename().string() +
                ":/etc/kagemusha-keys\n";
    return text;
}

} // namespace

std::string renew_advice(const keys_request& request, const keys_result& result) {
    return "Renewed for " + std::to_string(request.days) + " days:\n" + lines(result.certificates) +
           copies(result);
}

std::string revoke_advice(const keys_request& request, const keys_result& result) {
    return (result.certificates.empty() ? "They were revoked already.\n"
                                        : "Revoked:\n" + lines(result.certificates)) +
           "They are let in until the list " + request.directory + "/" + ca_directory +
           "/crl.pem is on every other host.\n" + copies(result);
}

} // namespace kagemusha::control
