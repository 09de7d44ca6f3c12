// SPDX-License-Identifier: GPL-2.0-or-later
//
// kagemusha-daemon: what the tool, `kagemusha`, leaves to it (daemon/client/words.hpp). It gets the tool's words
// as they are; nobody calls it by its name.
#include "control/base/process.hpp"
#include "control/confine/guard.hpp"
#include "control/daemon/client/cluster_commands.hpp"
#include "control/daemon/client/portal_commands.hpp"
#include "control/job/job_commands.hpp"
#include "control/lan/lan.hpp"
#include "control/login/pam_login.hpp"

#include <CLI/CLI.hpp>

#include <cstring>

int main(int argc, char** argv) {
    using namespace kagemusha::control;

    guard_if_asked(argc, argv);
    if (argc == 4 && std::strcmp(argv[1], lan::lan_word) == 0)
        lan::lan_main(argv[2], argv[3]);
    if (argc == 2 && std::strcmp(argv[1], login::pam_word) == 0)
        login::pam_main();
    interrupt_fd(); // from here on signals are ours to read

    CLI::App app{"Kagemusha: clusters of virtual machines"};
    app.require_subcommand(1);
    const auto cluster_command = daemon::add_cluster_commands(app);
    const auto portal_command = daemon::add_portal_commands(app);
    const auto job_command = job::add_job_commands(app);
    CLI11_PARSE(app, argc, argv);
    for (const auto& chosen : {cluster_command, portal_command, job_command})
        if (const auto command = chosen())
            return command();
    return 125;
}
