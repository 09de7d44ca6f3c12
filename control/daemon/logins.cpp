// SPDX-License-Identifier: GPL-2.0-or-later
//
// See logins.hpp.
#include "control/daemon/logins.hpp"

#include "control/base/whole_file.hpp"
#include "control/cluster/node_ssh.hpp"
#include "control/keys/ssh_keys.hpp"
#include "control/lan/addresses.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <sys/stat.h>

namespace kagemusha::control::daemon {

namespace {

ssh_key host_key(const cluster_record& record, unsigned number) {
    return ssh_key_of(record.secret, "host/" + cluster::node_name(number));
}

ssh_key user_key(const cluster_record& record, const std::string& name) {
    return ssh_key_of(record.secret, "user/" + name);
}

std::vector<std::string> host_keys(const cluster_record& record) {
    std::vector<std::string> out;
    for (unsigned number = 1; number <= cluster::most_nodes; ++number)
        out.push_back(host_key(record, number).public_key);
    return out;
}

// Its owner's alone, whatever the umask is: ssh refuses keys that others may read.
std::string write_files(const std::string& folder, const std::map<std::string, std::string>& files) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error || ::chmod(folder.c_str(), S_IRWXU) != 0)
        return fmt::format("cannot make {}: {}", folder, error.message());
    for (const auto& [name, text] : files) {
        const auto path = folder + "/" + name;
        if (auto why = write_whole_file(path, text); !why.empty())
            return why;
        ::chmod(path.c_str(), S_IRUSR | S_IWUSR);
    }
    return {};
}

} // namespace

std::string write_node_logins(const cluster_record& record, unsigned number, const std::string& folder) {
    cluster::node_logins logins;
    logins.host_key = host_key(record, number).private_key;
    logins.host_public = host_keys(record);
    const auto add = [&](const std::string& name) {
        const auto key = user_key(record, name);
        logins.users[name] = {key.public_key, key.private_key};
    };
    add("root");
    for (const auto& user : record.declared.users)
        add(user.name);
    return write_files(folder + "/ssh",
                       cluster::login_files(record.declared, logins, lan::node_prefix(), lan::first_node));
}

std::string owner_config(const std::string& folder) {
    return folder + "/ssh/config";
}

std::string write_owner_logins(const cluster_record& record, const std::string& folder,
                               const std::string& tool) {
    const auto here = folder + "/ssh";
    const auto config = fmt::format(
        "# ssh -F THIS nodeN, scp -F THIS …: through the agents of the nodes of '{0}', on this host\n"
        "Host node*\n"
        "  User root\n"
        "  IdentityFile {1}/key\n"
        "  UserKnownHostsFile {1}/known_hosts\n"
        "  GlobalKnownHostsFile /dev/null\n"
        "  StrictHostKeyChecking yes\n"
        "  UpdateHostKeys no\n"
        "  LogLevel ERROR\n"
        "  ProxyCommand {2} cluster exec --wait {0} %h -- /payload/system/busybox nc 127.0.0.1 22\n",
        record.declared.name, here, tool);
    return write_files(
        here, {{"key", user_key(record, "root").private_key},
               {"known_hosts", cluster::known_hosts(host_keys(record), lan::node_prefix(), lan::first_node)},
               {"config", config}});
}

} // namespace kagemusha::control::daemon
