// SPDX-License-Identifier: GPL-2.0-or-later
//
// The node's inventory, kept up to date by a thread of its own: it lists the GPUs, asks their share arbiters,
// starts those that do not answer, and keeps the CDI specification as the inventory is. Whoever serves the
// kubelet waits here for changes.
#pragma once

#include "kubernetes/core/inventory.hpp"
#include "kubernetes/node/mig_lister.hpp"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace kagemusha::kubernetes {

struct node_options {
    std::string lister;     // kagemusha-gpus
    std::string mig_lister; // kagemusha; "": MIG instances are not looked for
    std::string cdi_file;   // "": none is written
    node_paths paths;
    std::chrono::milliseconds look_every{10'000};
    std::chrono::milliseconds ask_every{1'000};
    int look_timeout_ms = 60'000;
};

class watched_node {
public:
    using says = std::function<void(const std::string&)>; // any thread

    watched_node(node_options options, says report);
    ~watched_node();

    inventory now() const;
    // Until the version is another one than this, or for so long, or until the end. The inventory then.
    inventory wait_for_change(std::uint64_t version, std::chrono::milliseconds at_most) const;
    const node_paths& paths() const { return options_.paths; }

private:
    void watch();
    void look();
    std::optional<std::vector<found_gpu>> list(std::string& error);
    void ask();
    void publish(); // with the CDI specification first: an id that is advertised can be injected

    const node_options options_;
    const says report_;
    inventory next_;                 // of the thread
    std::vector<cut_gpu> cut_;       // as they were told last; of the thread
    std::uint32_t mig_failures_ = 0; // in a row
    std::string said_, written_;
    mutable std::mutex mutex_;
    mutable std::condition_variable changed_;
    inventory current_;
    bool stop_ = false;
    std::thread watcher_;
};

} // namespace kagemusha::kubernetes
