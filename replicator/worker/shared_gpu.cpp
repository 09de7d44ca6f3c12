// SPDX-License-Identifier: GPL-2.0-or-later
// shared_gpu: see shared_gpu.hpp.
#include "worker/shared_gpu.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

namespace kagemusha::worker {

namespace {

class gated final : public request_executor {
public:
    gated(std::unique_ptr<request_executor> executor, shared_gpu& share)
        : executor_(std::move(executor)), share_(share) {
        executor_->set_gate(share_);
    }
    void execute(const request_view& request) override { executor_->execute(request); }
    // Who waits for others' kernels does not hang.
    std::uint64_t progress() const override { return executor_->progress() + share_.waits(); }

private:
    const std::unique_ptr<request_executor> executor_;
    shared_gpu& share_;
};

} // namespace

shared_gpu::shared_gpu(unique_fd socket, share_page& page)
    : socket_(std::move(socket)), gate_(page, socket_.get(), [](const std::string& line) {
        std::fprintf(stderr, "%s\n", line.c_str());
    }) {}

std::unique_ptr<shared_gpu> shared_gpu::open(unique_fd socket, unique_fd page) {
    void* at = mmap(nullptr, sizeof(share_page), PROT_READ | PROT_WRITE, MAP_SHARED, page.get(), 0);
    if (at == MAP_FAILED) {
        std::fprintf(stderr, "the page of the share arbiter can't be mapped: %s\n", std::strerror(errno));
        return nullptr;
    }
    return std::unique_ptr<shared_gpu>(new shared_gpu(std::move(socket), *static_cast<share_page*>(at)));
}

std::unique_ptr<request_executor> gated_executor(std::unique_ptr<request_executor> executor,
                                                 shared_gpu& share) {
    return std::make_unique<gated>(std::move(executor), share);
}

} // namespace kagemusha::worker
