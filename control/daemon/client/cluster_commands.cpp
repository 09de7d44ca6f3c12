// SPDX-License-Identifier: GPL-2.0-or-later
//
// See cluster_commands.hpp.
#include "control/daemon/client/cluster_commands.hpp"

#include "control/base/json_text.hpp"
#include "control/base/process.hpp"
#include "control/base/whole_file.hpp"
#include "control/cluster/declaration.hpp"
#include "control/daemon/client/client.hpp"
#include "control/daemon/client/words.hpp"
#include "control/daemon/daemon.hpp"
#include "control/daemon/fleet/settings.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <poll.h>
#include <sstream>
#include <unistd.h>

namespace kagemusha::control::daemon {

using json = nlohmann::json;

namespace {

constexpr int failed = 125, unavailable = 503;

struct cluster_options {
    std::string file, name, node, user = "root";
    unsigned nodes = 0;
    std::vector<std::string> words;
    bool as_json = false, wait = false, yes = false;
};

int complain(const std::string& why) {
    fmt::print(stderr, "kage: {}\n", why);
    return failed;
}

// The daemon's answer, or nothing when it was an error, which is said.
std::optional<daemon_answer> without_error(std::optional<daemon_answer> answer, const std::string& error) {
    if (!answer) {
        complain(error);
        return std::nullopt;
    }
    if (answer->status >= 400) {
        complain(text_in(answer->body, "error"));
        return std::nullopt;
    }
    return answer;
}

std::optional<daemon_answer> ask(const std::string& method, const std::string& target,
                                 const std::string& body = {}, const std::string& if_match = {}) {
    std::string error;
    auto answer = ask_daemon(method, target, body, if_match, error);
    return without_error(std::move(answer), error);
}

// Before the daemon is asked again. False: a signal has come.
bool rest() {
    pollfd interrupt{interrupt_fd(), POLLIN, 0};
    return ::poll(&interrupt, 1, 300) <= 0;
}

// The same of what is read; what cannot be read at the moment is asked for again, where that is wanted.
std::optional<daemon_answer> ask_until_known(const std::string& target, bool wait) {
    for (;;) {
        std::string error;
        auto answer = ask_daemon("GET", target, {}, {}, error);
        if (!wait || !answer || answer->status != unavailable)
            return without_error(std::move(answer), error);
        if (!rest())
            return std::nullopt;
    }
}

std::string target_of(const std::string& name, const char* more = "") {
    return "/v1/clusters/" + name + more;
}

// What goes into the path of a request.
bool is_name(const std::string& name) {
    if (cluster::is_cluster_name(name))
        return true;
    complain(fmt::format("'{}' is no name of a cluster", as_log_line(name)));
    return false;
}

// Where its VM and its standby are, if there are several hosts.
std::string hosts_text(const json& node) {
    const auto hosts = node.value("hosts", json::object());
    const auto primary = text_in(node, "primary");
    std::string out;
    for (const auto& [slot, host] : hosts.items()) {
        if (!host.is_string() || host == only_host)
            continue;
        if (slot == primary)
            out = fmt::format(", on {}", as_log_line(host.get<std::string>())) + out;
        else
            out += fmt::format(", {} on {}", primary.empty() ? "placed" : "standby",
                               as_log_line(host.get<std::string>()));
    }
    return out;
}

std::string as_text(const json& one) {
    auto out = fmt::format("{}: {}{}\n", text_in(one, "name"), text_in(one, "state"),
                           one.value("settled", false) ? "" : " …");
    for (const auto& node : one.value("node_states", json::array())) {
        out += fmt::format("  {:8} {:12} {}{}", text_in(node, "name"), text_in(node, "address"),
                           text_in(node, "state"), hosts_text(node));
        if (node.value("needs_restart", false))
            out += ", needs a restart: stop and start the cluster";
        if (const auto more = as_log_line(text_in(node, "text")); !more.empty())
            out += ": " + more;
        out += "\n";
    }
    return out;
}

void show(const cluster_options& options, const json& body) {
    fmt::print("{}", options.as_json ? as_json_text(body, 2) + "\n" : as_text(body));
}

// Until the cluster is what is wanted, or gone; a line for each change.
int wait_for(const cluster_options& options, const std::string& name) {
    std::string said;
    for (;;) {
        std::string error;
        const auto answer = ask_daemon("GET", target_of(name), {}, {}, error);
        if (!answer)
            return complain(error);
        if (answer->status == 404) {
            if (!options.as_json)
                fmt::print("{}: deleted\n", name);
            return 0;
        }
        if (answer->status < 400) {
            const auto text = as_text(answer->body);
            const bool settled = answer->body.value("settled", false);
            if (settled && options.as_json)
                show(options, answer->body);
            else if (!options.as_json && std::exchange(said, text) != text)
                fmt::print("{}", text);
            std::fflush(stdout);
            if (settled)
                return 0;
        }
        if (!rest())
            return 128 + interrupted_by();
    }
}

int finish(const cluster_options& options, const std::optional<daemon_answer>& answer) {
    if (!answer)
        return failed;
    const auto name = text_in(answer->body, "name");
    if (options.wait)
        return wait_for(options, name);
    show(options, answer->body);
    return 0;
}

std::optional<cluster::declaration> read_declaration(const std::string& file) {
    std::optional<std::string> text;
    if (file == "-")
        text.emplace(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
    else
        text = read_whole_file(file);
    if (!text) {
        complain(fmt::format("cannot read {}", file));
        return std::nullopt;
    }
    std::vector<std::string> errors;
    auto declared = cluster::parse_text(*text, errors);
    for (const auto& error : errors)
        complain(fmt::format("{}: {}", file, error));
    return declared;
}

int create(const cluster_options& options) {
    const auto declared = read_declaration(options.file);
    return declared ? finish(options, ask("POST", "/v1/clusters", as_json_text(to_json(*declared)))) : failed;
}

// Only if nobody has changed it since it was read here.
int apply(const cluster_options& options) {
    const auto declared = read_declaration(options.file);
    if (!declared)
        return failed;
    const auto target = target_of(declared->name);
    const auto now = ask("GET", target);
    return now ? finish(options, ask("PUT", target, as_json_text(to_json(*declared)), now->revision))
               : failed;
}

int list(const cluster_options& options) {
    const auto answer = ask("GET", "/v1/clusters");
    if (!answer)
        return failed;
    if (options.as_json) {
        fmt::print("{}\n", as_json_text(answer->body, 2));
        return 0;
    }
    for (const auto& one : answer->body.value("clusters", json::array()))
        fmt::print("{:16} {:3} {:10} {}\n", text_in(one, "name"), one.value("nodes", 0),
                   text_in(one, "state"), one.value("settled", false) ? "" : "…");
    return 0;
}

int change_state(const cluster_options& options, const char* method, const char* more,
                 const std::string& body = {}) {
    if (!is_name(options.name))
        return failed;
    return finish(options, ask(method, target_of(options.name, more), body));
}

int scale(const cluster_options& options) {
    if (!is_name(options.name))
        return failed;
    const auto now = ask("GET", target_of(options.name));
    if (!now)
        return failed;
    return finish(options, ask("POST", target_of(options.name, "/scale"),
                               as_json_text({{"nodes", options.nodes}}), now->revision));
}

int exec(const cluster_options& options) {
    if (!is_name(options.name))
        return failed;
    if (!cluster::node_number(options.node))
        return complain(fmt::format("'{}' is no node: node1, node2, …", as_log_line(options.node)));
    if (options.words.empty())
        return complain("nothing to run: give a command after --");
    const auto agent =
        ask_until_known(target_of(options.name, ("/nodes/" + options.node + "/agent").c_str()), options.wait);
    return agent ? exec_in_node(text_in(agent->body, "socket"), text_in(agent->body, "secret"), options.words,
                                options.wait)
                 : failed;
}

// What the nodes of the image `mpi` have for ssh and MPI; nothing: why not was said.
std::optional<json> logins(const cluster_options& options) {
    if (!is_name(options.name))
        return std::nullopt;
    const auto answer = ask("GET", target_of(options.name, "/ssh"));
    return answer ? std::optional(answer->body) : std::nullopt;
}

// OpenSSH's client, in our place.
int ssh(const cluster_options& options) {
    if (!cluster::node_number(options.node))
        return complain(fmt::format("'{}' is no node: node1, node2, …", as_log_line(options.node)));
    const auto known = logins(options);
    if (!known)
        return failed;
    std::vector<std::string> words{"ssh", "-F", text_in(*known, "config"), "-l", options.user, options.node};
    if (!options.words.empty())
        words.emplace_back("--");
    words.insert(words.end(), options.words.begin(), options.words.end());
    std::vector<char*> argv;
    for (auto& word : words)
        argv.push_back(word.data());
    argv.push_back(nullptr);
    ::execvp(argv[0], argv.data());
    return complain(
        fmt::format("cannot start ssh: {}; install the package openssh-client", std::strerror(errno)));
}

int print_login(const cluster_options& options, const char* key) {
    const auto known = logins(options);
    if (!known)
        return failed;
    auto text = text_in(*known, key);
    fmt::print("{}{}", text, text.ends_with('\n') ? "" : "\n");
    return 0;
}

} // namespace

std::function<std::function<int()>()> add_cluster_commands(CLI::App& app) {
    const auto o = std::make_shared<cluster_options>();
    const auto chosen = std::make_shared<std::function<int()>>();
    auto* daemon = app.add_subcommand(daemon_word.word, daemon_word.what);
    daemon->callback([chosen] { *chosen = run_daemon; });
    auto* cluster = app.add_subcommand(cluster_word.word, cluster_word.what);
    cluster->require_subcommand(1);
    const auto add = [&](const char* name, const char* what, std::function<int()> run) {
        auto* command = cluster->add_subcommand(name, what);
        command->callback([chosen, run = std::move(run)] { *chosen = run; });
        return command;
    };
    const auto named = [&](CLI::App* command) {
        command->add_option("name", o->name, "the cluster")->required();
        return command;
    };
    const auto with_file = [&](CLI::App* command) {
        command->add_option("declaration", o->file, "TOML or JSON; -: from standard input")->required();
        return command;
    };
    auto* created =
        with_file(add("create", "make and start what a file declares", [o] { return create(*o); }));
    auto* applied =
        with_file(add("apply", "change a cluster to what a file declares", [o] { return apply(*o); }));
    auto* listed = add("list", "all clusters", [o] { return list(*o); });
    auto* shown = named(add("show", "one, with its nodes", [o] {
        return is_name(o->name) ? finish(*o, ask("GET", target_of(o->name))) : failed;
    }));
    auto* scaled = named(add("scale", "more or fewer nodes", [o] { return scale(*o); }));
    scaled->add_option("nodes", o->nodes, "how many")->required()->check(CLI::Range(1u, cluster::most_nodes));
    auto* started =
        named(add("start", "start all nodes", [o] { return change_state(*o, "POST", "/start"); }));
    auto* stopped = named(add("stop", "end all nodes; the declaration stays",
                              [o] { return change_state(*o, "POST", "/stop"); }));
    auto* deleted = named(add("delete", "end all nodes and forget the cluster",
                              [o] { return change_state(*o, "DELETE", ""); }));
    auto* run =
        named(add("exec", "run a command in a node; ends with its exit status", [o] { return exec(*o); }));
    run->add_option("node", o->node, "node1, node2, …")->required();
    run->add_option("command", o->words, "a command and its arguments, after --")->required();
    run->add_flag("--wait", o->wait, "until the node is up");
    auto* shell = named(add("ssh", "ssh to a node of the image `mpi`; ends with the command's exit status",
                            [o] { return ssh(*o); }));
    shell->add_option("node", o->node, "node1, node2, …")->required();
    shell->add_option("command", o->words, "a command and its arguments, after --; none: a shell");
    shell->add_option("--user", o->user, "who logs in")->capture_default_str();
    named(add("ssh-config", "the file with which `ssh -F`, `scp -F` and `rsync` reach the nodes",
              [o] { return print_login(*o, "config"); }));
    named(add("hostfile", "the nodes and their CPUs, as mpirun reads them",
              [o] { return print_login(*o, "hostfile"); }));
    for (auto* command : {created, applied, listed, shown, scaled, started, stopped, deleted})
        command->add_flag("--json", o->as_json, "the answer as JSON");
    for (auto* command : {created, applied, shown, scaled, started, stopped, deleted})
        command->add_flag("--wait", o->wait, "until it is done");
    return [chosen] { return *chosen; };
}

} // namespace kagemusha::control::daemon
