// SPDX-License-Identifier: GPL-2.0-or-later
// linker_protocol: see linker_protocol.hpp.
#include "worker/linker_protocol.hpp"

#include <algorithm>
#include <cstring>

namespace kagemusha::worker {

namespace {

bool is_one_of(std::string_view text, std::span<const std::string_view> list) {
    return std::ranges::find(list, text) != list.end();
}

bool starts_with_one_of(std::string_view text, std::span<const std::string_view> list) {
    return std::ranges::any_of(list, [&](auto prefix) { return text.starts_with(prefix); });
}

bool leaves_its_folder(std::string_view path) {
    return path == ".." || path.starts_with("../") || path.find("/../") != path.npos || path.ends_with("/..");
}

bool lies_in(std::string_view path, std::string_view directory) {
    return path.size() > directory.size() + 1 && path.starts_with(directory) &&
           path[directory.size()] == '/' && !leaves_its_folder(path);
}

bool is_system_library(std::string_view path) {
    // Compilers write them with "..": Landlock decides about the file that is meant.
    static constexpr std::string_view folders[] = {"/usr/", "/lib/", "/lib64/", "/lib32/"};
    return starts_with_one_of(path, folders);
}

} // namespace

std::optional<std::vector<char>> encode_link_request(std::span<const char* const> arguments) {
    std::vector<char> message;
    if (arguments.empty() || arguments.size() > max_link_arguments)
        return std::nullopt;
    for (const char* argument : arguments) {
        const std::size_t bytes = std::strlen(argument) + 1;
        if (bytes > max_link_request_bytes - message.size())
            return std::nullopt;
        message.insert(message.end(), argument, argument + bytes);
    }
    return message;
}

std::optional<std::vector<std::string_view>> decode_link_request(std::string_view message) {
    if (message.empty() || message.size() > max_link_request_bytes || message.back() != '\0')
        return std::nullopt;
    std::vector<std::string_view> arguments;
    while (!message.empty()) {
        const std::size_t end = message.find('\0'); // there is one: it ends with it
        if (arguments.size() == max_link_arguments)
            return std::nullopt;
        arguments.push_back(message.substr(0, end));
        message.remove_prefix(end + 1);
    }
    return arguments;
}

bool names_a_linker(std::string_view path) {
    const std::size_t slash = path.rfind('/');
    if (slash == path.npos)
        return false;
    const std::string_view folder = path.substr(0, slash);
    std::string_view name = path.substr(slash + 1);
    const bool system_folder = folder == "/usr/bin" || folder == "/bin" || folder == "/usr/local/bin" ||
                               (folder.starts_with("/usr/lib/llvm-") && folder.ends_with("/bin"));
    if (!system_folder || leaves_its_folder(path))
        return false;
    // x86_64-linux-gnu-ld.bfd, ld.lld-14
    if (const std::size_t prefix = name.find("-linux-gnu-"); prefix != name.npos)
        name.remove_prefix(prefix + std::strlen("-linux-gnu-"));
    static constexpr std::string_view names[] = {"ld", "ld.bfd", "ld.gold", "ld.lld"};
    return is_one_of(name, names) || name.starts_with("ld.lld-");
}

std::string check_link_request(std::span<const std::string_view> arguments, std::string_view directory) {
    // What clang's driver writes for a shared object, by platform and version. -rpath and the like are not
    // among it.
    static constexpr std::string_view flags[] = {
        "--build-id",    "--eh-frame-hdr", "-shared",           "--as-needed", "--no-as-needed",
        "-Bsymbolic",    "-dynamic",       "-static",           "-X",          "-s",
        "--gc-sections", "--no-undefined", "--enable-new-dtags"};
    static constexpr std::string_view prefixes[] = {"--hash-style=", "--build-id=", "-L/", "-l"};
    static constexpr std::string_view with_value[] = {"-m", "-z"};

    if (arguments.empty() || !names_a_linker(arguments[0]))
        return "the program is no linker of the system";
    bool has_output = false, has_input = false;
    for (std::size_t i = 1; i < arguments.size(); ++i) {
        const std::string_view argument = arguments[i];
        if (argument == "-o") {
            if (has_output || ++i == arguments.size() || !lies_in(arguments[i], directory))
                return "the output is not in the worker's directory";
            has_output = true;
        } else if (is_one_of(argument, with_value)) {
            // A name like elf_x86_64 or relro.
            if (++i == arguments.size() || arguments[i].empty() || arguments[i].find_first_of("-@/.") == 0)
                return "an option has no value";
        } else if (argument.starts_with('/')) {
            if (!lies_in(argument, directory) && !is_system_library(argument))
                return "an input is neither in the worker's directory nor a library of the system";
            has_input |= lies_in(argument, directory);
        } else if (!is_one_of(argument, flags) && !starts_with_one_of(argument, prefixes)) {
            return "the argument is not one of a plain link";
        } else if (argument.starts_with("-l") && argument.find('/') != argument.npos) {
            return "a library's name is a path";
        }
    }
    return has_output && has_input ? "" : "output or input is missing";
}

} // namespace kagemusha::worker
