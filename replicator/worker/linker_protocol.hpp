// SPDX-License-Identifier: GPL-2.0-or-later
// linker_protocol: what a worker may ask its linker broker, as bytes, and which requests the broker obeys. Pure.
//
// PoCL turns every kernel into a shared object and has the system's linker do it. A worker can't start a
// process, so it asks a broker: "run this linker with these arguments". Who asks may be a hostile kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::worker {

// A request is one message: the arguments, each ended by a 0 byte; the first is the linker's path. One linker
// run of PoCL has about thirty arguments and a kilobyte.
inline constexpr std::size_t max_link_request_bytes = 32u << 10;
inline constexpr std::size_t max_link_arguments = 512;

// The answer is one message: the status as wait() gives it.
struct link_answer {
    std::int32_t status;
};

// What wait() would say of a program that could not be started.
inline constexpr std::int32_t link_refused_status = 127 << 8;

// Nothing if it is too long or holds a 0 byte where none can be.
std::optional<std::vector<char>> encode_link_request(std::span<const char* const> arguments);
// The views point into `message`. Nothing if it is malformed.
std::optional<std::vector<std::string_view>> decode_link_request(std::string_view message);

// "" if `arguments` are those of a plain link of files in `directory` or the system's libraries to a shared
// object in `directory`; else which rule they break. Plug-ins, scripts, response files, maps, other programs
// are not plain.
std::string check_link_request(std::span<const std::string_view> arguments, std::string_view directory);

// Whether `path` is spelled like a linker of the system: /usr/bin/ld and its relatives.
bool names_a_linker(std::string_view path);

} // namespace kagemusha::worker
