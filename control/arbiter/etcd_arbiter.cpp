// SPDX-License-Identifier: GPL-2.0-or-later
//
// See etcd_arbiter.hpp.
#include "control/arbiter/etcd_arbiter.hpp"

#include <curl/curl.h>
#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <sstream>

namespace kagemusha::control {

namespace {

using ha::arbiter_answer;
using ha::arbiter_request;
using json = nlohmann::json;

constexpr std::size_t longest_answer = 65536;
constexpr int attempts = 3;            // when somebody else changed the record in between
constexpr std::uint64_t poll_ms = 100; // another's lease: its end is not known

std::string base64(const std::string& text) {
    std::string out(4 * ((text.size() + 2) / 3) + 1, '\0');
    const int size =
        EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                        reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
    out.resize(static_cast<std::size_t>(size));
    return out;
}

std::string from_base64(const std::string& text) {
    std::string out(3 * (text.size() / 4) + 3, '\0');
    const int size =
        EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                        reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
    const auto padding = std::count(text.begin(), text.end(), '=');
    if (size < padding)
        return {};
    out.resize(static_cast<std::size_t>(size - padding));
    return out;
}

std::size_t append(char* bytes, std::size_t size, std::size_t count, void* to) {
    auto& text = *static_cast<std::string*>(to);
    if (text.size() + size * count > longest_answer)
        return 0; // libcurl ends the transfer
    text.append(bytes, size * count);
    return size * count;
}

std::string text_of(const json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// Not for QEMU, which is started while a connection is kept.
curl_socket_t socket_for_us_alone(void*, curlsocktype, curl_sockaddr* address) {
    return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

} // namespace

etcd_arbiter::etcd_arbiter(const described_arbiter& described, const arbiter_identity& identity,
                           arbiter_answers answer)
    : worker_arbiter(std::move(answer)), described_(described), identity_(identity) {
    curl_global_init(CURL_GLOBAL_DEFAULT);
    curl_ = curl_easy_init();
    state_key_ = base64("/kagemusha/" + identity.vm + "/state");
    holder_key_ = base64("/kagemusha/" + identity.vm + "/holder");
    start();
}

etcd_arbiter::~etcd_arbiter() {
    stop();
    curl_easy_cleanup(static_cast<CURL*>(curl_));
}

// ---- HTTP

std::optional<json> etcd_arbiter::post_to(const std::string& endpoint, const char* path,
                                          const std::string& body) {
    auto* const curl = static_cast<CURL*>(curl_);
    std::string answer;
    curl_easy_reset(curl);
    curl_easy_setopt(curl, CURLOPT_URL, (endpoint + path).c_str());
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body.c_str());
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, static_cast<long>(body.size()));
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, append);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &answer);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_OPENSOCKETFUNCTION, socket_for_us_alone);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(described_.lease_ms / 3));
    if (!described_.tls.empty()) {
        curl_easy_setopt(curl, CURLOPT_CAINFO, (described_.tls + "/ca.pem").c_str());
        curl_easy_setopt(curl, CURLOPT_SSLCERT, (described_.tls + "/cert.pem").c_str());
        curl_easy_setopt(curl, CURLOPT_SSLKEY, (described_.tls + "/key.pem").c_str());
    }
    if (const auto code = curl_easy_perform(curl); code != CURLE_OK) {
        problem_ = fmt::format("etcd at {} can't be reached: {}", endpoint, curl_easy_strerror(code));
        return std::nullopt;
    }
    auto parsed = json::parse(answer, nullptr, false);
    if (!parsed.is_object() || parsed.contains("error")) {
        problem_ =
            fmt::format("etcd at {} gives no answer that can be used: {}", endpoint, answer.substr(0, 200));
        return std::nullopt;
    }
    return parsed;
}

std::optional<json> etcd_arbiter::post(const char* path, const json& body) {
    const auto text = body.dump();
    for (const auto& endpoint : described_.endpoints)
        if (auto answer = post_to(endpoint, path, text))
            return answer;
    return std::nullopt;
}

// ---- the record

std::optional<etcd_arbiter::state> etcd_arbiter::read() {
    const auto range = [](const std::string& key) { return json{{"requestRange", {{"key", key}}}}; };
    const auto answer =
        post("/v3/kv/txn", {{"success", json::array({range(state_key_), range(holder_key_)})}});
    if (!answer)
        return std::nullopt;
    state out;
    const auto value = [&](std::size_t i, const char* what) {
        const auto pointer =
            json::json_pointer(fmt::format("/responses/{}/response_range/kvs/0/{}", i, what));
        return answer->contains(pointer) && (*answer)[pointer].is_string()
                   ? (*answer)[pointer].get<std::string>()
                   : std::string();
    };
    if (const auto revision = value(0, "mod_revision"); !revision.empty()) {
        out.revision = revision;
        std::istringstream words(from_base64(value(0, "value")));
        std::string paired;
        if (!(words >> out.term >> paired >> out.owner)) {
            problem_ = "etcd's record of this VM is none of ours";
            return std::nullopt;
        }
        out.paired = paired == "paired";
    }
    out.holder = from_base64(value(1, "value"));
    return out;
}

// A lease of ours with at least half of its life left; one that was not kept alive may be gone.
bool etcd_arbiter::have_lease() {
    const auto sent = boot_ms();
    if (!lease_.empty() && lease_until_ms_ > sent + described_.lease_ms / 2)
        return true;
    const auto granted = post("/v3/lease/grant", {{"TTL", std::to_string(described_.lease_ms / 1000)}});
    if (!granted)
        return false;
    lease_ = text_of(*granted, "ID");
    lease_until_ms_ = sent + described_.lease_ms / 1000 * 1000;
    return !lease_.empty();
}

// One transaction. `done`: somebody else was not faster.
bool etcd_arbiter::put(const state& old, std::uint64_t term, bool paired, bool nobody_holds, bool& done) {
    json compare = json::array(
        {{{"key", state_key_}, {"target", "MOD"}, {"result", "EQUAL"}, {"mod_revision", old.revision}}});
    if (nobody_holds)
        compare.push_back(
            {{"key", holder_key_}, {"target", "VERSION"}, {"result", "EQUAL"}, {"version", "0"}});
    const auto value = fmt::format("{} {} {}", term, paired ? "paired" : "alone", identity_.owner);
    const auto answer = post(
        "/v3/kv/txn",
        {{"compare", compare},
         {"success",
          json::array({{{"requestPut", {{"key", state_key_}, {"value", base64(value)}}}},
                       {{"requestPut",
                         {{"key", holder_key_}, {"value", base64(identity_.owner)}, {"lease", lease_}}}}})}});
    if (!answer)
        return false;
    done = answer->value("succeeded", false);
    return true;
}

arbiter_answer etcd_arbiter::renew(const arbiter_request& request) {
    if (!lease_.empty()) {
        const auto sent = boot_ms();
        const auto answer = post("/v3/lease/keepalive", {{"ID", lease_}});
        if (!answer)
            return {arbiter_answer::verdict::unreachable, 0, 0, 0, problem_};
        const auto ttl = answer->contains("result") ? text_of((*answer)["result"], "TTL") : std::string();
        if (!ttl.empty() && ttl != "0") {
            // While it lives our key of the holder does, and nobody else can have claimed.
            lease_until_ms_ = sent + described_.lease_ms / 1000 * 1000;
            return {arbiter_answer::verdict::granted, 0, request.term, lease_until_ms_, {}};
        }
        lease_.clear(); // it ran out
    }
    return change(request);
}

arbiter_answer etcd_arbiter::change(const arbiter_request& request) {
    using kind = arbiter_request::kind;
    using verdict = arbiter_answer::verdict;
    for (int attempt = 0; attempt < attempts; ++attempt) {
        const auto now = read();
        if (!now)
            return {verdict::unreachable, 0, 0, 0, problem_};
        const bool ours = now->owner == identity_.owner;
        const bool others = !now->holder.empty() && now->holder != identity_.owner;
        const arbiter_answer held{verdict::held, 0, 0, boot_ms() + poll_ms,
                                  fmt::format("{} has a lease", now->holder)};
        const arbiter_answer other_term{
            verdict::refused, 0, 0, 0,
            fmt::format("term {} is over: {} has term {}", request.term, now->owner, now->term)};
        if (request.what != kind::open && request.what != kind::restore &&
            (now->revision == "0" || (now->term < request.term && now->holder.empty())))
            return {verdict::gone, 0, 0, 0,
                    now->revision == "0"
                        ? "etcd has no record of this VM any more"
                        : fmt::format("etcd's record of this VM is older than term {}", request.term)};
        std::uint64_t term = now->term;
        bool paired = now->paired, nobody_holds = false;
        switch (request.what) {
        case kind::open:
            if (others)
                return held;
            if (now->paired && !request.anew)
                return {verdict::refused, 0, 0, 0,
                        "a standby holds the VM's last state and may take it over; if it is gone, start the "
                        "VM anew with "
                        "--anew"};
            term = now->term + 1;
            paired = false;
            nobody_holds = now->holder.empty();
            break;
        case kind::claim:
            if (ours && now->term == request.term + 1)
                break; // done before, and the answer was lost
            if (now->term != request.term)
                return other_term;
            if (!now->paired && !(request.proven_dead && request.unreleased))
                return {verdict::refused, 0, 0, 0,
                        "the primary goes on alone: what this standby has is out of date"};
            if (others && !request.proven_dead)
                return held;
            term = request.term + 1;
            paired = false;
            nobody_holds = !request.proven_dead;
            break;
        case kind::pair:
            if (!ours || (now->term != request.term && now->term != request.new_term))
                return other_term;
            term = request.new_term;
            paired = true;
            break;
        case kind::alone:
        case kind::renew:
            if (!ours || now->term != request.term)
                return other_term;
            if (request.what == kind::alone)
                paired = false;
            break;
        case kind::look:
            return {verdict::granted, 0, now->term, 0, {}, now->paired, ours};
        case kind::restore:
            if (now->term > request.term ||
                (now->term == request.term && (!ours || now->paired != request.paired)))
                return other_term;
            if (others)
                return held;
            term = request.term;
            paired = request.paired;
            nobody_holds = now->holder.empty();
            break;
        case kind::release:
            return {verdict::granted, 0, request.term, 0, {}};
        }
        if (!have_lease())
            return {verdict::unreachable, 0, 0, 0, problem_};
        bool done = false;
        if (!put(*now, term, paired, nobody_holds, done)) {
            lease_.clear(); // it may have run out: a new one next time
            return {verdict::unreachable, 0, 0, 0, problem_};
        }
        if (done)
            return {verdict::granted, 0, term, lease_until_ms_, {}};
    }
    return {verdict::held, 0, 0, boot_ms() + poll_ms, "the record changes too fast"};
}

arbiter_answer etcd_arbiter::decide(const arbiter_request& request) {
    if (request.what == arbiter_request::kind::renew)
        return renew(request);
    if (request.what == arbiter_request::kind::release) {
        if (!lease_.empty() && !post("/v3/lease/revoke", {{"ID", lease_}}))
            return {arbiter_answer::verdict::unreachable, 0, 0, 0, problem_};
        lease_.clear();
        return {arbiter_answer::verdict::granted, 0, request.term, 0, {}};
    }
    return change(request);
}

} // namespace kagemusha::control
