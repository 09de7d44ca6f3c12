// SPDX-License-Identifier: GPL-2.0-or-later
//
// See portal_commands.hpp.
#include "control/daemon/client/portal_commands.hpp"

#include "control/base/installation.hpp"
#include "control/base/json_text.hpp"
#include "control/base/process.hpp"
#include "control/daemon/client/client.hpp"
#include "control/daemon/client/words.hpp"
#include "control/daemon/detached_process.hpp"
#include "control/daemon/state_folder.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

namespace kagemusha::control::daemon {

using json = nlohmann::json;

namespace {

constexpr int failed = 125;
constexpr auto starts_within = std::chrono::seconds(90); // etcd included, on a busy machine

struct portal_options {
    std::string listen, name, role; // "": where it is, or the default
    std::optional<unsigned> port;
    unsigned days = 90;
    bool as_json = false;
};

int complain(const std::string& why) {
    fmt::print(stderr, "kage: {}\n", why);
    return failed;
}

std::optional<json> ask(const std::string& method, const std::string& target, const json& body) {
    std::string error;
    const auto answer =
        ask_daemon(method, target, body.is_null() ? std::string() : as_json_text(body), {}, error);
    if (answer && answer->status < 400)
        return answer->body;
    complain(answer ? text_in(answer->body, "error") : error);
    return std::nullopt;
}

bool answers() {
    std::string error;
    return ask_daemon("GET", "/v1/host", {}, {}, error).has_value();
}

// Until it answers. It outlives us: its log is in its state folder.
int start_daemon() {
    std::string error;
    const auto folder = state_folder::open(error);
    if (!error.empty())
        return complain(error);
    const auto log = folder.path() + "/daemon.log";
    auto started = start_detached({tool_program(), "daemon"}, log, error);
    if (!started)
        return complain(error);
    for (const auto until = std::chrono::steady_clock::now() + starts_within; !answers();) {
        if (started->wait_for(std::chrono::milliseconds(0)))
            return complain(fmt::format("the daemon has ended at once: {} says why", log));
        if (std::chrono::steady_clock::now() > until)
            return complain(fmt::format("the daemon does not answer: {} may say why", log));
        pollfd interrupt{interrupt_fd(), POLLIN, 0};
        if (::poll(&interrupt, 1, 100) > 0)
            return 128 + interrupted_by();
    }
    fmt::print(stderr, "kage: started the daemon; its log: {}\n", log);
    return 0;
}

int open_portal(const portal_options& o) {
    if (!answers())
        if (const int status = start_daemon(); status != 0)
            return status;
    auto wanted = json::object();
    if (!o.listen.empty())
        wanted["listen"] = o.listen;
    if (o.port)
        wanted["port"] = *o.port;
    const auto opened = ask("POST", "/v1/portal", wanted);
    if (!opened)
        return failed;
    if (o.as_json) {
        fmt::print("{}\n", as_json_text(*opened, 2));
        return 0;
    }
    const auto address = text_in(*opened, "address");
    fmt::print("The portal is at {}\n"
               "Its certificate is its own: a browser asks once. SHA-256 {}\n\n"
               "Log in as administrator, once, within ten minutes:\n  {}#login={}\n\n"
               "For others: `{} portal add-user NAME --role viewer|operator|admin`\n",
               address, text_in(*opened, "fingerprint"), address, text_in(*opened, "code"), tool_word());
    return 0;
}

// From the terminal, without showing it, or the first line of standard input.
std::string read_password() {
    termios before{};
    const bool is_terminal = ::tcgetattr(STDIN_FILENO, &before) == 0;
    if (is_terminal) {
        auto silent = before;
        silent.c_lflag &= ~static_cast<tcflag_t>(ECHO);
        ::tcsetattr(STDIN_FILENO, TCSAFLUSH, &silent);
        fmt::print(stderr, "Password: ");
    }
    std::string line;
    std::getline(std::cin, line);
    if (is_terminal) {
        ::tcsetattr(STDIN_FILENO, TCSAFLUSH, &before);
        fmt::print(stderr, "\n");
    }
    return line;
}

int add_user(const portal_options& o) {
    json body{{"password", read_password()}};
    if (!o.role.empty())
        body["role"] = o.role;
    return ask("PUT", "/v1/users/" + o.name, body) ? 0 : failed;
}

int add_token(const portal_options& o) {
    const auto made = ask("PUT", "/v1/tokens/" + o.name, {{"role", o.role}, {"days", o.days}});
    if (!made)
        return failed;
    fmt::print("{}\n", text_in(*made, "token"));
    return 0;
}

int list(const portal_options& o) {
    const auto all = ask("GET", "/v1/accounts", nullptr);
    if (!all)
        return failed;
    if (o.as_json) {
        fmt::print("{}\n", as_json_text(*all, 2));
        return 0;
    }
    for (const char* kind : {"users", "tokens"})
        for (const auto& one : all->value(kind, json::array()))
            fmt::print("{:6} {:32} {}\n", std::string_view(kind).substr(0, std::strlen(kind) - 1),
                       text_in(one, "name"), text_in(one, "role"));
    return 0;
}

// Names are parts of paths: what is none would ask for something else.
CLI::Validator account_name() {
    return {[](std::string& name) {
                const bool ok = !name.empty() && name.find_first_not_of(
                                                     "abcdefghijklmnopqrstuvwxyz0123456789._-") == name.npos;
                return ok ? std::string() : "small letters, digits, '.', '_' and '-' make a name";
            },
            "NAME"};
}

} // namespace

std::function<std::function<int()>()> add_portal_commands(CLI::App& app) {
    const auto o = std::make_shared<portal_options>();
    const auto chosen = std::make_shared<std::function<int()>>();
    auto* portal = app.add_subcommand(portal_word.word, portal_word.what);
    portal->add_option("--listen", o->listen,
                       "an address of this host; beyond 127.0.0.1, the default, others reach it");
    portal->add_option("--port", o->port, "its port; 0: one that is free; default 7443")
        ->check(CLI::Range(0u, 65535u));
    portal->add_flag("--json", o->as_json, "the answer as JSON");
    portal->require_subcommand(0, 1);
    portal->callback([chosen, portal, o] {
        if (portal->get_subcommands().empty())
            *chosen = [o] { return open_portal(*o); };
    });
    const auto add = [&](const char* name, const char* what, std::function<int()> run) {
        auto* command = portal->add_subcommand(name, what);
        command->callback([chosen, run = std::move(run)] { *chosen = run; });
        return command;
    };
    const auto named = [&](CLI::App* command) {
        command->add_option("name", o->name)->required()->check(account_name());
        return command;
    };
    add("accounts", "who may use it", [o] { return list(*o); })->add_flag("--json", o->as_json, "as JSON");
    const auto roles = CLI::IsMember({"viewer", "operator", "admin"});
    named(add("add-user", "a user, or a user's new password or role; the password from standard input",
              [o] { return add_user(*o); }))
        ->add_option("--role", o->role, "viewer, operator or admin; a new user needs one")
        ->check(roles);
    auto* token =
        named(add("add-token", "a token for programs, which is printed once", [o] { return add_token(*o); }));
    token->add_option("--role", o->role, "viewer, operator or admin")->required()->check(roles);
    token->add_option("--days", o->days, "until it expires")
        ->capture_default_str()
        ->check(CLI::Range(1u, 3650u));
    named(add("remove-user", "who logs in no more, and is logged out",
              [o] { return ask("DELETE", "/v1/users/" + o->name, nullptr) ? 0 : failed; }));
    named(add("remove-token", "which counts no more",
              [o] { return ask("DELETE", "/v1/tokens/" + o->name, nullptr) ? 0 : failed; }));
    return [chosen] { return *chosen; };
}

} // namespace kagemusha::control::daemon
