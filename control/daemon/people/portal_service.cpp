// SPDX-License-Identifier: GPL-2.0-or-later
//
// See portal_service.hpp.
#include "control/daemon/people/portal_service.hpp"

#include "control/access/secrets.hpp"
#include "control/base/assets.hpp"
#include "control/base/json_text.hpp"
#include "control/base/whole_file.hpp"
#include "control/keys/certificates.hpp"
#include "control/portal/certificate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unistd.h>

namespace kagemusha::control::daemon {

using json = nlohmann::json;

namespace {

constexpr auto between_gauges = std::chrono::seconds(1);
constexpr unsigned retry_s = 10; // what who was refused for asking too often is told

std::string topic_of(const std::string& cluster) {
    return "cluster " + cluster;
}

json gauges_of(const cluster::plan& plan) {
    json out = json::object();
    for (const auto& [number, node] : plan.nodes) {
        if (!node.primary)
            continue;
        const auto& g = node.gauges;
        auto& of_node = out[cluster::node_name(number)];
        of_node = {{"checkpoint_age_ms", g.checkpoint_age_ms},
                   {"pause_us", g.pause_us},
                   {"epoch_us", g.epoch_us},
                   {"checkpoints", g.checkpoints},
                   {"takeovers", g.takeovers},
                   {"paused_percent", g.paused_percent},
                   {"gpu_behind_ms", g.gpu_behind_ms}};
        if (g.gpu_percent >= 0)
            of_node["gpu_percent"] = g.gpu_percent;
    }
    return out;
}

std::optional<portal::server_address> read_address(const json& wanted,
                                                   const portal::server_address& otherwise) {
    const auto port = wanted.value("port", json(otherwise.port));
    const auto address = wanted.value("listen", json(otherwise.address));
    if (!port.is_number_unsigned() || port > 65535 || !address.is_string() ||
        !is_address(address.get<std::string>()))
        return std::nullopt;
    return portal::server_address{address.get<std::string>(), port.get<std::uint16_t>()};
}

portal::reply to_reply(const api_answer& from) {
    portal::reply out{from.status, "application/json", as_json_text(from.body) + "\n", {}};
    if (!from.revision.empty())
        out.headers.emplace_back("ETag", fmt::format("\"{}\"", from.revision));
    for (const auto& cookie : from.cookies)
        out.headers.emplace_back("Set-Cookie", cookie);
    if (!from.location.empty())
        out.headers.emplace_back("Location", from.location);
    out.hold = from.hold;
    if (from.status == 429)
        out.headers.emplace_back("Retry-After", fmt::format("{}", retry_s));
    return out;
}

// What may wait for PAM or for a provider.
bool is_login(const portal::request& request) {
    const auto path = std::string_view(request.target).substr(0, request.target.find('?'));
    return path == login::oidc_path || path == login::oidc_callback_path ||
           (path == "/v1/session" && request.method == "POST");
}

} // namespace

portal_service::portal_service(api& answers, reconciler& work, event_log& events, const state_folder& folder)
    : api_(answers), work_(work), events_(events), folder_(folder) {}

portal_service::~portal_service() {
    events_.listen({});
    work_.listen({});
}

// ---- requests, on the server's second thread

api_answer portal_service::ask(const portal::request& request, access::caller* who) {
    const bool changes = request.method != "GET" && request.method != "HEAD";
    const auto admitted = api_.admit({changes, request.websocket, request.from, request.cookies,
                                      request.authorization, request.origin, request.host, request.csrf});
    if (admitted.status != 0)
        return refuse(admitted.status, admitted.why);
    if (who)
        *who = admitted.who;
    api_request whole{request.method == "HEAD" ? "GET" : request.method,
                      request.target,
                      revision_of(request.if_match),
                      request.body,
                      admitted.who,
                      request.websocket,
                      request.cookies};
    auto said = api_.answer(whole);
    access::forget(whole.body); // it may have a password
    return said;
}

portal::reply portal_service::answer(const portal::request& request) {
    if (request.method == "GET" || request.method == "HEAD")
        if (auto file = files_.find(request.target, request.if_none_match))
            return std::move(*file);
    return to_reply(ask(request));
}

portal::opening portal_service::let_in(const portal::request& request) {
    portal::opening out;
    const auto said = ask(request, &out.who);
    if (said.status != 200) {
        out.refusal = to_reply(said);
    } else if (said.body.contains("socket")) {
        out.what = portal::opening::kind::console;
        out.socket = text_in(said.body, "socket");
        out.secret = text_in(said.body, "secret");
    } else if (said.body.empty()) {
        out.what = portal::opening::kind::live;
    } else {
        out.refusal = to_reply(refuse(400, "there is no WebSocket here"));
    }
    return out;
}

// ---- what open pages get, on the reconciler's thread

void portal_service::publish(const std::vector<cluster_record>& records) {
    const std::lock_guard lock(mutex_);
    if (!server_)
        return;
    std::vector<std::pair<std::string, std::string>> texts;
    texts.emplace_back("host", as_json_text({{"type", "host"}, {"host", api_.describe_host()}}));
    texts.emplace_back("hosts", as_json_text({{"type", "hosts"}, {"hosts", api_.describe_hosts()}}));
    const auto now = std::chrono::steady_clock::now();
    const bool with_gauges = now > gauges_at_ + between_gauges;
    if (with_gauges)
        gauges_at_ = now;
    std::vector<std::string> names;
    for (const auto& record : records) {
        const auto& name = record.declared.name;
        names.push_back(name);
        texts.emplace_back(topic_of(name),
                           as_json_text({{"type", "cluster"}, {"cluster", api_.describe(record, true)}}));
        if (const auto seen = with_gauges ? work_.look(name) : std::nullopt)
            texts.emplace_back(
                "gauges " + name,
                as_json_text({{"type", "gauges"}, {"name", name}, {"gauges", gauges_of(seen->plan)}}));
    }
    server_->change_feed(
        [texts = std::move(texts), names = std::move(names)](portal::live_feed& feed) mutable {
            for (const auto& topic : feed.topics()) {
                const auto space = topic.find(' ');
                const auto name = space == topic.npos ? std::string() : topic.substr(space + 1);
                if (!name.empty() && std::ranges::find(names, name) == names.end())
                    feed.remove(topic, as_json_text({{"type", "gone"}, {"name", name}}));
            }
            for (auto& [topic, text] : texts)
                feed.put(topic, std::move(text));
        });
}

// ---- opening it

json portal_service::where() const {
    const bool is_v6 = at_.address.find(':') != std::string::npos;
    return {{"address", fmt::format("https://{}{}{}:{}/", is_v6 ? "[" : "", at_.address, is_v6 ? "]" : "",
                                    server_->port())},
            {"fingerprint", fingerprint_}};
}

std::string portal_service::listen(const portal::server_address& at) {
    std::string error;
    auto files = portal::web_files::load(source_root() + "/control/portal/web", error);
    if (!error.empty())
        return error;
    char host[65] = "";
    ::gethostname(host, sizeof host - 1);
    std::vector<std::string> names{"localhost", "127.0.0.1", "::1"};
    for (const auto& name : {at.address, std::string(host)})
        if (!name.empty() && std::ranges::find(names, name) == names.end())
            names.push_back(name);
    const auto keys = portal::portal_certificate(folder_.path() + "/portal", names, error);
    if (!error.empty())
        return error;
    server_.reset(); // its port may be the one that is wanted
    files_ = std::move(files);
    fingerprint_ = keys.fingerprint;
    at_ = at;
    server_ = portal::server::listen(
        at, keys.certificate, keys.key,
        {[this](const auto& request) { return answer(request); },
         [this](const auto& request) { return let_in(request); },
         [this](const auto& who) { return api_.is_alive(who); }, is_login},
        [this](std::size_t pages) { work_.set_watched(pages > 0); }, error);
    return error;
}

json portal_service::open(const json& wanted, std::string& error) {
    {
        const std::lock_guard lock(mutex_);
        // What is not named stays as it is.
        const auto at =
            read_address(wanted, server_ ? portal::server_address{at_.address, server_->port()} : at_);
        if (!at) {
            error = "the portal listens at an address, as 127.0.0.1, and a port from 0 to 65535";
            return {};
        }
        if (server_ && at->address == at_.address && (at->port == 0 || at->port == server_->port()))
            return where();
        error = listen(*at);
        if (!error.empty())
            return {};
        const auto kept =
            write_whole_file(folder_.path() + "/portal/listen.json",
                             as_json_text({{"listen", at->address}, {"port", server_->port()}}) + "\n");
        if (!kept.empty())
            fmt::print(stderr, "kage: {}: the next daemon will not open the portal by itself\n", kept);
    }
    // Without the mutex: events_ and work_ call back under theirs.
    events_.listen([this](const json& event) {
        json whole = event;
        whole["type"] = "event";
        const std::lock_guard lock(mutex_);
        if (server_)
            server_->change_feed(
                [text = as_json_text(whole)](portal::live_feed& feed) { feed.add_event(text); });
    });
    work_.listen([this](const auto& records) { publish(records); });
    work_.kick();
    const std::lock_guard lock(mutex_);
    return where();
}

std::string portal_service::open_again() {
    const auto text = read_whole_file(folder_.path() + "/portal/listen.json");
    if (!text)
        return {};
    const auto kept = json::parse(*text, nullptr, false);
    std::string error;
    open(kept.is_object() ? kept : json::object(), error);
    return error;
}

} // namespace kagemusha::control::daemon
