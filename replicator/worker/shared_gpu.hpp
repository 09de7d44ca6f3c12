// SPDX-License-Identifier: GPL-2.0-or-later
// shared_gpu: a worker's share of a GPU that other VMs use, too: the gate that its executor asks
// (share/gate/gate.hpp), made of two descriptors before the sandbox closes. After that the worker has the
// socket, on which it can say two words, and the page.
#pragma once

#include <memory>

#include "base/unique_fd.hpp"
#include "share/gate/gate.hpp"
#include "worker/executor_factory.hpp"

namespace kagemusha::worker {

class shared_gpu final : public gpu::task_gate {
public:
    // nullptr, with a line on stderr: the page can't be mapped.
    static std::unique_ptr<shared_gpu> open(unique_fd socket, unique_fd page);

    void begin(bool may_need_guest) override { gate_.begin(may_need_guest); }
    void end() override { gate_.end(); }
    std::uint64_t waits() const { return gate_.waits(); }

private:
    shared_gpu(unique_fd socket, share_page& page);

    const unique_fd socket_;
    share::gate gate_;
};

// The same executor, which asks `share` and shows signs of life while it waits for its turn. Both live as long
// as the process.
std::unique_ptr<request_executor> gated_executor(std::unique_ptr<request_executor> executor,
                                                 shared_gpu& share);

} // namespace kagemusha::worker
