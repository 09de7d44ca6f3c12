// SPDX-License-Identifier: GPL-2.0-or-later
//
// See node_ssh.hpp.
#include "control/cluster/node_ssh.hpp"

#include <fmt/format.h>

namespace kagemusha::control::cluster {

namespace {

constexpr unsigned first_user_number = 1000;

// Only keys: nobody has a password. PAM is not set up in the image.
constexpr char sshd_config[] = R"(HostKey /etc/ssh/host_key
KexAlgorithms curve25519-sha256
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PidFile none
PrintMotd no
MaxStartups 128
MaxSessions 128
AcceptEnv LANG LC_*
SetEnv OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 LANG=C.UTF-8
Subsystem sftp /usr/lib/openssh/sftp-server
)";

constexpr char ssh_config[] = R"(Host *
  StrictHostKeyChecking yes
  UpdateHostKeys no
  KexAlgorithms curve25519-sha256
)";

// TCP over the cluster's card; processes are not bound to processors, which a small node has few of.
constexpr char mpi_parameters[] = R"(plm_rsh_agent = ssh
btl = self,vader,tcp
btl_tcp_if_include = eth0
oob_tcp_if_include = eth0
btl_base_warn_component_unused = 0
mtl = ^ofi,psm,psm2
pml = ob1
osc = ^ucx,pt2pt
hwloc_base_binding_policy = none
)";

// Open MPI 5 starts processes through PRRTE, which has parameters of its own.
constexpr char prte_parameters[] = R"(prte_default_hostfile = /etc/openmpi/prte-default-hostfile
plm_ssh_agent = ssh
prte_if_include = eth0
hwloc_default_binding_policy = none
)";

// The folder is node1's, and all reach it through its ssh server, node1 too: so it looks the same everywhere. What is
// there is in node1's memory. Close-to-open, as NFS: nothing is kept of names, and a file's pages until it is opened
// again. Who reads and writes there is root on node1, whoever he is here.
constexpr char shared_loop[] = R"sh(mkdir -p /shared
[ "$(cat /etc/hostname)" != node1 ] || install -d -m 1777 /srv/shared
(
    while :; do
        grep -q ' /shared fuse' /proc/mounts ||
            sshfs root@node1:/srv/shared /shared -o allow_other,nodev,nosuid,reconnect,dir_cache=no \
                -o entry_timeout=0,attr_timeout=0,negative_timeout=0 2>/dev/null
        sleep 1
    done
) &
)sh";

std::string user_lines(const std::string& user, unsigned number) {
    const auto home = user == "root" ? std::string("/root") : "/home/" + user;
    std::string out;
    if (user != "root")
        out = fmt::format("echo '{0}:*:{1}:{1}::{2}:/bin/bash' >>/etc/passwd\n"
                          "echo '{0}:*:{1}:' >>/etc/group\n"
                          "install -d -m 755 -o {1} -g {1} {2}\n",
                          user, number, home);
    else
        number = 0;
    return out + fmt::format("install -d -m 700 -o {1} -g {1} {2}/.ssh\n"
                             "install -m 600 -o {1} -g {1} $here/{0}.key {2}/.ssh/id_ed25519\n"
                             "install -m 600 -o {1} -g {1} $here/{0}.authorized {2}/.ssh/authorized_keys\n",
                             user, number, home);
}

} // namespace

std::string known_hosts(const std::vector<std::string>& host_public, const std::string& address_prefix,
                        unsigned first_address) {
    std::string out;
    for (unsigned number = 1; number <= host_public.size(); ++number)
        out += fmt::format("{},{}{} {}\n", node_name(number), address_prefix, first_address + number,
                           host_public[number - 1]);
    return out;
}

std::string hostfile(const declaration& declared) {
    std::string out;
    for (unsigned number = 1; number <= declared.nodes; ++number)
        out += fmt::format("{} slots={}\n", node_name(number), declared.shape(number).cpus);
    return out;
}

std::map<std::string, std::string> login_files(const declaration& declared, const node_logins& logins,
                                               const std::string& address_prefix, unsigned first_address) {
    std::map<std::string, std::string> out{
        {"host_key", logins.host_key},
        {"known_hosts", known_hosts(logins.host_public, address_prefix, first_address)},
        {"sshd_config", sshd_config},
        {"ssh_config", ssh_config},
        {"openmpi-mca-params.conf", mpi_parameters},
        {"prte-mca-params.conf", prte_parameters},
        {"hostfile", hostfile(declared)}};
    std::string users = user_lines("root", 0);
    unsigned number = first_user_number;
    for (const auto& user : declared.users)
        users += user_lines(user.name, number++);
    for (const auto& [name, key] : logins.users) {
        out[name + ".key"] = key.private_key;
        // The cluster's owner, who is root, may be anybody in it.
        auto authorized = key.public_key + " " + name + "\n";
        if (name != "root")
            authorized += logins.users.at("root").public_key + " root\n";
        for (const auto& user : declared.users)
            if (user.name == name)
                for (const auto& one : user.keys)
                    authorized += one + "\n";
        out[name + ".authorized"] = authorized;
    }
    out["setup"] = "#!/bin/bash\n"
                   "# Logins, MPI and /shared of a node, from the files beside this one.\n"
                   "here=/payload/system/ssh\n"
                   "umask 022\n"
                   "install -m 600 $here/host_key /etc/ssh/host_key\n"
                   "install -m 644 $here/sshd_config /etc/ssh/sshd_config\n"
                   "install -m 644 $here/ssh_config /etc/ssh/ssh_config\n"
                   "install -m 644 $here/known_hosts /etc/ssh/ssh_known_hosts\n"
                   "install -m 644 $here/openmpi-mca-params.conf $here/prte-mca-params.conf /etc/openmpi/\n"
                   "for name in openmpi prte; do\n"
                   "    install -m 644 $here/hostfile /etc/openmpi/$name-default-hostfile\n"
                   "done\n"
                   "chmod 666 /dev/kagemusha-vgpu* 2>/dev/null\n" +
                   users + "mkdir -p /run/sshd\n/usr/sbin/sshd\n" + shared_loop;
    return out;
}

} // namespace kagemusha::control::cluster
