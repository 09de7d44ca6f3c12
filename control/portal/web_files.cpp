// SPDX-License-Identifier: GPL-2.0-or-later
//
// See web_files.hpp.
#include "control/portal/web_files.hpp"

#include "control/access/secrets.hpp"
#include "control/base/installation.hpp"
#include "control/base/whole_file.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

namespace kagemusha::control::portal {

namespace fs = std::filesystem;

namespace {

// Where scripts/fetch-xterm has put it; in the package kagemusha-portal where Debian's is of no use; else
// Debian's package libjs-xterm.
std::string xterm_folder() {
    if (const char* const own = std::getenv("KAGEMUSHA_XTERM"); own && *own)
        return own;
    std::error_code error;
    if (const auto place = own_installation();
        place && fs::is_directory(place->prefix() + "/share/kagemusha/xterm", error))
        return place->prefix() + "/share/kagemusha/xterm";
    return "/usr/share/javascript/xterm";
}

constexpr std::uintmax_t longest = 2 << 20;

std::string type_of(const std::string& path) {
    static const std::map<std::string, std::string> types{
        {".html", "text/html; charset=utf-8"},
        {".js", "text/javascript; charset=utf-8"},
        {".css", "text/css; charset=utf-8"},
        {".svg", "image/svg+xml"},
    };
    const auto found = types.find(fs::path(path).extension().string());
    return found == types.end() ? std::string() : found->second;
}

} // namespace

void web_files::add(const std::string& path, const std::string& from) {
    std::error_code error;
    const auto type = type_of(path);
    if (type.empty() || !fs::is_regular_file(from, error) || fs::file_size(from, error) > longest)
        return;
    if (auto body = read_whole_file(from)) {
        const auto tag = '"' + access::digest_of(*body).substr(0, 32) + '"';
        files_.insert_or_assign(path, web_files::file{type, std::move(*body), tag});
    }
}

web_files web_files::load(const std::string& folder, std::string& error) {
    web_files out;
    std::error_code failed;
    for (auto entry = fs::recursive_directory_iterator(folder, failed);
         entry != fs::recursive_directory_iterator(); entry.increment(failed)) {
        if (failed)
            break;
        out.add("/" + fs::relative(entry->path(), folder, failed).string(), entry->path().string());
    }
    for (const char* name : {"xterm.js", "xterm.css"})
        out.add(fmt::format("/xterm/{}", name), fmt::format("{}/{}", xterm_folder(), name));
    const auto first = out.files_.find("/index.html");
    if (first == out.files_.end())
        error = fmt::format("the portal's pages are missing in {}{}", folder,
                            own_installation() ? ": install the package kagemusha-portal" : "");
    else
        out.files_.insert_or_assign("/", first->second);
    return out;
}

std::optional<reply> web_files::find(std::string_view target, std::string_view if_none_match) const {
    const auto found = files_.find(target.substr(0, target.find('?')));
    if (found == files_.end())
        return std::nullopt;
    const auto& file = found->second;
    reply out{200, file.type, {}, {{"ETag", file.tag}, {"Cache-Control", "no-cache"}}};
    if (if_none_match == file.tag)
        out.status = 304;
    else
        out.body = file.body;
    return out;
}

} // namespace kagemusha::control::portal
