// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/share/mps.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "base/unique_fd.hpp"

namespace kagemusha::control {

namespace {

// Its socket stays behind when the daemon was killed. What kind of socket it is does not matter here.
bool somebody_listens(const std::filesystem::path& socket) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (socket.native().size() >= sizeof address.sun_path)
        return false;
    std::memcpy(address.sun_path, socket.c_str(), socket.native().size());
    const unique_fd client(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!client)
        return false;
    return ::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
           errno == EPROTOTYPE || errno == EAGAIN;
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
