// SPDX-License-Identifier: GPL-2.0-or-later
//
// The kinds of work that streams and nodes of graphs share.
#pragma once

#include "driver.hpp"

#include <map>

namespace kagemusha::cuda {

// The grid of a launch, and what else it asks for.
struct launch_shape {
    unsigned grid[3]{}, block[3]{}, shared_bytes = 0;
    unsigned cluster[3]{1, 1, 1};
    bool cooperative = false;

    bool has_clusters() const { return cluster[0] * std::uint64_t{cluster[1]} * cluster[2] > 1; }
};

// A launch whose parameters were taken.
struct kernel_work final : work {
    kernel_work(const function& f, const launch_shape& s) : called(&f), shape(s) {}

    CUgraphNodeType kind() const override { return CU_GRAPH_NODE_TYPE_KERNEL; }
    CUresult run(stream& where) override;
    std::unique_ptr<work> copy() const override { return std::make_unique<kernel_work>(*this); }

    // What a node keeps when it is given other parameters.
    void keep_attributes(const kernel_work& before);
    // An error, if it cannot be launched as it is.
    CUresult check() const;

    const function* called;
    launch_shape shape;
    std::map<CUlaunchAttributeID, CUlaunchAttributeValue> hints; // a program gets them back
    std::vector<std::byte> block;                                // all parameters, at their offsets
    mutable std::vector<void*> pointers;                         // to them, for a program that asks
};

// cuMemcpy and its relatives, of linear memory.
struct copy_work final : work {
    copy_work(std::uint64_t t, std::uint64_t f, std::size_t n) : to(t), from(f), bytes(n) {}

    CUgraphNodeType kind() const override { return CU_GRAPH_NODE_TYPE_MEMCPY; }
    CUresult run(stream& where) override;
    std::unique_ptr<work> copy() const override { return std::make_unique<copy_work>(*this); }

    std::uint64_t to, from; // addresses of the GPU's memory or of the program's
    std::size_t bytes;
};

struct set_work final : work {
    explicit set_work(const CUDA_MEMSET_NODE_PARAMS& p) : params(p) {}

    CUgraphNodeType kind() const override { return CU_GRAPH_NODE_TYPE_MEMSET; }
    CUresult run(stream& where) override;
    std::unique_ptr<work> copy() const override { return std::make_unique<set_work>(*this); }

    CUDA_MEMSET_NODE_PARAMS params; // elements of 1, 2 or 4 bytes; rows
};

// A function of the program's. Run by a backlog.
struct host_work final : work {
    host_work(void (*f)(void*), void* d) : function(f), data(d) {}

    CUgraphNodeType kind() const override { return CU_GRAPH_NODE_TYPE_HOST; }
    bool can_run() const override { return false; }
    CUresult run(stream& where) override;
    std::unique_ptr<work> copy() const override { return std::make_unique<host_work>(*this); }

    void (*function)(void*);
    void* data;
};

struct record_work final : work {
    explicit record_work(event& e) : recorded(&e) {}

    CUgraphNodeType kind() const override { return CU_GRAPH_NODE_TYPE_EVENT_RECORD; }
    CUresult asked(stream&) override;
    CUresult run(stream& where) override;
    std::unique_ptr<work> copy() const override { return std::make_unique<record_work>(*recorded); }

    event* recorded;
    std::shared_ptr<recording> made; // of this time
};

struct wait_work final : work {
    explicit wait_work(event& e) : awaited(&e) {}

    CUgraphNodeType kind() const override { return CU_GRAPH_NODE_TYPE_WAIT_EVENT; }
    CUresult asked(stream&) override;
    bool can_run() const override { return !last || last->is_sent(); }
    CUresult run(stream& where) override;
    std::unique_ptr<work> copy() const override { return std::make_unique<wait_work>(*awaited); }

    event* awaited;
    std::shared_ptr<const recording> last; // when it was asked for
    bool other_context = false;
};

// Work of nodes that a program describes; null with the error. `whole`: the structure's second form.
std::unique_ptr<work> kernel_node(const CUDA_KERNEL_NODE_PARAMS* params, bool whole, CUresult& error);
std::unique_ptr<work> set_node(const CUDA_MEMSET_NODE_PARAMS* params, CUresult& error);
std::unique_ptr<work> copy_node(const CUDA_MEMCPY3D* params, CUresult& error);
std::unique_ptr<work> host_node(const CUDA_HOST_NODE_PARAMS* params, CUresult& error);
std::unique_ptr<work> record_node(CUevent recorded, CUresult& error);
std::unique_ptr<work> wait_node(CUevent awaited, CUresult& error);
// A node of any kind but GRAPH, whose parameters were checked; null without an error: EMPTY.
CUresult check_node(const CUgraphNodeParams* params);
std::unique_ptr<work> described_node(const CUgraphNodeParams& params, CUresult& error);
// False if it is no copy.
bool report_copy_node(const work* what, CUDA_MEMCPY3D& params);
// False if it is no launch.
bool report_kernel_node(const work* what, CUDA_KERNEL_NODE_PARAMS& params, bool whole);

} // namespace kagemusha::cuda
