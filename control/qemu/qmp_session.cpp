// SPDX-License-Identifier: GPL-2.0-or-later
//
// See qmp_session.hpp.
#include "control/qemu/qmp_session.hpp"

#include "control/base/json_text.hpp"

namespace kagemusha::control {

namespace {

// Far more than any answer to the commands that we use.
constexpr std::size_t longest_line = 16 << 20;

qmp_message parse(std::string_view line) {
    qmp_message message;
    auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object())
        return message;
    if (const auto id = json.find("id"); id != json.end() && id->is_number_unsigned())
        message.id = id->get<std::uint64_t>();
    const auto take = [&](const char* key) {
        return json.contains(key) ? json[key] : nlohmann::json::object();
    };
    if (json.contains("QMP")) {
        message.what = qmp_message::kind::greeting;
    } else if (const auto event = json.find("event"); event != json.end() && event->is_string()) {
        message.what = qmp_message::kind::event;
        message.name = event->get<std::string>();
        message.body = take("data");
    } else if (json.contains("return")) {
        message.what = qmp_message::kind::success;
        message.body = take("return");
    } else if (json.contains("error")) {
        message.what = qmp_message::kind::failure;
        message.body = take("error");
    }
    return message;
}

} // namespace

std::vector<qmp_message> qmp_session::feed(std::string_view bytes) {
    std::vector<qmp_message> messages;
    for (const char c : bytes) {
        if (c == '\n') {
            if (line_.find_first_not_of(" \r\t") != std::string::npos)
                messages.push_back(parse(line_));
            line_.clear();
        } else if (line_.size() < longest_line) {
            line_ += c;
        } else {
            line_.clear();
            messages.push_back({});
        }
    }
    return messages;
}

std::string qmp_session::command(std::string_view name, const nlohmann::json& arguments, std::uint64_t& id,
                                 bool out_of_band) {
    id = ++last_id_;
    nlohmann::json command{{out_of_band ? "exec-oob" : "execute", name}, {"id", id}};
    if (!arguments.empty())
        command["arguments"] = arguments;
    return as_json_text(command) + "\n";
}

} // namespace kagemusha::control
