// SPDX-License-Identifier: GPL-2.0-or-later
// A pack of compiled programs, which a standby's worker gets from its primary and stores in its own directory
// (gpu/built_files). What is taken out of it lies inside, names nothing outside of the directory, and has
// the lengths that it may have.
#include <string>

#include "fuzz_input.hpp"
#include "gpu/built_files.hpp"
#include "peer_messages.hpp"

using namespace kagemusha;
using fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto whole = std::as_bytes(std::span(data, size));
    std::span<const std::byte> rest = whole;
    std::string_view name;
    std::span<const std::byte> content;
    while (gpu::next_built_file(rest, name, content)) {
        require(name.size() <= gpu::max_built_name_bytes && content.size() <= gpu::max_built_file_bytes &&
                    !content.empty(),
                "lengths keep their bounds");
        require(content.data() >= whole.data() && content.data() + content.size() <= rest.data() &&
                    rest.data() + rest.size() == whole.data() + whole.size(),
                "what is taken lies in the pack");
        if (gpu::is_built_name(name)) {
            const std::string path = "/" + std::string(name) + "/";
            require(path.find("//") == path.npos && path.find("/.") == path.npos &&
                        path.find('\0') == path.npos,
                    "a name leads nowhere else");
        }
    }
    return 0;
}
