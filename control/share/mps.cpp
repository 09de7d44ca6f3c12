// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/share/mps.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>

#include <fmt/format.h>

#include "control/base/unix_socket.hpp"

namespace kagemusha::control {

namespace {

// Its socket stays behind when the daemon was killed. What kind of socket it is does not matter here.
bool somebody_listens(const std::filesystem::path& socket) {
    return connect_unix(socket, SOCK_NONBLOCK) || errno == EPROTOTYPE || errno == EAGAIN;
}

} // namespace

std::optional<std::filesystem::path> find_mps(const char* configured) {
    const std::filesystem::path directory =
        configured != nullptr && *configured != '\0' ? configured : "/tmp/nvidia-mps";
    if (!somebody_listens(directory / "control"))
        return std::nullopt;
    return directory;
}

std::string mps_text(const std::optional<std::filesystem::path>& directory) {
    if (!directory)
        return {};
    return fmt::format(
        "NVIDIA's MPS runs on this host ({}). VMs do not use it: a fault of one of its clients can\n"
        "end the work of all. Give VMs shares instead (docs/sharing.md). A GPU in the compute mode\n"
        "EXCLUSIVE_PROCESS is MPS's alone, and VMs get no context there.\n",
        directory->string());
}

std::string mps_text_of_host() {
    return mps_text(find_mps(std::getenv("CUDA_MPS_PIPE_DIRECTORY")));
}

} // namespace kagemusha::control
