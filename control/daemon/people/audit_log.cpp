// SPDX-License-Identifier: GPL-2.0-or-later
//
// See audit_log.hpp.
#include "control/daemon/people/audit_log.hpp"

#include "control/base/json_text.hpp"
#include "control/base/process.hpp"
#include "control/base/write_all.hpp"
#include "control/daemon/people/event_log.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <sys/stat.h>

namespace kagemusha::control::daemon {

using json = nlohmann::json;

namespace {

constexpr std::size_t longest_text = 300; // of a target

} // namespace

audit_log::audit_log(std::string path) : path_(std::move(path)) {
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) {
        auto one = json::parse(line, nullptr, false);
        if (!one.is_object())
            continue; // the daemon was killed while it wrote
        shown_.push_back(std::move(one));
        if (shown_.size() > most_shown)
            shown_.pop_front();
    }
}

void audit_log::write(const std::string& line) {
    struct stat found{};
    if (::stat(path_.c_str(), &found) == 0 &&
        static_cast<std::size_t>(found.st_size) + line.size() > most_bytes)
        std::rename(path_.c_str(), (path_ + ".1").c_str());
    const unique_fd fd(
        ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
    problem_ = fd && write_all(fd.get(), line)
                   ? std::string()
                   : fmt::format("the audit log {} can't be written: {}", path_, std::strerror(errno));
}

void audit_log::add(const access::caller& who, const std::string& method, const std::string& target,
                    unsigned status) {
    json line{{"at", utc_now()},  {"user", who.name}, {"role", to_text(who.may)},
              {"from", who.from}, {"method", method}, {"target", target.substr(0, longest_text)},
              {"status", status}};
    write(as_json_text(line) + "\n");
    shown_.push_back(json::parse(as_json_text(line))); // as the file has it
    if (shown_.size() > most_shown)
        shown_.pop_front();
}

json audit_log::last() const {
    return json::array_t(shown_.begin(), shown_.end());
}

} // namespace kagemusha::control::daemon
