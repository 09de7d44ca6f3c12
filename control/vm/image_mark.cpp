// SPDX-License-Identifier: GPL-2.0-or-later
//
// See image_mark.hpp.
#include "control/vm/image_mark.hpp"

#include "control/process.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <string_view>
#include <unistd.h>

namespace kagemusha::control {

namespace {

constexpr std::string_view copy_line = "copy: a standby's; it follows the VM of another host\n";
constexpr std::string_view protected_line = "protected: a standby may have gone on with the VM\n";

std::string file_of(const std::string& image) {
    return image + ".kagemusha";
}

std::string failed(const std::string& file) {
    return fmt::format("cannot write {}: {}", file, std::strerror(errno));
}

// So that a new or removed file survives the host, too.
bool sync_directory_of(const std::string& file) {
    const auto parent = std::filesystem::path(file).parent_path();
    const unique_fd fd(::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return fd && ::fsync(fd.get()) == 0;
}

bool write_line(const std::string& file, std::string_view line) {
    const unique_fd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    return fd && ::write(fd.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size()) &&
           ::fsync(fd.get()) == 0;
}

} // namespace

std::string why_not_newest(const std::vector<std::string>& images) {
    for (const auto& image : images) {
        const auto file = file_of(image);
        const unique_fd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
        if (!fd && errno == ENOENT)
            continue;
        char first = 0;
        if (fd && ::read(fd.get(), &first, 1) == 1 && first == protected_line.front())
            return fmt::format(
                "the VM had a standby when it ended here, which may have gone on with newer disks than "
                "{}. Start it where it ran last; if that was here: --anew",
                image);
        return fmt::format(
            "{} is the copy of a standby: the VM ran elsewhere last. Start it there; --anew starts it "
            "from this copy",
            image);
    }
    return {};
}

std::string mark_images(const std::vector<std::string>& images, image_mark mark) {
    for (const auto& image : images) {
        const auto file = file_of(image);
        if (mark == image_mark::newest
                ? ::unlink(file.c_str()) != 0 && errno != ENOENT
                : !write_line(file, mark == image_mark::copy ? copy_line : protected_line))
            return failed(file);
        if (!sync_directory_of(file))
            return failed(file);
    }
    return {};
}

} // namespace kagemusha::control
