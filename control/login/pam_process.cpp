// SPDX-License-Identifier: GPL-2.0-or-later
//
// The process of one login at PAM: see pam_login.hpp. It ends with its answer.
#include "control/access/secrets.hpp"
#include "control/base/write_all.hpp"
#include "control/login/pam_login.hpp"

#include <nlohmann/json.hpp>
#include <security/pam_appl.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace kagemusha::control::login {

using json = nlohmann::json;

namespace {

constexpr std::size_t longest_question = 1024;
constexpr unsigned dies_after_s = 30; // if whoever asked is dead

// One password for one question that is not shown. What a module has to tell, nobody would read.
int converse(int count, const pam_message** messages, pam_response** answers, void* data) {
    auto* const password = static_cast<const char**>(data);
    if (count <= 0 || count > PAM_MAX_NUM_MSG)
        return PAM_CONV_ERR;
    auto* const out =
        static_cast<pam_response*>(std::calloc(static_cast<std::size_t>(count), sizeof(pam_response)));
    if (!out)
        return PAM_BUF_ERR;
    bool is_known = true;
    for (int i = 0; i < count; ++i) {
        const int style = messages[i]->msg_style;
        if (style == PAM_PROMPT_ECHO_OFF && *password) {
            out[i].resp = ::strdup(*password);
            *password = nullptr; // another question, of a code, is none that we can answer
        } else if (style != PAM_TEXT_INFO && style != PAM_ERROR_MSG) {
            is_known = false;
        }
    }
    if (is_known) {
        *answers = out;
        return PAM_SUCCESS;
    }
    for (int i = 0; i < count; ++i)
        if (out[i].resp) {
            explicit_bzero(out[i].resp, std::strlen(out[i].resp));
            std::free(out[i].resp);
        }
    std::free(out);
    return PAM_CONV_ERR;
}

// Whoever asked waits as long for each refusal; modules need not.
void no_delay(int, unsigned, void*) {}

json refused(const char* what, pam_handle_t* at, int status) {
    return {{"refused", what}, {"why", ::pam_strerror(at, status)}};
}

json groups_of(const std::string& user) {
    const auto* const entry = ::getpwnam(user.c_str());
    json out = json::array();
    if (!entry)
        return out;
    std::array<gid_t, pam_limits::most_groups> ids;
    int count = ids.size();
    if (::getgrouplist(user.c_str(), entry->pw_gid, ids.data(), &count) < 0)
        count = ids.size(); // the rest is cut
    for (int i = 0; i < count; ++i)
        if (const auto* const group = ::getgrgid(ids[static_cast<std::size_t>(i)]))
            out.push_back(group->gr_name);
    return out;
}

json ask_modules(pam_handle_t* at, const char* address) {
    constexpr int how = PAM_SILENT | PAM_DISALLOW_NULL_AUTHTOK;
    ::pam_set_item(at, PAM_RHOST, address);
    ::pam_set_item(at, PAM_TTY, "kagemusha");
    ::pam_set_item(at, PAM_FAIL_DELAY, reinterpret_cast<const void*>(&no_delay));
    int status = ::pam_authenticate(at, how);
    const bool is_broken = status == PAM_SYSTEM_ERR || status == PAM_BUF_ERR || status == PAM_SERVICE_ERR ||
                           status == PAM_OPEN_ERR || status == PAM_SYMBOL_ERR || status == PAM_ABORT;
    if (status != PAM_SUCCESS)
        return refused(is_broken ? "system" : "password", at, status);
    status = ::pam_acct_mgmt(at, how); // expired, locked, not at this time of the day
    if (status != PAM_SUCCESS)
        return refused("account", at, status);
    const void* user = nullptr;
    if (::pam_get_item(at, PAM_USER, &user) != PAM_SUCCESS || !user)
        return refused("system", at, PAM_SYSTEM_ERR);
    const std::string name = static_cast<const char*>(user);
    return {{"user", name}, {"groups", groups_of(name)}};
}

} // namespace

void pam_main() {
    ::prctl(PR_SET_DUMPABLE, 0); // no core with a password
    ::alarm(dies_after_s);
    // What modules print is not our answer.
    const int answer = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3),
              nowhere = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    std::array<char, longest_question + 1> question{};
    std::size_t size = 0;
    for (ssize_t got = 1; got > 0 && size < longest_question;
         size += static_cast<std::size_t>(std::max<ssize_t>(got, 0)))
        got = ::read(STDIN_FILENO, question.data() + size, longest_question - size);
    std::array<const char*, 4> words{};
    std::size_t found = 0;
    for (const char* at = question.data(); found < words.size() && at < question.data() + size;
         at += std::strlen(at) + 1)
        words[found++] = at;
    if (answer < 0 || nowhere < 0 || ::dup2(nowhere, STDIN_FILENO) < 0 ||
        ::dup2(nowhere, STDOUT_FILENO) < 0 || found != words.size())
        std::_Exit(2);
    const auto [service, name, password, address] = words;
    const char* unused = password;
    const pam_conv conversation{converse, &unused};
    pam_handle_t* at = nullptr;
    int status = ::pam_start(service, name, &conversation, &at);
    const auto said = status == PAM_SUCCESS ? ask_modules(at, address) : refused("system", at, status);
    explicit_bzero(question.data(), question.size());
    write_all(answer, said.dump(-1, ' ', false, json::error_handler_t::replace));
    if (at)
        ::pam_end(at, status);
    std::_Exit(0);
}

} // namespace kagemusha::control::login
