// SPDX-License-Identifier: GPL-2.0-or-later
//
// See settings.hpp.
#include "control/login/settings.hpp"

#include "control/base/process.hpp" // unique_fd
#include "control/vm/toml_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

namespace kagemusha::control::login {

namespace {

constexpr std::size_t longest_file = 64 << 10, longest_secret = 4096, longest_name = 256, most_names = 100;

void complain(toml_table& from, const char* key, const std::string& what) {
    from.complain(key, fmt::format("'{}' {}", key, what));
}

void read_roles(toml_table& from, role_rules& out) {
    const std::pair<const char*, std::vector<std::string>*> all[] = {
        {"viewers", &out.viewers}, {"operators", &out.operators}, {"admins", &out.admins}};
    for (const auto& [key, names] : all) {
        from.texts(key, *names);
        if (names->size() > most_names || std::ranges::any_of(*names, [](const auto& name) {
                return name.empty() || name.size() > longest_name;
            }))
            complain(from, key,
                     fmt::format("has at most {} names of 1 to {} bytes each", most_names, longest_name));
    }
    if (out.are_empty())
        complain(from, "viewers", "names nobody, and neither does another role: nobody would get in");
}

void read_pam(toml_table& from, pam_settings& out) {
    from.text("service", out.service);
    if (out.service.empty() || out.service.size() > longest_name ||
        out.service.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-") != std::string::npos)
        complain(from, "service", "is the name of a file of /etc/pam.d: small letters, digits, '_' and '-'");
    read_roles(from, out.roles);
}

void need_https(toml_table& from, const char* key, const std::string& url) {
    if (!url.empty() && !is_https_url(url))
        complain(from, key, "is an address as https://sso.example");
}

void read_oidc(toml_table& from, oidc_settings& out, secret_reader read) {
    std::string secret_file;
    from.text("issuer", out.issuer);
    from.text("client-id", out.client_id);
    from.path("client-secret-file", secret_file);
    from.text("portal", out.portal);
    from.text("label", out.label);
    from.path("ca-file", out.ca_file);
    from.text("role-claim", out.role_claim);
    from.text("name-claim", out.name_claim);
    if (from.has("scopes"))
        out.scopes.clear(); // what is named replaces the default
    from.texts("scopes", out.scopes);
    read_roles(from, out.roles);
    const std::pair<const char*, const std::string*> needed[] = {{"issuer", &out.issuer},
                                                                 {"client-id", &out.client_id},
                                                                 {"portal", &out.portal},
                                                                 {"label", &out.label}};
    for (const auto& [key, text] : needed)
        if (text->empty())
            complain(from, key, "is needed: docs/portal.md has an example");
    need_https(from, "issuer", out.issuer);
    need_https(from, "portal", out.portal);
    if (out.portal.ends_with('/'))
        out.portal.pop_back();
    if (out.portal.find('/', std::strlen("https://")) != std::string::npos)
        complain(from, "portal", "is an address without a path, as https://gpu.example:7443");
    for (const auto& [key, text] : {std::pair{"client-id", &out.client_id},
                                    {"label", &out.label},
                                    {"role-claim", &out.role_claim},
                                    {"name-claim", &out.name_claim}})
        if (text->size() > longest_name)
            complain(from, key, fmt::format("has at most {} bytes", longest_name));
    if (std::ranges::find(out.scopes, "openid") == out.scopes.end() || out.scopes.size() > most_names ||
        std::ranges::any_of(out.scopes, [](const auto& one) {
            return one.empty() || one.find_first_of(" \"\\") != std::string::npos;
        }))
        complain(from, "scopes", "is a list of words, one of which is openid");
    if (secret_file.empty())
        return;
    std::string why;
    if (auto secret = read(secret_file, why))
        out.client_secret = std::move(*secret);
    else
        complain(from, "client-secret-file", why);
    while (out.client_secret.ends_with('\n'))
        out.client_secret.pop_back();
    if (out.client_secret.empty() && why.empty())
        complain(from, "client-secret-file", "names a file that is empty");
}

// `others`: what others of the machine may have of it.
std::optional<std::string> read_guarded(const std::string& path, mode_t others, std::size_t most,
                                        std::string& why) {
    const unique_fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat found{};
    if (!fd || ::fstat(fd.get(), &found) != 0) {
        why = fmt::format("{} can't be read: {}", path, std::strerror(errno));
        return std::nullopt;
    }
    if (!S_ISREG(found.st_mode) || (found.st_uid != 0 && found.st_uid != ::getuid()) ||
        (found.st_mode & (S_IRWXG | S_IRWXO) & ~others) != 0) {
        why = fmt::format("{} must be a file of root or of the daemon's user, with mode {:04o} or less", path,
                          S_IRUSR | S_IWUSR | others);
        return std::nullopt;
    }
    std::string text(most + 1, '\0');
    std::size_t size = 0;
    for (ssize_t got = 1; got > 0 && size < text.size();
         size += static_cast<std::size_t>(std::max<ssize_t>(got, 0)))
        got = ::read(fd.get(), text.data() + size, text.size() - size);
    if (size > most) {
        why = fmt::format("{} is longer than {} bytes", path, most);
        return std::nullopt;
    }
    text.resize(size);
    return text;
}

std::optional<std::string> read_secret(const std::string& path, std::string& why) {
    return read_guarded(path, 0, longest_secret, why);
}

} // namespace

access::role role_by(const role_rules& rules, const std::vector<std::string>& groups) {
    const auto has = [&](const std::vector<std::string>& named) {
        return std::ranges::any_of(
            groups, [&](const auto& group) { return std::ranges::find(named, group) != named.end(); });
    };
    return has(rules.admins)      ? access::role::admin
           : has(rules.operators) ? access::role::operates
           : has(rules.viewers)   ? access::role::viewer
                                  : access::role::nobody;
}

std::string oidc_settings::redirect_uri() const {
    return portal + oidc_callback_path;
}

bool is_https_url(std::string_view url) {
    constexpr std::string_view begins = "https://";
    constexpr std::size_t longest = 1024;
    if (!url.starts_with(begins) || url.size() > longest)
        return false;
    const auto host = url.substr(begins.size(), url.find('/', begins.size()) - begins.size());
    return !host.empty() && host.front() != ':' && host.find('@') == host.npos &&
           std::ranges::all_of(url, [](char c) {
               return c > 0x20 && c < 0x7f &&
                      std::string_view("?#\\\"<>^`{|}").find(c) == std::string_view::npos;
           });
}

settings parse_settings(std::string_view text, const std::string& file, secret_reader read,
                        std::vector<std::string>& errors) {
    settings out;
    toml_reader reader(file, std::filesystem::path(file).parent_path().string(), errors);
    try {
        const auto parsed = toml::parse(text, file);
        toml_table whole(reader, parsed, "this file");
        if (const auto* pam = whole.child("pam")) {
            toml_table from(reader, *pam, "pam");
            read_pam(from, out.pam.emplace());
        }
        if (const auto* oidc = whole.child("oidc")) {
            toml_table from(reader, *oidc, "oidc");
            read_oidc(from, out.oidc.emplace(), read);
        }
    } catch (const toml::parse_error& failed) {
        reader.complain(failed.source(), std::string(failed.description()));
    }
    return errors.empty() ? std::move(out) : settings{};
}

settings load_settings(const std::string& file, std::vector<std::string>& errors) {
    std::error_code failed;
    if (!std::filesystem::exists(file, failed) && !failed)
        return {};
    std::string why;
    const auto text = read_guarded(file, S_IRGRP | S_IROTH, longest_file, why);
    if (!text) {
        errors.push_back(why);
        return {};
    }
    return parse_settings(*text, file, read_secret, errors);
}

} // namespace kagemusha::control::login
