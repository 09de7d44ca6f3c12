// SPDX-License-Identifier: GPL-2.0-or-later
//
// See etcd_arbiter.hpp.
#include "control/arbiter/etcd_arbiter.hpp"

#include "control/base/base64.hpp"
#include "control/base/json_text.hpp"

#include "messages/text.hpp"

#include <fmt/format.h>

#include <sstream>

namespace kagemusha::control {

namespace {

using ha::arbiter_answer;
using ha::arbiter_request;
using json = nlohmann::json;

constexpr int attempts = 3; // when somebody else changed the record in between
constexpr std::uint64_t poll_ms = 100;

json range(const std::string& key) {
    return {{"requestRange", {{"key", key}}}};
}

} // namespace

etcd_arbiter::etcd_arbiter(const described_arbiter& described, const arbiter_identity& identity,
                           arbiter_answers answer)
    : worker_arbiter(std::move(answer))
    , etcd_(described)
    , ttl_s_(described.lease_ms / 1000)
    , identity_(identity)
    , state_key_(to_base64("/kagemusha/" + identity.vm + "/state"))
    , holder_key_(to_base64("/kagemusha/" + identity.vm + "/holder")) {
    start();
}

arbiter_answer etcd_arbiter::unreachable() const {
    return {arbiter_answer::verdict::unreachable, 0, 0, 0, problem_.empty() ? etcd_.problem() : problem_};
}

// ---- the record

// Of a transaction whose requests were those two ranges.
std::optional<etcd_record> etcd_arbiter::state_in(const json& answer) {
    etcd_record out;
    const auto value = [&](std::size_t i, const char* what) {
        const auto pointer =
            json::json_pointer(fmt::format("/responses/{}/response_range/kvs/0/{}", i, what));
        return answer.contains(pointer) && answer[pointer].is_string() ? answer[pointer].get<std::string>()
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
        out.owner = messages::as_text(out.owner);
        out.paired = paired == "paired";
    }
    out.holder = messages::as_text(from_base64(value(1, "value")));
    return out;
}

std::optional<etcd_record> etcd_arbiter::read() {
    const auto answer =
        etcd_.ask("/v3/kv/txn", {{"success", json::array({range(state_key_), range(holder_key_)})}});
    return answer ? state_in(*answer) : std::nullopt;
}

// A lease of ours with at least half of its life left; one that was not kept alive may be gone.
bool etcd_arbiter::have_lease() {
    const auto sent = boot_ms();
    if (!lease_.empty() && lease_until_ms_ > sent + ttl_s_ * 1000 / 2)
        return true;
    const auto granted = etcd_.ask("/v3/lease/grant", {{"TTL", std::to_string(ttl_s_)}});
    if (!granted)
        return false;
    lease_ = text_in(*granted, "ID");
    lease_until_ms_ = sent + ttl_s_ * 1000;
    if (lease_.empty())
        problem_ = "etcd's lease has no number";
    return !lease_.empty();
}

// One transaction. `done`: somebody else was not faster; otherwise known_ is what the record says.
bool etcd_arbiter::put(const etcd_put& wanted, bool& done) {
    json compare = json::array(
        {{{"key", state_key_}, {"target", "MOD"}, {"result", "EQUAL"}, {"mod_revision", known_->revision}}});
    if (wanted.nobody_holds)
        compare.push_back(
            {{"key", holder_key_}, {"target", "VERSION"}, {"result", "EQUAL"}, {"version", "0"}});
    const auto value =
        fmt::format("{} {} {}", wanted.term, wanted.paired ? "paired" : "alone", identity_.owner);
    const auto answer = etcd_.ask(
        "/v3/kv/txn",
        {{"compare", compare},
         {"success",
          json::array(
              {{{"requestPut", {{"key", state_key_}, {"value", to_base64(value)}}}},
               {{"requestPut",
                 {{"key", holder_key_}, {"value", to_base64(identity_.owner)}, {"lease", lease_}}}}})},
         {"failure", json::array({range(state_key_), range(holder_key_)})}});
    known_.reset(); // without an answer
    if (!answer)
        return false;
    done = answer->value("succeeded", false);
    if (!done) {
        known_ = state_in(*answer);
        return known_.has_value();
    }
    const auto header = answer->find("header");
    if (const auto revision = header == answer->end() ? std::string() : text_in(*header, "revision");
        !revision.empty())
        known_ = etcd_record{wanted.term, wanted.paired, identity_.owner, revision, identity_.owner};
    return true;
}

// The lease is kept alive, and the record looked at: it may be gone or another's although the lease lives.
// Both are under way at once. The transaction reads something, or etcd would not ask its other members.
arbiter_answer etcd_arbiter::renew(const arbiter_request& request) {
    if (lease_.empty() || !known_)
        return change(request);
    const auto sent = boot_ms();
    const json unchanged = json::array(
        {{{"key", state_key_}, {"target", "MOD"}, {"result", "EQUAL"}, {"mod_revision", known_->revision}},
         {{"key", holder_key_}, {"target", "LEASE"}, {"result", "EQUAL"}, {"lease", lease_}}});
    const auto answers = etcd_.ask({{"/v3/lease/keepalive", {{"ID", lease_}}},
                                    {"/v3/kv/txn",
                                     {{"compare", unchanged},
                                      {"success", json::array({range(state_key_)})},
                                      {"failure", json::array({range(state_key_), range(holder_key_)})}}}});
    const auto& kept = answers[0];
    const auto& looked = answers[1];
    if (!kept || !looked)
        return unreachable();
    const auto ttl = kept->contains("result") ? text_in((*kept)["result"], "TTL") : std::string();
    if (ttl.empty() || ttl == "0")
        lease_.clear(); // it ran out
    if (!looked->value("succeeded", false))
        known_ = state_in(*looked);
    else if (!lease_.empty() && known_->term == request.term && known_->owner == identity_.owner &&
             !(request.alone && known_->paired)) {
        lease_until_ms_ = sent + ttl_s_ * 1000;
        return {arbiter_answer::verdict::granted, 0, request.term, lease_until_ms_, {}};
    }
    return change(request);
}

arbiter_answer etcd_arbiter::change(const arbiter_request& request) {
    using kind = arbiter_request::kind;
    using verdict = arbiter_answer::verdict;
    // What is known may be old. That is good enough to try a transaction, which compares; it decides nothing
    // else.
    bool fresh = false;
    for (int attempt = 0; attempt < attempts;) {
        if (!known_) {
            fresh = true;
            known_ = read();
        }
        if (!known_)
            return unreachable();
        const auto decided = decide_on(*known_, request, identity_.owner, boot_ms());
        if (const auto* const answer = std::get_if<arbiter_answer>(&decided)) {
            if (!fresh) {
                known_.reset();
                continue;
            }
            if (request.what == kind::claim && answer->what == verdict::held)
                have_lease(); // ready when the other one's ends
            return *answer;
        }
        const auto& wanted = std::get<etcd_put>(decided);
        bool done = false;
        if (!have_lease())
            return unreachable();
        if (!put(wanted, done)) {
            lease_.clear(); // it may have run out: a new one next time
            return unreachable();
        }
        if (done)
            return {verdict::granted, 0, wanted.term, lease_until_ms_, {}};
        fresh = true;
        ++attempt;
    }
    return {verdict::held, 0, 0, boot_ms() + poll_ms, "the record changes too fast"};
}

arbiter_answer etcd_arbiter::decide(const arbiter_request& request) {
    problem_.clear();
    if (request.what == arbiter_request::kind::renew)
        return renew(request);
    if (request.what == arbiter_request::kind::release) {
        if (request.alone) { // what is known may be old: it may have been put back since
            known_.reset();
            change(request); // the lease ends all the same
        }
        if (!lease_.empty() && !etcd_.ask("/v3/lease/revoke", {{"ID", lease_}}))
            return unreachable();
        lease_.clear();
        return {arbiter_answer::verdict::granted, 0, request.term, 0, {}};
    }
    return change(request);
}

} // namespace kagemusha::control
