// SPDX-License-Identifier: GPL-2.0-or-later
//
// See root_image.hpp.
#include "control/base/root_image.hpp"

#include "control/base/installation.hpp"
#include "control/base/process.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <unistd.h>

namespace kagemusha::control {

std::string kernel_of_guest(const std::string& guest) {
    return guest.substr(0, guest.find('+'));
}

std::string root_image_of(const std::string& guest, const assets& parts) {
    const auto plus = guest.find('+');
    if (plus == guest.npos)
        return parts.root_image;
    const auto image = guest.substr(plus + 1);
    if (image != "mpi") {
        fmt::print(stderr,
                   "kage: there is no guest image '{}': 'guest' is a kernel as \"{}\", or \"{}+mpi\"\n",
                   image, default_flavour, default_flavour);
        return {};
    }
    if (!own_installation()) {
        auto [status, out] = run_captured({source_root() + "/scripts/guest-image", "root", image});
        if (status != 0)
            fmt::print(stderr, "kage: scripts/guest-image failed with status {}\n", status);
        out.erase(out.find_last_not_of('\n') + 1);
        return status == 0 ? out.substr(out.rfind('\n') + 1) : std::string();
    }
    auto path =
        std::filesystem::path(parts.root_image).parent_path() / fmt::format("root-{}.squashfs", image);
    if (::access(path.c_str(), R_OK) == 0)
        return path.string();
    fmt::print(stderr,
               "kage: there is no guest image {0}: in Kagemusha's source tree `scripts/guest-image root {1}` "
               "makes one "
               "and prints its path; copy it to {0}\n",
               path.string(), image);
    return {};
}

} // namespace kagemusha::control
