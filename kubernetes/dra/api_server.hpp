// SPDX-License-Identifier: GPL-2.0-or-later
//
// The cluster's API server over HTTPS, as the service account of our pod or with a token that the node has. One
// request at a time; any thread.
#pragma once

#include <nlohmann/json.hpp>

#include <mutex>
#include <string>

namespace kagemusha::kubernetes {

struct api_server_options {
    std::string url;        // "https://10.0.0.1:443"; "http://" only on this machine
    std::string token_file; // read again for each request: kubelets renew it; "": none
    std::string ca_file;    // "": the system's
};
// "" or the sentence that refuses it.
std::string why_not_a_server(const api_server_options& options);

struct api_answer {
    long status = 0; // of HTTP; 0: there was none
    nlohmann::json body;
    std::string error; // a sentence; "": a status of 2xx
    bool ok() const { return error.empty(); }
};

class api_server {
public:
    explicit api_server(api_server_options options) : options_(std::move(options)) {}

    api_answer get(const std::string& path) { return request("GET", path, nullptr); }
    api_answer post(const std::string& path, const nlohmann::json& body) {
        return request("POST", path, &body);
    }
    api_answer put(const std::string& path, const nlohmann::json& body) {
        return request("PUT", path, &body);
    }
    api_answer remove(const std::string& path) { return request("DELETE", path, nullptr); }

private:
    api_answer request(const char* method, const std::string& path, const nlohmann::json* body);

    const api_server_options options_;
    std::mutex one_at_a_time_;
};

} // namespace kagemusha::kubernetes
