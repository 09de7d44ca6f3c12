// SPDX-License-Identifier: GPL-2.0-or-later
//
// A guest program for the soak: registers in GPU memory that clients outside of the VM read, write and
// exchange (../soak/clients.py), in a way that makes a lost, stale or repeated result visible to them.
//
// What has come from the clients since the last look is one batch: for each operation a launch that does it
// on the GPU, and a non-blocking read of its result, all in one flush. The program answers each client as
// soon as the event of its read is complete, while later launches and reads of the batch are still under way.
// So clients are told what the GPU wrote into the guest's memory before the request that wrote it is
// answered.
//
// Each client numbers its operations and repeats one until it is answered. An operation is done once; its
// answer is kept and repeated.
#include "statements.hpp"

#include <poll.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr std::size_t max_clients = 64, max_keys = 64, max_batch = 32;

struct request {   // all numbers are little-endian
    char magic[8]; // "REGISTR1"
    std::uint64_t client, number;
    std::uint32_t key, kind; // 0 read, 1 write, 2 exchange `first` for `second`
    std::uint64_t first, second;
};
struct answer {
    char magic[8]; // "REGANSW1"
    std::uint64_t client, number;
    std::uint64_t taken, value; // whether it was done; what the register had before
};

const char* source = R"(
kernel void operate(global ulong* registers, global ulong2* results, uint slot, uint key, uint kind,
                    ulong first, ulong second)
{
    ulong before = registers[key];
    ulong taken = kind != 2 || before == first;
    if (kind == 1)
        registers[key] = first;
    else if (kind == 2 && taken)
        registers[key] = second;
    results[slot] = (ulong2)(taken, before);
}
)";

class server {
public:
    server(const char* address, std::uint16_t stream, const char* name)
        : stream_(name)
        , registers_(gpu_.buffer(max_keys * sizeof(cl_ulong)))
        , results_(gpu_.buffer(max_batch * sizeof(result))) {
        operate_ = gpu_.kernel(gpu_.build(source), "operate");
        const cl_ulong zero = 0;
        need(clEnqueueFillBuffer(gpu_.queue, registers_, &zero, sizeof zero, 0, max_keys * sizeof zero, 0,
                                 nullptr, nullptr),
             "fill");
        argument(operate_, 0, registers_);
        argument(operate_, 1, results_);

        socket_ = peer_socket(address, stream);
    }

    void run(const char* stop_file) {
        while (::access(stop_file, F_OK) != 0) {
            pollfd wait{socket_, POLLIN, 0};
            if (::poll(&wait, 1, 50) > 0)
                serve(take());
        }
        std::printf("%llu rounds are right\n", static_cast<unsigned long long>(count_));
    }

private:
    struct result {
        cl_ulong taken, value;
    };

    // New operations that are waiting. What was answered before is answered again.
    std::vector<request> take() {
        std::vector<request> batch;
        request asked{};
        while (batch.size() < max_batch && ::recv(socket_, &asked, sizeof asked, 0) == sizeof asked) {
            if (std::memcmp(asked.magic, "REGISTR1", 8) != 0 || asked.client >= max_clients ||
                asked.key >= max_keys || asked.kind > 2)
                continue;
            answer& last = answers_[asked.client];
            if (asked.number == last.number && asked.number != 0) {
                say(last);
            } else if (asked.number == last.number + 1 && !taken_[asked.client]) {
                taken_[asked.client] = true; // the same packet may come twice before it is answered
                batch.push_back(asked);
            }
        }
        return batch;
    }

    void serve(const std::vector<request>& batch) {
        std::array<cl_event, max_batch> told{};
        for (std::size_t i = 0; i < batch.size(); ++i) {
            argument(operate_, 2, static_cast<cl_uint>(i));
            argument(operate_, 3, static_cast<cl_uint>(batch[i].key));
            argument(operate_, 4, static_cast<cl_uint>(batch[i].kind));
            argument(operate_, 5, static_cast<cl_ulong>(batch[i].first));
            argument(operate_, 6, static_cast<cl_ulong>(batch[i].second));
            const std::size_t one = 1;
            need(clEnqueueNDRangeKernel(gpu_.queue, operate_, 1, nullptr, &one, nullptr, 0, nullptr, nullptr),
                 "launch");
            need(clEnqueueReadBuffer(gpu_.queue, results_, CL_FALSE, i * sizeof(result), sizeof(result),
                                     &got_[i], 0, nullptr, &told[i]),
                 "read");
        }
        need(clFlush(gpu_.queue), "flush");
        for (std::size_t i = 0; i < batch.size(); ++i) {
            need(clWaitForEvents(1, &told[i]), "wait");
            need(clReleaseEvent(told[i]), "release");
            const request& asked = batch[i];
            answer& last = answers_[asked.client];
            last = {{}, asked.client, asked.number, got_[i].taken, got_[i].value};
            std::memcpy(last.magic, "REGANSW1", sizeof last.magic);
            taken_[asked.client] = false;
            say(last);
            // For the count of operations that were done on both hosts of a takeover, in another order.
            std::printf("made %llu %04llx%04llx%08llx in stream %s\n",
                        static_cast<unsigned long long>(++count_),
                        static_cast<unsigned long long>(asked.client & 0xffff),
                        static_cast<unsigned long long>(last.value & 0xffff),
                        static_cast<unsigned long long>(asked.number & 0xffffffff), stream_);
        }
    }

    void say(const answer& what) const {
        (void)!::send(socket_, &what, sizeof what, 0); // nobody may be there, or the queue be full
    }

    gpu gpu_;
    const char* stream_;
    cl_mem registers_, results_;
    cl_kernel operate_{};
    int socket_ = -1;
    std::array<result, max_batch> got_{};
    std::array<answer, max_clients> answers_{};
    std::array<bool, max_clients> taken_{};
    std::uint64_t count_ = 0;
};

} // namespace

// register_job STREAM ADDRESS STOP_FILE
int main(int argc, char** argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    if (argc != 4)
        fail("usage: register_job STREAM ADDRESS STOP_FILE");
    server(argv[2], static_cast<std::uint16_t>(std::atoi(argv[1])), argv[1]).run(argv[3]);
    return 0;
}
