// SPDX-License-Identifier: GPL-2.0-or-later
//
// See etcd_client.hpp.
#include "control/arbiter/etcd_client.hpp"

#include "control/arbiter/arbiter.hpp"
#include "control/arbiter/endpoint_race.hpp"
#include "control/base/json_text.hpp"
#include "messages/text.hpp"

#include <curl/curl.h>
#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <list>
#include <memory>

namespace kagemusha::control {

namespace {

using json = nlohmann::json;

constexpr std::uint64_t longest_stagger_ms = 100;

struct bounded_text {
    std::string text;
    std::size_t most = 0;
};

std::size_t append(char* bytes, std::size_t size, std::size_t count, void* to) {
    auto& [text, most] = *static_cast<bounded_text*>(to);
    if (text.size() + size * count > most)
        return 0; // libcurl ends the transfer
    text.append(bytes, size * count);
    return size * count;
}

// Not for QEMU, which is started while a connection is kept.
curl_socket_t socket_for_us_alone(void*, curlsocktype, curl_sockaddr* address) {
    return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

} // namespace

// One call to one member.
struct etcd_client::transfer {
    std::size_t call, member;
    std::string url, body;
    bounded_text answer;
    curl_slist* headers = nullptr;
    CURLM* multi = nullptr;
    CURL* easy = nullptr;
    ~transfer() {
        if (easy)
            curl_multi_remove_handle(multi, easy); // one that is under way is given up
        curl_easy_cleanup(easy);
        curl_slist_free_all(headers);
    }
};

etcd_client::etcd_client(const described_arbiter& described, std::size_t longest_answer)
    : described_(described), longest_answer_(longest_answer) {
    curl_global_init(CURL_GLOBAL_DEFAULT);
    multi_ = curl_multi_init();
}

etcd_client::~etcd_client() {
    curl_multi_cleanup(static_cast<CURLM*>(multi_));
}

void* etcd_client::begin(transfer& t, std::uint64_t limit_ms) {
    auto* const curl = curl_easy_init();
    t.multi = static_cast<CURLM*>(multi_);
    t.easy = curl;
    if (!token_.empty())
        t.headers = curl_slist_append(nullptr, ("Authorization: " + token_).c_str());
    curl_easy_setopt(curl, CURLOPT_URL, t.url.c_str());
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, t.headers);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, t.body.c_str());
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, static_cast<long>(t.body.size()));
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, append);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &t.answer);
    curl_easy_setopt(curl, CURLOPT_PRIVATE, &t);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_OPENSOCKETFUNCTION, socket_for_us_alone);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(limit_ms));
    if (!described_.tls.empty()) {
        curl_easy_setopt(curl, CURLOPT_CAINFO, (described_.tls + "/ca.pem").c_str());
        curl_easy_setopt(curl, CURLOPT_SSLCERT, (described_.tls + "/cert.pem").c_str());
        curl_easy_setopt(curl, CURLOPT_SSLKEY, (described_.tls + "/key.pem").c_str());
    }
    curl_multi_add_handle(t.multi, curl);
    return curl;
}

etcd_client::answer etcd_client::read(const transfer& t, int code) {
    const auto& member = described_.endpoints[t.member];
    if (code != CURLE_OK) {
        problem_ = fmt::format("etcd at {} can't be reached: {}", member,
                               curl_easy_strerror(static_cast<CURLcode>(code)));
        return std::nullopt;
    }
    auto parsed = json::parse(t.answer.text, nullptr, false);
    long status = 0;
    curl_easy_getinfo(t.easy, CURLINFO_RESPONSE_CODE, &status);
    // An error has another status; etcd 3.4 also names it "error", 3.5.16 does not. In a stream the status
    // was sent before the error.
    if (status == 200 && parsed.is_object() && !parsed.contains("error"))
        return parsed;
    // An unknown or old token, or none where one is needed: "invalid auth token", "user name is empty".
    needs_login_ = needs_login_ || (!described_.user.empty() && parsed.is_object());
    problem_ = fmt::format("etcd at {} gives no answer that can be used: {}", member,
                           messages::as_text(t.answer.text.substr(0, 200)));
    return std::nullopt;
}

std::vector<etcd_client::answer> etcd_client::race(const std::vector<call>& calls) {
    auto* const multi = static_cast<CURLM*>(multi_);
    const auto members = described_.endpoints.size();
    const auto begun = boot_ms();
    const auto limit_ms = std::uint64_t{described_.lease_ms / 3};
    const auto stagger_ms = std::min<std::uint64_t>(longest_stagger_ms, limit_ms / (members + 1));
    std::vector<answer> answers(calls.size());
    std::vector<endpoint_race> races(calls.size(), endpoint_race(members, first_, stagger_ms));
    std::list<transfer> transfers;
    for (;;) {
        auto now = boot_ms();
        if (now >= begun + limit_ms)
            break;
        auto wake = begun + limit_ms;
        bool waits = false;
        for (std::size_t i = 0; i < calls.size(); ++i) {
            if (answers[i] || races[i].lost())
                continue;
            while (const auto member = races[i].next(now)) {
                auto& t = transfers.emplace_back();
                t.call = i;
                t.member = *member;
                t.answer.most = longest_answer_;
                t.url = described_.endpoints[*member] + calls[i].path;
                t.body = as_json_text(calls[i].body);
                begin(t, begun + limit_ms - now);
            }
            wake = std::min(wake, races[i].next_ms());
            waits = true;
        }
        if (!waits)
            return answers;
        int running = 0, left = 0;
        curl_multi_perform(multi, &running);
        bool progress = false;
        while (const auto* const message = curl_multi_info_read(multi, &left)) {
            if (message->msg != CURLMSG_DONE)
                continue;
            char* pointer = nullptr;
            curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &pointer);
            const auto& t = *reinterpret_cast<transfer*>(pointer);
            const auto call = t.call, member = t.member;
            auto got = read(t, message->data.result);
            transfers.remove_if([&](const transfer& each) { return &each == &t; });
            progress = true;
            if (!got) {
                races[call].failed();
                continue;
            }
            if (!answers[call])
                answers[call] = std::move(got);
            first_ = member;
            transfers.remove_if([&](const transfer& each) { return each.call == call; });
        }
        now = boot_ms();
        if (!progress && wake > now)
            curl_multi_poll(multi, nullptr, 0, static_cast<int>(wake - now), nullptr);
    }
    for (std::size_t i = 0; i < calls.size(); ++i)
        if (!answers[i] && !races[i].lost())
            problem_ = fmt::format("etcd at {} gave no answer within {} ms",
                                   fmt::join(described_.endpoints, ", "), limit_ms);
    return answers;
}

// etcd's tokens are forgotten by a member that starts anew, and run out.
bool etcd_client::log_in() {
    token_.clear();
    const auto got =
        race({{"/v3/auth/authenticate", {{"name", described_.user}, {"password", described_.password}}}});
    needs_login_ = false;
    if (!got.front())
        return false;
    const auto token = got.front()->find("token");
    if (token == got.front()->end() || !token->is_string()) {
        problem_ = "etcd's answer to the user's name and password has no token";
        return false;
    }
    token_ = token->get<std::string>();
    const auto printable = [](char c) { return c > ' ' && c < 0x7f; };
    if (token_.empty() || !std::all_of(token_.begin(), token_.end(), printable)) { // it goes into a header
        token_.clear();
        problem_ = "etcd's token can't be used";
    }
    return !token_.empty();
}

std::vector<etcd_client::answer> etcd_client::ask(const std::vector<call>& calls) {
    const std::vector<answer> none(calls.size());
    needs_login_ = false;
    if (!described_.user.empty() && token_.empty() && !log_in())
        return none;
    auto got = race(calls);
    const bool all = std::all_of(got.begin(), got.end(), [](const auto& a) { return a.has_value(); });
    if (all || !needs_login_)
        return got;
    return log_in() ? race(calls) : none;
}

etcd_client::answer etcd_client::ask(const char* path, const json& body) {
    return std::move(ask({{path, body}}).front());
}

} // namespace kagemusha::control
