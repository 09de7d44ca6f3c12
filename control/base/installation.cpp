// SPDX-License-Identifier: GPL-2.0-or-later
//
// See installation.hpp.
#include "control/base/installation.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

namespace kagemusha::control {

namespace fs = std::filesystem;

namespace {

constexpr char private_folder[] = "lib/kagemusha"; // CMakeLists.txt: KAGEMUSHA_INSTALL_PRIVATEDIR
constexpr char guest_folder[] = "lib/kagemusha/guest";
constexpr char data_folder[] = "share/kagemusha";
constexpr char module_name[] = "kagemusha_vgpu.ko";

bool part_is_there(const std::string& path) {
    std::error_code error;
    return !path.empty() && fs::exists(path, error);
}

bool is_set(const char* variable) {
    const char* value = std::getenv(variable);
    return value && *value;
}

// The kernels that guests can have here.
std::vector<std::string> flavours_in(const fs::path& folder) {
    std::vector<std::string> found;
    std::error_code error;
    for (auto entry = fs::directory_iterator(folder, error); entry != fs::directory_iterator();
         entry.increment(error)) {
        if (error)
            break;
        if (part_is_there((entry->path() / "vmlinuz").string()))
            found.push_back(entry->path().filename().string());
    }
    std::ranges::sort(found);
    return found;
}

} // namespace

std::optional<installation> installation::at(const std::string& prefix) {
    installation found(prefix);
    if (prefix.empty() || !part_is_there(found.scripts() + "/scripts/make-payload"))
        return std::nullopt;
    return found;
}

std::string installation::scripts() const {
    return (fs::path(prefix_) / data_folder).string();
}

std::string installation::find(const std::string& name) const {
    for (const char* folder : {"bin", "libexec/kagemusha", private_folder, guest_folder}) {
        const auto path = (fs::path(prefix_) / folder / name).string();
        if (part_is_there(path))
            return path;
    }
    return {};
}

assets installation::parts(const std::string& flavour) const {
    const fs::path own = fs::path(prefix_) / private_folder;
    const fs::path guest = fs::path(prefix_) / guest_folder;
    assets out;
    out.flavour = flavour;
    out.qemu = (own / "qemu-system-x86_64").string();
    out.kernel = (guest / flavour / "vmlinuz").string();
    out.initramfs = (guest / flavour / "initramfs").string();
    out.root_image = (guest / "root.squashfs").string();
    out.module = (guest / flavour / module_name).string();
    out.icd = (guest / "libkagemusha_opencl.so").string();
    out.cuda = (guest / "libcuda.so.1.0").string();
    out.device_library = (own / "libkagemusha_device.so").string();
    out.worker = (fs::path(prefix_) / "libexec/kagemusha/kagemusha-worker").string();
    return out;
}

std::string installation::missing(const assets& parts, bool with_gpu) const {
    if (!part_is_there(parts.qemu))
        return fmt::format("{} is missing: install the package kagemusha-qemu", parts.qemu);
    if (!part_is_there(parts.root_image))
        return fmt::format("there is no guest image, {}: install the package kagemusha-guest-image",
                           parts.root_image);
    if (!part_is_there(parts.kernel))
        return fmt::format("there is no guest image with the kernel '{}' in {}/{}: it has {}", parts.flavour,
                           prefix_, guest_folder,
                           fmt::join(flavours_in(fs::path(prefix_) / guest_folder), ", "));
    if (!part_is_there(parts.initramfs))
        return fmt::format("{} is missing: install the package kagemusha-guest-image again", parts.initramfs);
    if (!with_gpu)
        return {};
    if (!part_is_there(parts.module))
        return fmt::format("{} is missing: install the package kagemusha-guest-image again", parts.module);
    if (!part_is_there(parts.device_library))
        return fmt::format("{} is missing: install the package kagemusha-qemu again", parts.device_library);
    for (const auto* path : {&parts.icd, &parts.cuda, &parts.worker})
        if (!part_is_there(*path))
            return fmt::format("{} is missing: install the package kagemusha again", *path);
    return {};
}

std::optional<installation> own_installation() {
    if (is_set("KAGE_ROOT") || is_set("KAGE_BUILD_DIR"))
        return std::nullopt;
    return installation::at(prefix_of(own_program()));
}

std::string prefix_of(const std::string& program) {
    const auto folder = fs::path(program).parent_path();
    if (folder.filename() == "bin")
        return folder.parent_path().string();
    const auto above = folder.parent_path();
    return folder.filename() == "kagemusha" && above.filename() == "libexec" ? above.parent_path().string()
                                                                             : std::string();
}

std::string program_of(std::string link) {
    constexpr std::string_view replaced = " (deleted)"; // what the kernel adds
    if (link.ends_with(replaced))
        link.resize(link.size() - replaced.size());
    return link;
}

std::string own_program() {
    std::error_code error;
    return program_of(fs::read_symlink("/proc/self/exe", error).string());
}

std::string program_beside(const std::string& name) {
    const auto own = own_program();
    const auto place = installation::at(prefix_of(own));
    return place ? place->find(name) : (fs::path(own).parent_path() / name).string();
}

std::string tool_program() {
    return program_beside("kagemusha");
}

std::string tool_word() {
    return own_installation() ? "kage" : "./kage";
}

std::string not_there(const std::string& name) {
    if (const auto own = own_installation())
        return fmt::format("{} is missing in {}: install the package kagemusha again", name, own->prefix());
    return name + " is not built: run ./kage build";
}

} // namespace kagemusha::control
