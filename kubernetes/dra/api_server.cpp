// SPDX-License-Identifier: GPL-2.0-or-later
//
// See api_server.hpp.
#include "kubernetes/dra/api_server.hpp"

#include "control/base/json_text.hpp"

#include <curl/curl.h>
#include <fmt/format.h>

#include <fstream>
#include <memory>
#include <string_view>

namespace kagemusha::kubernetes {

using nlohmann::json;

namespace {

constexpr std::size_t max_body_bytes = 8u << 20; // a list of ResourceSlices of one node is far less
constexpr std::size_t max_token_bytes = 64u << 10;
constexpr long connect_ms = 10'000, whole_ms = 30'000;

std::size_t append(char* bytes, std::size_t one, std::size_t count, void* to) {
    auto& body = *static_cast<std::string*>(to);
    if (body.size() + one * count > max_body_bytes)
        return 0; // the request fails
    body.append(bytes, one * count);
    return one * count;
}

// Without line ends: it becomes a part of a header.
std::string token_in(const std::string& path) {
    std::string token(max_token_bytes, '\0');
    std::ifstream file(path, std::ios::binary);
    file.read(token.data(), static_cast<std::streamsize>(token.size()));
    token.resize(static_cast<std::size_t>(file.gcount()));
    token.resize(std::min(token.size(), token.find_first_of("\r\n")));
    return token;
}

class headers {
public:
    ~headers() { ::curl_slist_free_all(list_); }
    void add(const std::string& line) { list_ = ::curl_slist_append(list_, line.c_str()); }
    curl_slist* list() const { return list_; }

private:
    curl_slist* list_ = nullptr;
};

} // namespace

std::string why_not_a_server(const api_server_options& options) {
    const std::string_view url = options.url;
    for (const std::string_view local : {"http://127.0.0.1:", "http://[::1]:", "http://localhost:"})
        if (url.starts_with(local))
            return {};
    if (!url.starts_with("https://"))
        return fmt::format(
            "the API server's address is \"{}\": it is https://HOST:PORT; in a pod the cluster gives it, "
            "elsewhere --api-server does",
            control::as_log_line(options.url));
    if (!options.token_file.empty() && token_in(options.token_file).empty())
        return fmt::format("there is no token in {}", options.token_file);
    return {};
}

api_answer api_server::request(const char* method, const std::string& path, const json* body) {
    const std::lock_guard lock(one_at_a_time_);
    api_answer out;
    const std::unique_ptr<CURL, void (*)(CURL*)> curl(::curl_easy_init(), ::curl_easy_cleanup);
    if (!curl) {
        out.error = "no memory for a request";
        return out;
    }
    std::string said;
    const auto text = body ? control::as_json_text(*body) : std::string();
    headers sent;
    sent.add("Accept: application/json");
    if (body)
        sent.add("Content-Type: application/json");
    if (!options_.token_file.empty())
        sent.add("Authorization: Bearer " + token_in(options_.token_file));
    const auto url = options_.url + path;
    ::curl_easy_setopt(curl.get(), CURLOPT_URL, url.c_str());
    ::curl_easy_setopt(curl.get(), CURLOPT_CUSTOMREQUEST, method);
    ::curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, sent.list());
    ::curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, append);
    ::curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &said);
    ::curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
    ::curl_easy_setopt(curl.get(), CURLOPT_CONNECTTIMEOUT_MS, connect_ms);
    ::curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT_MS, whole_ms);
    if (!options_.ca_file.empty())
        ::curl_easy_setopt(curl.get(), CURLOPT_CAINFO, options_.ca_file.c_str());
    if (body) {
        ::curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDS, text.data());
        ::curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(text.size()));
    }
    if (const auto failed = ::curl_easy_perform(curl.get()); failed != CURLE_OK) {
        out.error = fmt::format("the API server does not answer: {}", ::curl_easy_strerror(failed));
        return out;
    }
    ::curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &out.status);
    out.body = json::parse(said, nullptr, false);
    if (out.status < 200 || out.status > 299)
        out.error = fmt::format("the API server answers {} to {} {}: {}", out.status, method, path,
                                out.body.is_object() ? control::text_in(out.body, "message") : "");
    else if (!out.body.is_object())
        out.error = fmt::format("the API server's answer to {} {} is no JSON object", method, path);
    return out;
}

} // namespace kagemusha::kubernetes
