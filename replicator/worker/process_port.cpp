// SPDX-License-Identifier: GPL-2.0-or-later
// process_port: see process_port.hpp.
//
// Threads: everything in here runs on the thread that owns the port.
#include "worker/process_port.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "base/unique_fd.hpp"
#include "worker/doorbell.hpp"
#include "worker/log_lines.hpp"
#include "worker/reaper.hpp"
#include "worker/ring.hpp"
#include "worker/setup.hpp"
#include "worker/share_join.hpp"
#include "worker/spawn.hpp"
#include "worker/wire.hpp"

namespace kagemusha::worker {

namespace {

std::string system_error(const char* what) {
    return std::string(what) + ": " + std::strerror(errno);
}

// glibc has a function for it only since 2.36, and there without extern "C".
void kill_process(int pidfd) {
    syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0);
}

std::uint64_t now_ms() {
    using namespace std::chrono;
    return static_cast<std::uint64_t>(
        duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count());
}

// The memory of both rings. Sealed, so that a worker can't shrink the file and make this process fault.
class shared_channel {
public:
    shared_channel() = default;
    shared_channel(const shared_channel&) = delete;
    shared_channel& operator=(const shared_channel&) = delete;
    ~shared_channel() {
        if (memory_ != nullptr)
            munmap(memory_, sizeof *memory_);
    }

    std::string create() {
        fd_.reset(memfd_create("kagemusha-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING));
        if (!fd_ || ftruncate(fd_.get(), sizeof(channel_memory)) != 0 ||
            fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
            return system_error("no memory for a worker's rings");
        void* at = mmap(nullptr, sizeof(channel_memory), PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
        if (at == MAP_FAILED)
            return system_error("a worker's rings can't be mapped");
        memory_ = static_cast<channel_memory*>(at); // zero pages are a valid start: all indices 0
        return "";
    }

    int fd() const { return fd_.get(); }
    void close_fd() { fd_.reset(); }
    channel_memory* operator->() const { return memory_; }

private:
    unique_fd fd_;
    channel_memory* memory_ = nullptr;
};

class process_port final : public port {
public:
    explicit process_port(const worker_options& options)
        : log_(options.log), lines_([this](const std::string& line) {
            // Once the guest's code runs, these are mostly remarks of its compiler.
            tell(ready_ ? KAGEMUSHA_LOG_INFO : KAGEMUSHA_LOG_WARNING,
                 "worker " + std::to_string(process_.pid) + ": " + line);
        }) {}

    ~process_port() override {
        kill();
        if (!gone())
            reap_later(std::move(process_.pidfd));
    }

    // A VM whose arbiter is gone runs all the same.
    joined_share join(const std::string& text) const {
        std::string socket;
        share_hello hello;
        joined_share joined;
        if (!parse_share_text(text, socket, hello))
            joined.refusal = "what $" + std::string(share_variable) + " says can't be read";
        else
            joined = join_share(socket, hello);
        if (!joined.refusal.empty())
            tell(KAGEMUSHA_LOG_WARNING,
                 escaped(joined.refusal, max_sentence_bytes) + "; this program's commands are not scheduled");
        return joined;
    }

    // Empty, or why the worker could not be started.
    std::string start(const worker_options& options, bool probe);

    // Waits until the GPU is open (its name) or the worker said or showed that it will not be.
    std::string wait_ready(std::uint32_t timeout_ms, std::string& error);

    const std::string& own_selector() const { return own_selector_; }

    submit_result submit(const request_view& request) override;
    void kick() override;
    int event_fd() const override { return epoll_.get(); }
    void drain(port_sink& sink) override;
    void kill() override;
    bool gone() override;
    std::uint64_t progress() const override {
        return records_ + (dead_ ? 0 : channel_->progress.load(std::memory_order_relaxed));
    }

private:
    enum class drained { empty, more, stopped };

    void tell(kagemusha_log_level level, const std::string& line) const {
        if (log_)
            log_(level, line);
    }
    bool watch(int fd) const {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.fd = fd;
        return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
    }
    drained drain_ring(port_sink* sink, unsigned limit);
    drained handle(port_sink* sink, record_type type, std::span<const std::byte> record);
    void read_lines();
    // Kills, tells the sink.
    void lose(port_sink* sink, vgpu_lost_reason reason, std::uint32_t detail);
    bool reap();

    const std::function<void(kagemusha_log_level, const std::string&)> log_;
    log_lines lines_;
    shared_channel channel_;
    std::optional<ring_writer> submission_;
    std::optional<ring_reader> completion_;
    doorbell submission_bell_,
        completion_bell_; // the worker has submission_bell_.listen and completion_bell_.ring
    unique_fd again_;     // this port's own, never the worker's: there is more to drain
    unique_fd error_output_, setup_, epoll_;
    spawned_process process_;
    siginfo_t end_{}; // how the process ended, once reaped
    std::string gpu_name_, own_selector_, refusal_;
    std::uint64_t records_ = 0;
    bool ready_ = false, written_ = false, broken_ = false, dead_ = false;
};

std::string process_port::start(const worker_options& options, bool probe) {
    std::string error;
    const std::string path = find_worker(options.worker_path, error);
    if (path.empty())
        return error;

    setup_message message{};
    message.version = setup_version;
    message.sandbox = static_cast<std::uint32_t>(options.sandbox);
    message.probe = probe;
    message.max_worker_bytes = options.max_worker_bytes;
    const auto put = [](auto& field, const std::string& text) {
        if (text.size() >= sizeof field)
            return false;
        std::memcpy(field, text.data(), text.size());
        return true;
    };
    if (!put(message.backend, options.backend) || !put(message.gpu, options.gpu) ||
        !put(message.options, options.options))
        return "the backend's name, the GPU or the backend's options are too long";
    if (options.regions.size() > max_regions)
        return "too many memory regions for one worker: at most " + std::to_string(max_regions);

    if (error = channel_.create(); !error.empty())
        return error;
    submission_.emplace(channel_->submission_ring());
    completion_.emplace(channel_->completion_ring(), max_answer_bytes);
    completion_->prepare_sleep();
    again_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    int pair[2] = {-1, -1}, pipe_ends[2] = {-1, -1};
    if (!again_ || !submission_bell_.create() || !completion_bell_.create() ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return system_error("no descriptors for a worker");
    setup_.reset(pair[0]);
    const unique_fd worker_setup(pair[1]);
    if (pipe2(pipe_ends, O_CLOEXEC) != 0)
        return system_error("no pipe for a worker's messages");
    error_output_.reset(pipe_ends[0]);
    unique_fd worker_error(pipe_ends[1]);
    fcntl(error_output_.get(), F_SETFL, O_NONBLOCK);

    std::vector<int> descriptors = {channel_.fd(), submission_bell_.listen.get(),
                                    completion_bell_.ring.get()};
    joined_share share;
    if (!probe && !options.share.empty()) {
        share = join(options.share);
        message.share = share.page ? 1 : 0;
        if (share.page)
            descriptors.insert(descriptors.end(), {share.socket.get(), share.page.get()});
    }
    message.region_count = static_cast<std::uint32_t>(options.regions.size());
    for (std::size_t i = 0; i < options.regions.size(); ++i) {
        const shared_region& region = options.regions[i];
        if (region.fd < 0 || region.bytes == 0)
            continue;
        message.regions[i] = {region.file_offset, region.bytes, 1, 0};
        descriptors.push_back(region.fd);
    }

    sweep_reaped();
    process_ = spawn_worker(path, options.name, worker_setup.get(), worker_error.get(), error);
    if (!process_.pidfd)
        return error;
    epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
    if (!epoll_ || !watch(process_.pidfd.get()) || !watch(completion_bell_.listen.get()) ||
        !watch(again_.get()) || !watch(error_output_.get()))
        return system_error("a worker can't be watched");
    error = send_setup(setup_.get(), message, descriptors);
    channel_.close_fd();
    return error;
}

submit_result process_port::submit(const request_view& request) {
    if (dead_ || broken_)
        return submit_result::dead;
    const encoded_request encoded(request);
    switch (submission_->write(record_type::request, encoded.parts())) {
    case ring_status::ok:
        written_ = true;
        return submit_result::accepted;
    case ring_status::nothing:
        return submit_result::full;
    case ring_status::broken:
        break;
    }
    // Its end makes event_fd() readable, so that the next drain() tells.
    broken_ = true;
    kill_process(process_.pidfd.get());
    return submit_result::dead;
}

void process_port::kick() {
    if (!std::exchange(written_, false) || dead_ || !submission_->reader_needs_wake())
        return;
    ring_doorbell(submission_bell_.ring.get());
}

void process_port::drain(port_sink& sink) {
    if (dead_)
        return;
    epoll_event events[4];
    const int count = epoll_wait(epoll_.get(), events, 4, 0);
    bool ended = false, lines = false;
    for (int i = 0; i < count; ++i) {
        ended |= events[i].data.fd == process_.pidfd.get();
        lines |= events[i].data.fd == error_output_.get();
        if (events[i].data.fd == completion_bell_.listen.get())
            quiet_doorbell(completion_bell_.listen.get());
        if (events[i].data.fd == again_.get()) {
            std::uint64_t ignored;
            [[maybe_unused]] const auto got = read(again_.get(), &ignored, sizeof ignored);
        }
    }
    if (lines)
        read_lines(); // before the ring: what came before "ready" is worth a warning
    if (broken_)
        return lose(&sink, VGPU_LOST_PROTOCOL, 0);

    // What a dead worker finished before its end is valid, and its ring can't grow any more.
    const drained result = drain_ring(&sink, ended ? UINT32_MAX : max_records_per_drain);
    if (result == drained::stopped)
        return;
    if (ended && reap()) {
        const bool by_signal = end_.si_code == CLD_KILLED || end_.si_code == CLD_DUMPED;
        tell(KAGEMUSHA_LOG_WARNING, "worker " + std::to_string(process_.pid) +
                                        (by_signal ? " was ended by signal " : " ended with status ") +
                                        std::to_string(end_.si_status));
        return lose(&sink, ready_ ? VGPU_LOST_CRASHED : VGPU_LOST_START,
                    static_cast<std::uint32_t>(end_.si_status));
    }
    if (result == drained::more) {
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto sent = write(again_.get(), &one, sizeof one);
    }
}

process_port::drained process_port::drain_ring(port_sink* sink, unsigned limit) {
    for (unsigned i = 0; i < limit; ++i) {
        record_type type;
        std::span<const std::byte> record;
        switch (completion_->read(type, record)) {
        case ring_status::ok:
            ++records_;
            if (handle(sink, type, record) == drained::stopped)
                return drained::stopped;
            break;
        case ring_status::nothing:
            if (completion_->prepare_sleep())
                return drained::empty;
            break;
        case ring_status::broken:
            tell(KAGEMUSHA_LOG_ERROR, "worker " + std::to_string(process_.pid) + " broke its ring");
            lose(sink, VGPU_LOST_PROTOCOL, 0);
            return drained::stopped;
        }
    }
    return drained::more;
}

process_port::drained process_port::handle(port_sink* sink, record_type type,
                                           std::span<const std::byte> record) {
    bool valid = false;
    switch (type) {
    case record_type::done:
        if (const auto done = decode_done(record); done && sink != nullptr) {
            valid = true;
            sink->on_done(done->token, done->response);
        }
        break;
    case record_type::written:
        if (const auto written = decode_written(record); written && sink != nullptr) {
            valid = true;
            sink->on_written(written->token, written->payload);
        }
        break;
    case record_type::guest:
        if (valid_guest_record(record) && sink != nullptr) {
            valid = true;
            sink->on_record(record);
        }
        break;
    case record_type::opened:
        // Of a probe, which nothing of a guest runs in.
        if (const auto selector = decode_sentence(record); selector && sink == nullptr && !ready_) {
            valid = true;
            own_selector_ = *selector;
        }
        break;
    case record_type::ready:
        if (const auto name = decode_sentence(record); name && !ready_) {
            valid = true;
            ready_ = true;
            gpu_name_ = escaped(*name, max_sentence_bytes);
            tell(KAGEMUSHA_LOG_DEBUG, "worker " + std::to_string(process_.pid) + " computes on " + gpu_name_);
        }
        break;
    case record_type::refused:
        if (const auto sentence = decode_sentence(record); sentence && !ready_) {
            refusal_ = escaped(*sentence, max_sentence_bytes);
            tell(KAGEMUSHA_LOG_ERROR, refusal_);
            lose(sink, VGPU_LOST_START, 0);
            return drained::stopped;
        }
        break;
    case record_type::gpu_lost:
        if (const auto lost = decode_gpu_lost(record)) {
            lose(sink, VGPU_LOST_GPU, lost->detail);
            return drained::stopped;
        }
        break;
    case record_type::request:
        break;
    }
    if (!valid) {
        tell(KAGEMUSHA_LOG_ERROR, "worker " + std::to_string(process_.pid) + " sent a malformed record");
        lose(sink, VGPU_LOST_PROTOCOL, 0);
    }
    return dead_ ? drained::stopped : drained::empty;
}

void process_port::read_lines() {
    char buffer[4096];
    // Bounded, so that a worker that only writes messages can't keep this thread.
    for (int round = 0; round < 16; ++round) {
        const ssize_t got = read(error_output_.get(), buffer, sizeof buffer);
        if (got > 0) {
            lines_.add({buffer, static_cast<std::size_t>(got)}, now_ms());
        } else {
            // The worker closed it, which is its right: without this the descriptor would stay readable for
            // ever.
            if (got == 0)
                epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, error_output_.get(), nullptr);
            break;
        }
    }
}

void process_port::lose(port_sink* sink, vgpu_lost_reason reason, std::uint32_t detail) {
    kill();
    if (sink != nullptr)
        sink->on_lost(reason, detail);
}

void process_port::kill() {
    if (dead_)
        return;
    dead_ = true;
    if (process_.pidfd)
        kill_process(process_.pidfd.get());
    // Only its end makes event_fd() readable from here on.
    for (const int fd : {completion_bell_.listen.get(), again_.get(), error_output_.get()})
        if (fd >= 0 && epoll_)
            epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

bool process_port::gone() {
    if (!process_.pidfd)
        return true;
    if (!dead_ || !reap())
        return false;
    read_lines();
    lines_.finish();
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, process_.pidfd.get(), nullptr);
    process_.pidfd.reset();
    return true;
}

bool process_port::reap() {
    return end_.si_pid != 0 || reap_process(process_.pidfd.get(), end_);
}

std::string process_port::wait_ready(std::uint32_t timeout_ms, std::string& error) {
    const std::uint64_t deadline = now_ms() + timeout_ms;
    while (!dead_) {
        const std::uint64_t now = now_ms();
        if (now >= deadline) {
            kill();
            error = "the worker did not open its GPU within " + std::to_string(timeout_ms) + " ms";
            return "";
        }
        pollfd event{epoll_.get(), POLLIN, 0};
        poll(&event, 1, static_cast<int>(std::min<std::uint64_t>(deadline - now, 60000)));
        epoll_event events[4];
        const int count = epoll_wait(epoll_.get(), events, 4, 0);
        bool ended = false;
        for (int i = 0; i < count; ++i)
            ended |= events[i].data.fd == process_.pidfd.get();
        quiet_doorbell(completion_bell_.listen.get());
        read_lines();
        drain_ring(nullptr, max_records_per_drain);
        if (ready_) {
            kill();
            return gpu_name_;
        }
        if (ended && !dead_ && reap()) {
            const bool exited = end_.si_code == CLD_EXITED;
            kill();
            error = std::string("the worker ended before its GPU was open: ") +
                    (exited ? "status " : "signal ") + std::to_string(end_.si_status);
            return "";
        }
    }
    error = refusal_.empty() ? "the worker broke its protocol" : refusal_;
    return "";
}

} // namespace

std::unique_ptr<port> start_worker(const worker_options& options, std::string& error) {
    auto made = std::make_unique<process_port>(options);
    error = made->start(options, false);
    if (!error.empty())
        return nullptr;
    return made;
}

probed_gpu probe_gpu(const worker_options& options, std::uint32_t timeout_ms, std::string& error) {
    process_port probe(options);
    error = probe.start(options, true);
    if (!error.empty())
        return {};
    std::string name = probe.wait_ready(timeout_ms, error);
    return {std::move(name), probe.own_selector()};
}

} // namespace kagemusha::worker
