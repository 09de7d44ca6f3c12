// SPDX-License-Identifier: GPL-2.0-or-later
//
// See account_store.hpp.
#include "control/daemon/people/account_store.hpp"

#include "control/base/base64.hpp"
#include "control/base/json_text.hpp"

namespace kagemusha::control::daemon {

using json = nlohmann::json;

namespace {

constexpr char key[] = "kagemusha/portal/accounts";

} // namespace

etcd_client* account_store::client() {
    const auto described = etcd_.described();
    if (!described)
        return nullptr;
    if (!client_ || endpoint_ != described->endpoints[0]) {
        endpoint_ = described->endpoints[0];
        client_ = std::make_unique<etcd_client>(*described);
    }
    return client_.get();
}

bool account_store::read() {
    auto* const etcd = client();
    const auto answer = etcd ? etcd->ask("/v3/kv/range", {{"key", to_base64(key)}}) : std::nullopt;
    read_at_ = std::chrono::steady_clock::now();
    if (!answer)
        return false;
    try {
        const auto kvs = answer->value("kvs", json::array());
        if (kvs.empty()) {
            known_ = {};
            revision_.assign(1, '0'); // GCC 12 takes = "0" for an overlap
            return has_read_ = true;
        }
        auto found = access::parse_accounts(
            json::parse(from_base64(kvs.at(0).at("value").get<std::string>()), nullptr, false));
        if (!found)
            return false;
        known_ = std::move(*found);
        revision_ = kvs.at(0).at("mod_revision").get<std::string>();
        return has_read_ = true;
    } catch (const json::exception&) {
        return false;
    }
}

const access::accounts& account_store::known() {
    if (!has_read_ || std::chrono::steady_clock::now() > read_at_ + good_for)
        read();
    return known_;
}

stored account_store::change(const std::function<bool(access::accounts&, std::string& why)>& edit,
                             std::string& why) {
    if (!read())
        return stored::unreachable;
    auto wanted = known_;
    if (!edit(wanted, why))
        return stored::done;
    const auto base64 = to_base64(key);
    const auto answer = client()->ask(
        "/v3/kv/txn",
        {{"compare",
          json::array(
              {{{"key", base64}, {"target", "MOD"}, {"result", "EQUAL"}, {"mod_revision", revision_}}})},
         {"success", json::array({{{"request_put",
                                    {{"key", base64},
                                     {"value", to_base64(as_json_text(access::to_json(wanted)))}}}}})}});
    if (!answer)
        return stored::unreachable;
    if (answer->value("succeeded", json(false)) != json(true))
        return stored::conflict;
    return read() ? stored::done : stored::unreachable;
}

} // namespace kagemusha::control::daemon
