// SPDX-License-Identifier: GPL-2.0-or-later
// See identity.hpp.
#include "net/identity.hpp"

#include <algorithm>
#include <cassert>

namespace kagemusha::net {

namespace {

constexpr std::size_t longest_name = 32;

bool is_upper(char c) {
    return c >= 'A' && c <= 'Z';
}

bool is_plain(char c) {
    return (c >= 'a' && c <= 'z') || is_upper(c) || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
}

const char* word(mirror::role role) {
    return role == mirror::role::primary ? "primary" : "standby";
}

} // namespace

bool is_certified_name(std::string_view vm) {
    return !vm.empty() && vm.size() <= longest_name && vm.front() != '.' && vm.front() != '-' &&
           std::all_of(vm.begin(), vm.end(), is_plain);
}

std::string certificate_name(const peer_identity& who) {
    assert(is_certified_name(who.vm));
    std::string name = word(who.role);
    name += who.part == link_part::supervisor ? ".supervisor." : ".qemu.";
    for (const char c : who.vm) {
        if (is_upper(c) || c == '_')
            name += '_';
        name += is_upper(c) ? static_cast<char>(c - 'A' + 'a') : c;
    }
    return name.append(certificate_domain);
}

std::string certificate_subject(const peer_identity& who) {
    return std::string(word(who.role)) + " of " + who.vm +
           (who.part == link_part::supervisor ? " (supervisor)" : " (QEMU)");
}

std::string certificate_file(mirror::role role) {
    return std::string(word(role)) + "-cert.pem";
}

std::string key_file(mirror::role role) {
    return std::string(word(role)) + "-key.pem";
}

std::string keys_directory(const std::string& of_host, const std::string& vm, link_part part) {
    return of_host + "/vm/" + vm + (part == link_part::supervisor ? "/supervisor" : "/qemu");
}

} // namespace kagemusha::net
