// SPDX-License-Identifier: GPL-2.0-or-later
//
// See assets.hpp.
#include "control/base/assets.hpp"

#include "control/base/installation.hpp"
#include "control/base/json_text.hpp"
#include "control/base/process.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace kagemusha::control {

namespace fs = std::filesystem;

namespace {

std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

// The last line that one of our scripts prints; "" when it failed (it has said why).
std::string ask_script(const std::string& name, const std::vector<std::string>& arguments) {
    std::vector<std::string> command{source_root() + "/scripts/" + name};
    command.insert(command.end(), arguments.begin(), arguments.end());
    auto [status, out] = run_captured(command);
    if (status != 0) {
        fmt::print(stderr, "kage: scripts/{} failed with status {}\n", name, status);
        return {};
    }
    while (!out.empty() && out.back() == '\n')
        out.pop_back();
    const auto last = out.rfind('\n');
    return last == std::string::npos ? out : out.substr(last + 1);
}

// "A B" → its parts.
std::pair<std::string, std::string> split_pair(const std::string& line) {
    const auto space = line.find(' ');
    return space == std::string::npos ? std::pair{line, std::string{}}
                                      : std::pair{line.substr(0, space), line.substr(space + 1)};
}

std::optional<assets> from_file(const std::string& path) {
    std::ifstream file(path);
    const auto json = nlohmann::json::parse(file, nullptr, false);
    if (!json.is_object()) {
        fmt::print(stderr, "kage: KAGE_ASSETS={} is not what `kage assets` prints\n", path);
        return std::nullopt;
    }
    const auto text = [&](const char* key) { return text_in(json, key); };
    assets found;
    found.flavour = text("flavour");
    found.qemu = text("qemu");
    found.kernel = text("kernel");
    found.initramfs = text("initramfs");
    found.root_image = text("root_image");
    found.module = text("module");
    found.icd = text("icd");
    found.cuda = text("cuda");
    found.device_library = text("device_library");
    found.worker = text("worker");
    return found;
}

} // namespace

nlohmann::json assets::to_json() const {
    return {{"flavour", flavour},
            {"qemu", qemu},
            {"kernel", kernel},
            {"initramfs", initramfs},
            {"root_image", root_image},
            {"module", module},
            {"icd", icd},
            {"cuda", cuda},
            {"device_library", device_library},
            {"worker", worker}};
}

std::string source_root() {
    if (const auto own = own_installation())
        return own->scripts();
    const auto set = variable("KAGE_ROOT");
    return set.empty() ? KAGEMUSHA_SOURCE_ROOT : set;
}

std::string find_built(const std::string& name) {
    if (const auto own = own_installation())
        return own->find(name);
    auto root = variable("KAGE_BUILD_DIR");
    std::error_code error;
    if (root.empty())
        root = fs::path(own_program()).parent_path().parent_path().string();
    for (auto entry = fs::recursive_directory_iterator(root, error);
         entry != fs::recursive_directory_iterator(); entry.increment(error)) {
        if (error)
            break;
        const auto& path = entry->path();
        if (path.filename() == "CMakeFiles" || path.filename() == "_deps" ||
            fs::exists(path / "CMakeCache.txt", error)) // a build of its own, as the fuzzers'
            entry.disable_recursion_pending();
        else if (path.filename() == name && entry->is_regular_file(error))
            return path.string();
    }
    return {};
}

std::vector<std::string> firmware_dirs(const std::string& qemu) {
    std::vector<std::string> found;
    const auto own = fs::path(qemu).parent_path().parent_path() / "share" / "qemu";
    for (const auto& dir : {own, fs::path("/usr/share/seabios"), fs::path("/usr/share/qemu")}) {
        std::error_code error;
        if (fs::is_directory(dir, error) && std::ranges::find(found, dir.string()) == found.end())
            found.push_back(dir.string());
    }
    return found;
}

std::optional<assets> find_assets(const std::string& flavour, bool with_gpu) {
    if (const auto file = variable("KAGE_ASSETS"); !file.empty()) {
        auto known = from_file(file);
        if (!known)
            return std::nullopt;
        if (known->flavour == flavour && (!with_gpu || !known->module.empty()))
            return known; // else it is about another kernel, or about guests without a GPU
    }
    if (const auto own = own_installation()) {
        const auto installed = own->parts(flavour);
        const auto problem = own->missing(installed, with_gpu);
        if (problem.empty())
            return installed;
        fmt::print(stderr, "kage: {}\n", problem);
        return std::nullopt;
    }
    assets found;
    found.flavour = flavour;
    found.qemu = variable("KAGE_QEMU");
    if (found.qemu.empty())
        found.qemu = ask_script("build-qemu", {});
    if (found.qemu.empty())
        return std::nullopt;
    std::tie(found.kernel, found.initramfs) = split_pair(ask_script("guest-image", {"initramfs", flavour}));
    found.root_image = ask_script("guest-image", {"root"});
    if (found.initramfs.empty() || found.root_image.empty())
        return std::nullopt;
    if (with_gpu) {
        found.module = variable("KAGE_MODULE");
        if (found.module.empty())
            found.module = split_pair(ask_script("build-modules", {flavour})).second;
        if (found.module.empty())
            return std::nullopt;
    }
    const std::pair<std::string assets::*, const char*> built[] = {
        {&assets::icd, "libkagemusha_opencl.so"},
        {&assets::cuda, "libcuda.so.1.0"},
        {&assets::device_library, "libkagemusha_device.so"},
        {&assets::worker, "kagemusha-worker"}};
    for (const auto& [member, name] : built) {
        found.*member = find_built(name);
        if (with_gpu && (found.*member).empty()) {
            fmt::print(stderr, "kage: {}\n", not_there(name));
            return std::nullopt;
        }
    }
    return found;
}

std::string kernel_release(const std::string& bzimage) {
    // Linux' Documentation/arch/x86/boot.rst: "HdrS" at 0x202; at 0x20e the offset, less 0x200, of the
    // version string.
    std::ifstream file(bzimage, std::ios::binary);
    std::string head(0x8000, '\0');
    file.read(head.data(), static_cast<std::streamsize>(head.size()));
    head.resize(static_cast<std::size_t>(file.gcount()));
    if (head.size() < 0x210 || head.compare(0x202, 4, "HdrS") != 0)
        return {};
    const auto at =
        0x200u + static_cast<unsigned char>(head[0x20e]) + 256u * static_cast<unsigned char>(head[0x20f]);
    if (at >= head.size())
        return {};
    const auto version = head.substr(at, head.find_first_of(std::string_view(" \0", 2), at) - at);
    return version.size() < 100 ? version : std::string{};
}

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
               "makes one and "
               "prints its path; copy it to {0}\n",
               path.string(), image);
    return {};
}

} // namespace kagemusha::control
