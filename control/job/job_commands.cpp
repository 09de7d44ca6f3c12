// SPDX-License-Identifier: GPL-2.0-or-later
//
// See job_commands.hpp.
#include "control/job/job_commands.hpp"

#include "control/base/process.hpp"
#include "control/base/write_all.hpp"
#include "control/daemon/client/client.hpp"
#include "control/daemon/client/words.hpp"
#include "control/job/job_reader.hpp"
#include "control/job/job_vm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <memory>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kagemusha::control::job {

namespace {

using clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr int failed = 125, no_such_job = 3;
constexpr auto confirm_within = 1s; // of the last confirmation
constexpr auto silence = 60s;       // then the connection is made anew
constexpr std::uint64_t confirm_bytes = 256 << 10;
constexpr char keeper[] = "/payload/system/kagemusha-node-job";

struct job_options {
    std::string socket, secret_file, key, status_file, gone_file;
    std::vector<std::string> words;
    bool merged = false, wait = false;
};

int complain(const std::string& why) {
    fmt::print(stderr, "kage: {}\n", why);
    return failed;
}

std::optional<std::string> secret_of(const job_options& options) {
    std::ifstream file(options.secret_file);
    std::string secret;
    if (!std::getline(file, secret)) {
        complain(fmt::format("cannot read {}: {}", options.secret_file, std::strerror(errno)));
        return std::nullopt;
    }
    return secret;
}

// One of our outputs. What goes to a file is there for good when it was synchronized, and its size says how much
// that is, whoever wrote it; of a pipe we count.
class output {
public:
    explicit output(int fd) : fd_(fd) {
        struct stat is{};
        file_ = ::fstat(fd, &is) == 0 && S_ISREG(is.st_mode);
        if (file_) // what others write into it stays
            ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_APPEND);
    }
    std::uint64_t position() const {
        const auto end = file_ ? ::lseek(fd_, 0, SEEK_END) : -1;
        return end >= 0 ? static_cast<std::uint64_t>(end) : counted_;
    }
    // Its last bytes, if it is a file that we may read.
    std::string end(std::uint64_t position) const {
        const auto length = std::min<std::uint64_t>(position, most_file_end);
        const unique_fd readable(
            file_ ? ::open(fmt::format("/proc/self/fd/{}", fd_).c_str(), O_RDONLY | O_CLOEXEC) : -1);
        std::string bytes(length, '\0');
        return readable && ::pread(readable.get(), bytes.data(), length,
                                   static_cast<off_t>(position - length)) == static_cast<ssize_t>(length)
                   ? bytes
                   : std::string();
    }
    bool write(std::string_view bytes) {
        counted_ += bytes.size();
        return write_all(fd_, bytes);
    }
    bool keep() const { return !file_ || ::fdatasync(fd_) == 0; }
    bool is_same_file(const output& other) const {
        struct stat a{}, b{};
        return ::fstat(fd_, &a) == 0 && ::fstat(other.fd_, &b) == 0 && a.st_dev == b.st_dev &&
               a.st_ino == b.st_ino;
    }

private:
    const int fd_;
    bool file_ = false;
    std::uint64_t counted_ = 0;
};

int exec(const job_options& options) {
    const auto secret = secret_of(options);
    return secret ? daemon::exec_in_node(options.socket, *secret, options.words, options.wait) : failed;
}

int begin(const job_options& options) {
    const auto secret = secret_of(options);
    if (!secret)
        return failed;
    const output out(STDOUT_FILENO), err(STDERR_FILENO);
    const bool merged = options.merged || out.is_same_file(err);
    std::vector<std::string> words{keeper, "begin", options.key, merged ? "merged" : "apart"};
    words.insert(words.end(), options.words.begin(), options.words.end());
    // What it says are complaints.
    const auto complaint = [](std::string_view text) { return write_all(STDERR_FILENO, text); };
    return daemon::exec_in_node(options.socket, *secret, words, options.wait,
                                {STDIN_FILENO, complaint, complaint});
}

// One connection to the job's keeper.
class follower {
public:
    follower(const job_options& options, output& out, output& err)
        : options_(options)
        , out_(out)
        , err_(err)
        , reader_([&](std::string_view bytes) { return out_.write(bytes); },
                  [&](std::string_view bytes) { return err_.write(bytes); }) {}
    int run(const std::string& secret);
    const job_reader& reader() const { return reader_; }

private:
    bool take(std::string_view bytes);
    void confirm();

    const job_options& options_;
    output &out_, &err_;
    job_reader reader_;
    positions confirmed_;
    clock::time_point last_ = clock::now();
    unique_fd answers_;
};

void follower::confirm() {
    last_ = clock::now();
    if (!out_.keep() || !err_.keep())
        return; // it stays unconfirmed, and is asked for again
    confirmed_ = reader_.at();
    const auto frame = lan::exec_frame('K', text_of(confirmed_));
    // A full pipe has the last ones still in it.
    [[maybe_unused]] const auto done = ::write(answers_.get(), frame.data(), frame.size());
}

bool follower::take(std::string_view bytes) {
    const bool good = reader_.feed(bytes);
    const auto unconfirmed = reader_.at().out - confirmed_.out + reader_.at().err - confirmed_.err;
    if (reader_.greeted() &&
        (unconfirmed > confirm_bytes || reader_.status() || clock::now() > last_ + confirm_within))
        confirm();
    return good;
}

// What exec_in_node() says.
int follower::run(const std::string& secret) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
        return failed;
    const unique_fd input(ends[0]);
    answers_ = unique_fd(ends[1]);
    ::fcntl(ends[1], F_SETFL, O_NONBLOCK);
    const auto at = positions{out_.position(), err_.position()};
    daemon::exec_ends with{ends[0], [this](std::string_view bytes) { return take(bytes); },
                           [](std::string_view) { return true; }};
    with.quiet = true; // our errors may be the job's file, in which each byte counts
    with.idle = [this, before = reader_.heard(), since = clock::now()]() mutable {
        if (reader_.heard() != before) {
            before = reader_.heard();
            since = clock::now();
        }
        if (reader_.greeted())
            confirm();
        return clock::now() < since + silence;
    };
    return daemon::exec_in_node(options_.socket, secret,
                                {keeper, "follow", options_.key, std::to_string(at.out),
                                 std::to_string(at.err), text_of_end(out_.end(at.out)),
                                 text_of_end(err_.end(at.err))},
                                false, with);
}

// Until the job has ended or we are interrupted; a connection that is lost is made anew, because the VM may come
// back, or run here only later.
int follow(const job_options& options) {
    const auto secret = secret_of(options);
    if (!secret)
        return failed;
    output out(STDOUT_FILENO), err(STDERR_FILENO);
    for (;;) {
        follower one(options, out, err);
        const int how = one.run(*secret);
        if (const auto& status = one.reader().status()) {
            if (!options.status_file.empty() && !(std::ofstream(options.status_file) << *status << "\n"))
                return complain(fmt::format("cannot write {}", options.status_file));
            return *status;
        }
        if (interrupted_by())
            return 128 + interrupted_by();
        if (one.reader().failed_to_write())
            return complain(fmt::format("cannot write the job's output: {}", std::strerror(errno)));
        if (how == no_such_job)
            return complain(fmt::format("there is no job {} in the VM", options.key));
        if (!options.gone_file.empty() && ::access(options.gone_file.c_str(), F_OK) == 0)
            return complain("the VM of this job was lost");
        pollfd interrupt{interrupt_fd(), POLLIN, 0};
        if (::poll(&interrupt, 1, 500) > 0)
            return 128 + interrupted_by();
    }
}

void add_vm_commands(CLI::App& all, const std::shared_ptr<std::function<int()>>& chosen) {
    const auto vm = std::make_shared<job_vm>();
    const auto inside = std::make_shared<bool>(false);
    auto* prepared =
        all.add_subcommand("prepare", "write what the description of a VM for jobs needs into a folder");
    prepared->add_option("--vm", vm->name, "the VM's name, the same on both hosts")->required();
    prepared->add_option("--guest", vm->guest, "kernel of our guest image");
    auto* network =
        all.add_subcommand("network", "be the network between this host and such a VM, until it is stopped");
    for (auto* command : {prepared, network}) {
        command->add_option("folder", vm->folder, "of this VM on this host, an absolute path")->required();
        command->add_flag("--inside", *inside, "the VM reaches nothing outside");
    }
    prepared->callback([=] {
        *chosen = [=] {
            vm->outside = !*inside;
            const auto why = prepare_job_vm(*vm);
            return why.empty() ? 0 : complain(why);
        };
    });
    network->callback([=] { *chosen = [=]() -> int { run_job_network(vm->folder, !*inside); }; });
}

} // namespace

std::function<std::function<int()>()> add_job_commands(CLI::App& app) {
    const auto o = std::make_shared<job_options>();
    const auto chosen = std::make_shared<std::function<int()>>();
    auto* all = app.add_subcommand(daemon::job_word.word, daemon::job_word.what);
    all->require_subcommand(1);
    const auto add = [&](const char* name, const char* what, int (*run)(const job_options&)) {
        auto* command = all->add_subcommand(name, what);
        command->callback([=] {
            *chosen = [=] {
                if (run != exec && !is_key(o->key))
                    return complain("a job's key has letters, digits, '.' and '-', at most 64");
                return run(*o);
            };
        });
        command->add_option("--socket", o->socket, "the agent's of the VM")->required();
        command->add_option("--secret-file", o->secret_file, "what the agent knows us by")->required();
        return command;
    };
    auto* executed = add("exec", "run a command; it ends when the connection does", exec);
    auto* begun =
        add("begin", "begin a job, once; a tar archive is on standard input: environment, work/", begin);
    auto* followed = add("follow", "its output, and its exit status", follow);
    for (auto* command : {begun, followed})
        command->add_option("--key", o->key, "the job's name in the VM")->required();
    for (auto* command : {executed, begun}) {
        command->add_option("command", o->words, "a command and its arguments, after --")->required();
        command->add_flag("--wait", o->wait, "until the VM is up");
    }
    begun->add_flag("--merged", o->merged, "errors go to the output");
    followed->add_option("--status-file", o->status_file, "gets the job's exit status");
    followed->add_option("--gone-file", o->gone_file, "if it is there, the VM will not come back");
    add_vm_commands(*all, chosen);
    return [chosen] { return *chosen; };
}

} // namespace kagemusha::control::job
