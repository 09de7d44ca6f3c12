// SPDX-License-Identifier: GPL-2.0-or-later
//
// See https_client.hpp.
#include "control/login/https_client.hpp"

#include "control/login/oidc_provider.hpp"

#include <curl/curl.h>
#include <fmt/format.h>

#include <memory>

namespace kagemusha::control::login {

namespace {

struct received {
    std::string body;
    std::size_t header_bytes = 0;
    bool is_too_long = false;
};

std::size_t take_body(const char* bytes, std::size_t one, std::size_t count, void* to) {
    auto& out = *static_cast<received*>(to);
    out.is_too_long = out.body.size() + one * count > oidc_limits::answer_bytes;
    if (out.is_too_long)
        return 0; // curl ends it
    out.body.append(bytes, one * count);
    return one * count;
}

std::size_t take_header(const char*, std::size_t one, std::size_t count, void* to) {
    auto& out = *static_cast<received*>(to);
    out.header_bytes += one * count;
    out.is_too_long = out.header_bytes > https_limits::header_bytes;
    return out.is_too_long ? 0 : one * count;
}

struct freed {
    void operator()(CURL* of) const { curl_easy_cleanup(of); }
    void operator()(curl_slist* of) const { curl_slist_free_all(of); }
};

} // namespace

std::optional<https_answer> ask_https(const https_request& request, std::string& why) {
    static const auto once = curl_global_init(CURL_GLOBAL_DEFAULT);
    const std::unique_ptr<CURL, freed> curl(once == CURLE_OK ? curl_easy_init() : nullptr);
    if (!curl) {
        why = "libcurl can't be used";
        return std::nullopt;
    }
    curl_slist* lines = curl_slist_append(nullptr, "Accept: application/json");
    if (!request.authorization.empty())
        lines = curl_slist_append(lines, ("Authorization: " + request.authorization).c_str());
    const std::unique_ptr<curl_slist, freed> headers(lines);
    received got;
    auto* const at = curl.get();
    curl_easy_setopt(at, CURLOPT_URL, request.url.c_str());
    curl_easy_setopt(at, CURLOPT_HTTPHEADER, headers.get());
    curl_easy_setopt(at, CURLOPT_PROTOCOLS_STR, "https");
    curl_easy_setopt(at, CURLOPT_SSLVERSION, static_cast<long>(CURL_SSLVERSION_TLSv1_2));
    curl_easy_setopt(at, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(at, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(at, CURLOPT_TIMEOUT_MS, https_limits::whole_ms);
    curl_easy_setopt(at, CURLOPT_CONNECTTIMEOUT_MS, https_limits::connect_ms);
    curl_easy_setopt(at, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(at, CURLOPT_WRITEDATA, &got);
    curl_easy_setopt(at, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(at, CURLOPT_HEADERDATA, &got);
    if (!request.ca_file.empty())
        curl_easy_setopt(at, CURLOPT_CAINFO, request.ca_file.c_str());
    if (request.is_form) {
        curl_easy_setopt(at, CURLOPT_POSTFIELDSIZE, static_cast<long>(request.body.size()));
        curl_easy_setopt(at, CURLOPT_POSTFIELDS, request.body.c_str());
    }
    const auto code = curl_easy_perform(at);
    const auto host = request.url.substr(0, request.url.find('?'));
    if (got.is_too_long) {
        why = fmt::format("{} answers with more than {} KiB", host, oidc_limits::answer_bytes >> 10);
        return std::nullopt;
    }
    if (code != CURLE_OK) {
        why = fmt::format("{} can't be asked: {}", host, curl_easy_strerror(code));
        return std::nullopt;
    }
    long status = 0;
    curl_easy_getinfo(at, CURLINFO_RESPONSE_CODE, &status);
    return https_answer{static_cast<unsigned>(status), std::move(got.body)};
}

} // namespace kagemusha::control::login
