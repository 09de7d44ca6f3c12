// SPDX-License-Identifier: GPL-2.0-or-later
//
// See cluster_store.hpp. Numbers of 64 bits are texts in etcd's JSON.
#include "control/daemon/cluster_store.hpp"

#include "control/base/base64.hpp"
#include "control/base/json_text.hpp"
#include "control/daemon/fleet/fleet_store.hpp"

#include <fmt/format.h>

namespace kagemusha::control::daemon {

using json = nlohmann::json;

namespace {

constexpr char prefix[] = "kagemusha/clusters/", behind_prefix[] = "kagemusha/clusters0";
constexpr int format = 1; // of a record
constexpr int page = 4;   // records of one answer, each at most a quarter of what is taken
constexpr std::size_t longest_answer = 1 << 20;
constexpr char not_started[] = "etcd has not started yet";

std::string key_of(const std::string& name) {
    return to_base64(prefix + name);
}

// What etcd says when it says what it should. nlohmann throws for other shapes.
template <class Result, class Read>
std::optional<Result> read_answer(const Read& read) {
    try {
        return read();
    } catch (const json::exception&) {
        return std::nullopt;
    }
}

} // namespace

std::string to_text(const cluster_record& record) {
    json out{{"format", format},
             {"wanted", cluster::to_text(record.wanted)},
             {"secret", record.secret},
             {"declaration", cluster::to_json(record.declared)}};
    if (!record.ca.key.empty())
        out["ca"] = {{"certificate", record.ca.certificate}, {"key", record.ca.key}};
    return as_json_text(out);
}

std::optional<cluster_record> parse_record(const std::string& text, const std::string& revision) {
    const auto from = json::parse(text, nullptr, false);
    if (!from.is_object() || from.value("format", json()) != format || !from.contains("declaration") ||
        !from.value("wanted", json()).is_string() || !from.value("secret", json()).is_string())
        return std::nullopt;
    if (!from.value("ca", json::object()).is_object())
        return std::nullopt;
    std::vector<std::string> errors;
    auto declared = cluster::parse_json(from["declaration"], errors);
    const auto wanted = cluster::wish_of(from["wanted"].get<std::string>());
    if (!declared || !wanted)
        return std::nullopt;
    const auto ca = from.value("ca", json::object());
    return cluster_record{std::move(*declared),
                          *wanted,
                          from["secret"].get<std::string>(),
                          revision,
                          {text_in(ca, "certificate"), text_in(ca, "key")}};
}

etcd_client* cluster_store::client() {
    const auto described = etcd_.described();
    if (!described) {
        problem_ = not_started;
        return nullptr;
    }
    if (!client_ || endpoint_ != described->endpoints[0]) {
        endpoint_ = described->endpoints[0];
        client_ = std::make_unique<etcd_client>(*described, longest_answer);
    }
    return client_.get();
}

etcd_client::answer cluster_store::ask(const char* path, const json& body) {
    auto* const etcd = client();
    if (!etcd)
        return std::nullopt;
    auto answer = etcd->ask(path, body);
    if (!answer)
        problem_ = etcd->problem();
    return answer;
}

std::optional<std::vector<cluster_record>> cluster_store::all() {
    std::vector<cluster_record> out;
    foreign_.clear();
    std::string from = to_base64(prefix);
    for (;;) {
        const auto answer =
            ask("/v3/kv/range", {{"key", from}, {"range_end", to_base64(behind_prefix)}, {"limit", page}});
        if (!answer)
            return std::nullopt;
        const auto more = read_answer<bool>([&] {
            std::string last;
            for (const auto& one : answer->value("kvs", json::array())) {
                last = from_base64(one.at("key").get<std::string>());
                if (auto record = parse_record(from_base64(one.at("value").get<std::string>()),
                                               one.at("mod_revision").get<std::string>()))
                    out.push_back(std::move(*record));
                else
                    foreign_.push_back(last.substr(sizeof prefix - 1));
            }
            from = to_base64(last + '\0');
            return answer->value("more", false) && !last.empty();
        });
        if (!more) {
            problem_ = "etcd's answer can't be used";
            return std::nullopt;
        }
        if (!*more)
            return out;
    }
}

std::optional<std::optional<cluster_record>> cluster_store::find(const std::string& name) {
    const auto answer = ask("/v3/kv/range", {{"key", key_of(name)}});
    if (!answer)
        return std::nullopt;
    auto found = read_answer<std::optional<cluster_record>>([&]() -> std::optional<cluster_record> {
        const auto kvs = answer->value("kvs", json::array());
        if (kvs.empty())
            return std::nullopt;
        return parse_record(from_base64(kvs.at(0).at("value").get<std::string>()),
                            kvs.at(0).at("mod_revision").get<std::string>());
    });
    if (!found)
        problem_ = "etcd's answer can't be used";
    return found;
}

stored cluster_store::write(cluster_record& record) {
    const auto key = key_of(record.declared.name);
    const auto answer = ask(
        "/v3/kv/txn",
        {{"compare",
          json::array(
              {{{"key", key}, {"target", "MOD"}, {"result", "EQUAL"}, {"mod_revision", record.revision}}})},
         {"success",
          json::array({{{"request_put", {{"key", key}, {"value", to_base64(to_text(record))}}}}})}});
    if (!answer)
        return stored::unreachable;
    const auto revision = read_answer<std::string>([&]() -> std::string {
        return answer->value("succeeded", false) ? answer->at("header").at("revision").get<std::string>()
                                                 : "";
    });
    if (!revision) {
        problem_ = "etcd's answer can't be used";
        return stored::unreachable;
    }
    if (revision->empty())
        return stored::conflict;
    record.revision = *revision;
    return stored::done;
}

stored cluster_store::remove(const std::string& name, const std::string& revision) {
    const auto key = key_of(name);
    const auto answer = ask(
        "/v3/kv/txn",
        {{"compare",
          json::array({{{"key", key}, {"target", "MOD"}, {"result", "EQUAL"}, {"mod_revision", revision}}})},
         {"success", json::array({{{"request_delete_range", {{"key", key}}}},
                                  {{"request_delete_range", {{"key", to_base64(places_key(name))}}}}})}});
    if (!answer)
        return stored::unreachable;
    return answer->value("succeeded", json(false)) == json(true) ? stored::done : stored::conflict;
}

} // namespace kagemusha::control::daemon
