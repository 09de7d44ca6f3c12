// SPDX-License-Identifier: GPL-2.0-or-later
// answering_broker: see answering_broker.hpp.
#include "worker/answering_broker.hpp"

#include <CL/cl.h>

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "gpu/backend.hpp"
#include "proto/cuda/cuda.h"
#include "worker/answering_process.hpp"
#include "worker/answering_protocol.hpp"
#include "worker/sandbox.hpp"

namespace kagemusha::worker {

namespace {

constexpr int broker_fd = 3;
// Longer than a broker waits, which then answers.
constexpr int broker_limit_ms = 60000;

template <class Message>
bool read_message(int from, Message& message, int limit_ms) {
    pollfd fd{from, POLLIN, 0};
    int ready;
    do {
        ready = poll(&fd, 1, limit_ms);
    } while (ready < 0 && errno == EINTR);
    return ready == 1 && read(from, &message, sizeof message) == static_cast<ssize_t>(sizeof message);
}

template <class Message>
bool write_message(int to, const Message& message) {
    return send(to, &message, sizeof message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof message);
}

class broker {
public:
    explicit broker(const answering_options& options) : options_(options), box_(options.mode, options.nodes) {
        box_.show_own_processes();
        box_.enter_namespaces();
    }
    ~broker() { end(); }
    broker(const broker&) = delete;
    broker& operator=(const broker&) = delete;

    answering_answer answer(const answering_request& request) {
        answering_answer result{};
        result.status = answering_status::malformed;
        if (!is_sound(request))
            return result;
        if (first_ > 0 && !fits(of_, request))
            end();
        result.status = answering_status::no_process;
        if (first_ <= 0 && !begin(request))
            return result;
        if (write_message(connection_.get(), request) &&
            read_message(connection_.get(), result, options_.answer_limit_ms) &&
            result.status <= answering_status::died)
            return result;
        end(); // it may be hung
        result = {};
        result.status = answering_status::died;
        return result;
    }

private:
    bool begin(const answering_request& request) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
            return false;
        connection_.reset(pair[0]);
        const unique_fd theirs(pair[1]);
        of_ = request;
        first_ = start_answering_process(theirs.get(), request, options_.driver, box_, options_.max_bytes);
        if (first_ < 0)
            std::fprintf(stderr, "programs of CUDA's runtime can't be answered: a PID namespace: %s\n",
                         std::strerror(errno));
        return first_ > 0;
    }
    void end() {
        connection_.reset();
        if (first_ <= 0)
            return;
        kill(first_, SIGKILL);
        while (waitpid(first_, nullptr, 0) < 0 && errno == EINTR) {
        }
        first_ = -1;
    }

    const answering_options& options_;
    sandbox box_;
    pid_t first_ = -1; // of the namespace
    unique_fd connection_;
    answering_request of_{};
};

void serve(const answering_options& options) {
    broker self(options);
    answering_request request;
    while (read_message(broker_fd, request, -1) && write_message(broker_fd, self.answer(request))) {
    }
}

[[noreturn]] void run_broker(int connection, pid_t worker, const answering_options& options) {
    prctl(PR_SET_NAME, "kagemusha-ask");
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != worker || dup2(connection, broker_fd) < 0)
        _exit(1);
    close_range(broker_fd + 1, ~0u, 0);
    serve(options);
    _exit(0);
}

class answering_client final : public gpu::validity_witness {
public:
    explicit answering_client(unique_fd connection) : connection_(std::move(connection)) {}

    std::int32_t tables(vgpu_cuda_tables& out) override {
        answering_request request{};
        request.wants = answering_wants::tables;
        answering_answer answer;
        if (const std::int32_t error = call(request, answer))
            return error;
        out = answer.tables;
        return CL_SUCCESS;
    }

    std::int32_t ask(const vgpu_cuda_question& question, std::span<const std::byte, 16> uuid,
                     vgpu_cuda_proof& out) override {
        answering_request request{};
        request.wants = answering_wants::proof;
        request.question = question;
        std::memcpy(request.uuid, uuid.data(), sizeof request.uuid);
        answering_answer answer;
        if (const std::int32_t error = call(request, answer))
            return error;
        out = answer.proof;
        return CL_SUCCESS;
    }

private:
    std::int32_t call(const answering_request& request, answering_answer& answer) {
        if (!connection_)
            return CL_INVALID_OPERATION;
        if (write(connection_.get(), &request, sizeof request) != sizeof request ||
            !read_message(connection_.get(), answer, broker_limit_ms)) {
            std::fprintf(stderr, "the process beside this worker that answers CUDA's runtime is gone\n");
            connection_.reset(); // a late answer must not be taken for another question's
            return CL_INVALID_OPERATION;
        }
        switch (answer.status) {
        case answering_status::answered:
            return CL_SUCCESS;
        case answering_status::malformed:
            return CL_INVALID_VALUE;
        case answering_status::other_addresses:
            std::fprintf(stderr, "a program of CUDA's runtime knows the driver at other addresses than this "
                                 "host has it at: both hosts need the same driver\n");
            return VGPU_CUDA_OTHER_ADDRESS;
        default:
            return CL_INVALID_OPERATION;
        }
    }

    unique_fd connection_;
};

} // namespace

unique_fd start_answering_broker(const answering_options& options, std::string& error) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        error = std::string("no connection to the answering broker: ") + std::strerror(errno);
        return {};
    }
    unique_fd ours(pair[0]);
    const unique_fd theirs(pair[1]);
    const pid_t self = getpid();
    const pid_t child = fork();
    if (child < 0) {
        error = std::string("the answering broker can't be started: ") + std::strerror(errno);
        return {};
    }
    if (child == 0) {
        ours.reset();
        run_broker(theirs.get(), self, options);
    }
    return ours;
}

std::unique_ptr<gpu::validity_witness> make_answering_client(unique_fd connection) {
    return std::make_unique<answering_client>(std::move(connection));
}

std::string driver_option(const std::string& options) {
    gpu::backend_options parsed;
    std::string error;
    gpu::parse_options(options, parsed, error); // the backend reports the error
    for (const auto& [key, value] : parsed)
        if (key == "driver" && !value.empty())
            return value;
    return answering_options{}.driver;
}

} // namespace kagemusha::worker
