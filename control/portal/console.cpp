// SPDX-License-Identifier: GPL-2.0-or-later
//
// See console.hpp.
#include "control/portal/console.hpp"

#include "control/base/json_text.hpp"

#include <fmt/format.h>

namespace kagemusha::control::portal {

using json = nlohmann::json;

namespace {

constexpr unsigned most_cells = 1000; // each way

std::optional<std::string> size_of(std::string_view message) {
    const auto from = json::parse(message, nullptr, false);
    if (!from.is_object())
        return std::nullopt;
    const auto number = [&](const char* key) -> unsigned {
        const auto found = from.find(key);
        if (found == from.end() || !found->is_number_unsigned() || *found > most_cells)
            return 0;
        return found->get<unsigned>();
    };
    const auto columns = number("columns"), rows = number("rows");
    if (columns == 0 || rows == 0)
        return std::nullopt;
    return fmt::format("{} {}", columns, rows);
}

} // namespace

std::optional<std::string> console_greeting(const std::string& secret, std::string_view size_message) {
    const auto size = size_of(size_message);
    if (!size)
        return std::nullopt;
    static constexpr std::string_view words("bash\0-il\0", 9);
    return lan::exec_frame('H', secret) + lan::exec_frame('T', *size) + lan::exec_frame('C', words);
}

std::optional<std::string> console_frames(std::string_view message, bool is_text) {
    if (!is_text)
        return lan::exec_frame('I', message);
    const auto size = size_of(message);
    return size ? std::optional(lan::exec_frame('W', *size)) : std::nullopt;
}

console_output console_text(const lan::exec_reader::frame& frame) {
    switch (frame.letter) {
    case 'A':
        return {};
    case 'O':
    case 'X':
        return {std::string(frame.payload), {}};
    case 'S':
        if (const auto status = lan::exec_status(frame.payload))
            return {{}, as_json_text({{"exit", *status}})};
        break;
    case 'R':
        return {{}, as_json_text({{"error", frame.payload}})};
    default:
        break;
    }
    return {{}, as_json_text({{"error", "what answers in the node is no agent of ours"}})};
}

} // namespace kagemusha::control::portal
