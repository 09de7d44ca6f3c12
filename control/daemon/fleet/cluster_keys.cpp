// SPDX-License-Identifier: GPL-2.0-or-later
//
// See cluster_keys.hpp.
#include "control/daemon/fleet/cluster_keys.hpp"

#include "control/base/whole_file.hpp"
#include "control/keys/certificates.hpp"
#include "control/keys/keys.hpp"

#include <cstdlib>
#include <filesystem>
#include <sys/stat.h>
#include <utility>

namespace kagemusha::control::daemon {

namespace fs = std::filesystem;

namespace {

constexpr std::uint32_t days = 3650; // as long as the CA: who loses one deletes the cluster
constexpr std::int64_t an_hour_ago = -3600;

} // namespace

cluster_ca new_cluster_ca() {
    const auto pair = new_ca(days, an_hour_ago);
    if (!pair.certificate || !pair.key)
        std::abort(); // no memory
    return {pem(pair.certificate.get()), pem(pair.key.get())};
}

std::string make_cluster_keys(const std::string& folder, const cluster_ca& ca, const std::string& host,
                              const std::string& vm) {
    std::error_code error;
    const auto own = folder + "/" + host;
    if (fs::exists(vm.empty() ? own + "/key.pem" : own + "/vm/" + vm, error))
        return {};
    const auto of_ca = folder + "/ca";
    fs::remove_all(of_ca, error); // of a daemon that died here
    fs::create_directories(of_ca, error);
    ::chmod(folder.c_str(), 0711); // a confined QEMU has a user of its own, and sees what it may
    ::chmod(of_ca.c_str(), S_IRWXU);
    std::string why = error ? "cannot make " + of_ca + ": " + error.message() : std::string();
    for (const auto& [file, text] : {std::pair("/ca.pem", ca.certificate), std::pair("/ca-key.pem", ca.key)})
        if (why.empty())
            why = write_whole_file(of_ca + file, text);
    if (why.empty()) {
        keys_request request;
        request.directory = folder;
        request.hosts = {{host}};
        request.days = days;
        if (!vm.empty())
            request.vms = {vm};
        why = make_keys(request).error;
    }
    fs::remove_all(of_ca, error);
    return why;
}

} // namespace kagemusha::control::daemon
