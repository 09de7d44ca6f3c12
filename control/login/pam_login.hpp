// SPDX-License-Identifier: GPL-2.0-or-later
//
// A name and a password at the host's PAM. Its modules may wait for seconds, keep state of a process and crash, so
// each login has a process of its own: `kagemusha --pam-login`, which reads
//
//   SERVICE \0 NAME \0 PASSWORD \0 ADDRESS \0        from its standard input
//
// and writes one JSON object: {"user": "ann", "groups": ["gpu"]}, or {"refused": "password" | "account" |
// "system", "why": "…"}. It is killed when its time is over. The password is in no argument, no environment and
// no file, and is overwritten after its use.
//
// Threads: any; each call waits. Callers bound how many there are.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::control::login {

inline constexpr char pam_word[] = "--pam-login";

struct pam_limits {
    static constexpr auto answer = std::chrono::seconds(10); // LDAP, pam_faildelay
    static constexpr std::size_t longest_name = 64, longest_password = 256, most_groups = 4096;
    static constexpr std::size_t answer_bytes = 256 << 10;
};

struct pam_answer {
    enum class kind { accepted, wrong_password, account_refused, failed } what = kind::failed;
    std::string user{}; // as PAM names it
    std::vector<std::string> groups{};
    std::string why{}; // of a refusal, for the daemon's log; nothing of the password is in it
};

// What PAM is asked at all: no empty ones, no zero bytes, no name that a module could take for a path or an option.
bool is_pam_name(std::string_view name);
bool is_pam_password(std::string_view password);

// `tool`: our own program.
pam_answer ask_pam(const std::string& tool, const std::string& service, const std::string& name,
                   const std::string& password, const std::string& address);

// Pure: what the process has written.
pam_answer read_pam_answer(std::string_view text);

// The process.
[[noreturn]] void pam_main();

} // namespace kagemusha::control::login
