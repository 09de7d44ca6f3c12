// SPDX-License-Identifier: GPL-2.0-or-later
// Any text as a PTX module: read, linked and, if it has a kernel, run for a few thousand instructions.
// Whatever it is, it ends, and touches only the memory that was given to it.
#include "ptx-device/machine/build.hpp"
#include "ptx-device/machine/launch.hpp"
#include "ptx-device/ptx/parser.hpp"

#include <cstddef>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

using namespace kagemusha;

namespace {

constexpr std::uint64_t memory_limit = 1u << 20; // of a module's variables

void run(const machine::program& code, const machine::function& kernel, machine::memory_map& map,
         std::uint64_t buffer) {
    if (kernel.entry_param_bytes > 4096 || kernel.slots > 2048 || kernel.local_bytes > 65536)
        return; // more memory than time
    std::vector<std::uint8_t> params(kernel.entry_param_bytes);
    for (std::size_t at = 0; at + 8 <= params.size(); at += 8)
        std::memcpy(&params[at], &buffer, 8);
    machine::launch_request r;
    r.code = &code;
    r.kernel = &kernel;
    r.grid[0] = 2;
    r.threads[0] = 40;
    r.dynamic_shared = 256;
    r.params = params;
    r.memory = &map;
    r.max_steps = 4000;
    machine::run_grid(r);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    auto parsed = ptx::parse(text);
    if (!parsed.ok)
        return 0;
    machine::memory_map map;
    std::vector<std::unique_ptr<std::uint8_t[]>> storage;
    std::uint64_t used = 0;
    const auto place = [&](std::uint64_t bytes, std::uint64_t align) -> std::uint64_t {
        if (bytes > memory_limit - used)
            return 0;
        used += bytes;
        storage.push_back(std::make_unique<std::uint8_t[]>(bytes + align));
        const auto address = reinterpret_cast<std::uint64_t>(storage.back().get());
        const std::uint64_t begin = (address + align - 1) / align * align;
        map.add({begin, begin + bytes, true});
        return begin;
    };
    const ptx::module modules[] = {std::move(parsed.value)};
    const auto built = machine::build(modules, place);
    if (!built.ok)
        return 0;
    const std::uint64_t buffer = place(512, 16);
    for (const auto& [name, kernel] : built.value.entries)
        run(built.value, *kernel, map, buffer);
    return 0;
}
