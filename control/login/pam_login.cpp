// SPDX-License-Identifier: GPL-2.0-or-later
//
// See pam_login.hpp.
#include "control/login/pam_login.hpp"

#include "control/access/secrets.hpp"
#include "control/base/json_text.hpp"
#include "control/base/process.hpp"
#include "control/base/write_all.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace kagemusha::control::login {

using json = nlohmann::json;
using kind = pam_answer::kind;

bool is_pam_name(std::string_view name) {
    constexpr std::string_view letters =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._@\\$-";
    return !name.empty() && name.size() <= pam_limits::longest_name && name.front() != '-' &&
           name.front() != '.' && name.find_first_not_of(letters) == name.npos;
}

bool is_pam_password(std::string_view password) {
    return !password.empty() && password.size() <= pam_limits::longest_password &&
           password.find('\0') == password.npos;
}

pam_answer read_pam_answer(std::string_view text) {
    const auto broken = [](std::string why) { return pam_answer{kind::failed, {}, {}, std::move(why)}; };
    const auto said = json::parse(text, nullptr, false);
    if (!said.is_object())
        return broken("its process has written no answer");
    if (said.contains("refused")) {
        const auto which = text_in(said, "refused");
        return {which == "password"  ? kind::wrong_password
                : which == "account" ? kind::account_refused
                                     : kind::failed,
                {},
                {},
                text_in(said, "why")};
    }
    pam_answer out{kind::accepted, text_in(said, "user"), {}, {}};
    const auto groups = said.find("groups");
    if (!is_pam_name(out.user) || groups == said.end() || !groups->is_array() ||
        groups->size() > pam_limits::most_groups)
        return broken("its process has written an answer that can't be one");
    for (const auto& one : *groups)
        if (one.is_string())
            out.groups.push_back(one.get<std::string>());
    return out;
}

namespace {

// Until the other end has closed it, or the time is over. False: it is over, or there was too much.
bool read_answer(int fd, std::chrono::steady_clock::time_point until, std::string& out) {
    for (;;) {
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now())
                .count();
        pollfd wait{fd, POLLIN, 0};
        if (left <= 0 || out.size() > pam_limits::answer_bytes)
            return false;
        if (::poll(&wait, 1, static_cast<int>(left)) <= 0)
            continue;
        char piece[4096];
        const auto got = ::read(fd, piece, sizeof piece);
        if (got == 0)
            return true;
        if (got < 0 && errno != EINTR)
            return false;
        out.append(piece, static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    }
}

} // namespace

pam_answer ask_pam(const std::string& tool, const std::string& service, const std::string& name,
                   const std::string& password, const std::string& address) {
    if (!is_pam_name(name) || !is_pam_password(password))
        return {kind::wrong_password, {}, {}, "PAM is not asked about such a name or password"};
    const auto failed = [](std::string why) { return pam_answer{kind::failed, {}, {}, std::move(why)}; };
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return failed(fmt::format("no socket for it: {}", std::strerror(errno)));
    const unique_fd ours(ends[0]);
    unique_fd theirs(ends[1]);
    spawn_request wanted;
    wanted.command = {tool, pam_word};
    wanted.in = wanted.out = theirs.get();
    std::string error;
    const auto until = std::chrono::steady_clock::now() + pam_limits::answer;
    auto child = child_process::start(wanted, error);
    theirs.reset();
    if (!child)
        return failed(error);
    // At most some 500 bytes: the socket takes them at once, so this does not wait.
    std::string question;
    question.reserve(service.size() + name.size() + password.size() + address.size() + 4);
    for (const auto* const word : {&service, &name, &password, &address})
        question.append(*word).push_back('\0');
    const bool is_sent = write_all(ours.get(), question) && ::shutdown(ours.get(), SHUT_WR) == 0;
    access::forget(question);
    std::string text;
    if (!is_sent || !read_answer(ours.get(), until, text))
        return failed(fmt::format("no answer within {} s", pam_limits::answer.count())); // it is killed
    return read_pam_answer(text);
}

} // namespace kagemusha::control::login
