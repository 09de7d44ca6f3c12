// SPDX-License-Identifier: GPL-2.0-or-later
// gpus: see gpus.hpp.
#include "gpu/gpus.hpp"
#include "base/gibibytes.hpp"

#include <algorithm>
#include <cstdio>

namespace kagemusha::gpu {

namespace {

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            char escape[8];
            std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(c));
            out += escape;
        } else {
            out += c;
        }
    }
    return out + '"';
}

} // namespace

std::string gpu_table(const gpu_list& list) {
    if (list.gpus.empty())
        return list.error + "\n";
    std::vector<std::vector<std::string>> rows{
        {"", "GPU", "P.D", "TYPE", "MEMORY", "NAME", "PLATFORM", "DRIVER"}};
    for (const gpu_description& g : list.gpus)
        rows.push_back({g.is_default ? "*" : "", std::to_string(g.index),
                        std::to_string(g.platform_index) + "." + std::to_string(g.device_index), g.type,
                        gibibytes(g.memory_bytes), g.name, g.platform, g.driver_version});
    std::vector<std::size_t> widths(rows[0].size());
    for (const auto& row : rows)
        for (std::size_t i = 0; i < row.size(); ++i)
            widths[i] = std::max(widths[i], row[i].size());
    std::string out;
    for (const auto& row : rows) {
        std::string line;
        for (std::size_t i = 0; i < row.size(); ++i)
            line += row[i] + std::string(i + 1 < row.size() ? widths[i] - row[i].size() + 2 : 0, ' ');
        out += line + "\n";
    }
    return out + "* is used when none is named\n";
}

std::string gpu_json(const gpu_list& list) {
    std::string out = "{\"gpus\": [";
    const char* separator = "";
    for (const gpu_description& g : list.gpus) {
        out += separator;
        out += "{\"index\": " + std::to_string(g.index) +
               ", \"platform_index\": " + std::to_string(g.platform_index) +
               ", \"device_index\": " + std::to_string(g.device_index) +
               ", \"platform\": " + quoted(g.platform) + ", \"name\": " + quoted(g.name) +
               ", \"vendor\": " + quoted(g.vendor) + ", \"type\": " + quoted(g.type) +
               ", \"memory_bytes\": " + std::to_string(g.memory_bytes) +
               ", \"version\": " + quoted(g.version) + ", \"driver_version\": " + quoted(g.driver_version) +
               ", \"fingerprint\": " + quoted(g.fingerprint) +
               ", \"own_selector\": " + quoted(g.own_selector) +
               ", \"default\": " + (g.is_default ? "true" : "false") + "}";
        separator = ", ";
    }
    out += "]";
    if (list.gpus.empty())
        out += ", \"error\": " + quoted(list.error);
    return out + "}\n";
}

} // namespace kagemusha::gpu
