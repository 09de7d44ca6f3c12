// SPDX-License-Identifier: GPL-2.0-or-later
//
// See watched_node.hpp.
#include "kubernetes/node/watched_node.hpp"

#include "control/share/arbiter_process.hpp"
#include "kubernetes/core/cdi.hpp"
#include "kubernetes/node/files.hpp"
#include "kubernetes/node/gpu_lister.hpp"
#include "kubernetes/node/mig_lister.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kagemusha::kubernetes {

using clock = std::chrono::steady_clock;

watched_node::watched_node(node_options options, says report)
    : options_(std::move(options)), report_(std::move(report)), watcher_([this] { watch(); }) {}

watched_node::~watched_node() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    watcher_.join();
}

inventory watched_node::now() const {
    const std::lock_guard lock(mutex_);
    return current_;
}

inventory watched_node::wait_for_change(std::uint64_t version, std::chrono::milliseconds at_most) const {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, at_most, [&] { return stop_ || current_.version() != version; });
    return current_;
}

void watched_node::watch() {
    auto look_at = clock::now();
    for (;;) {
        if (clock::now() >= look_at) {
            look();
            look_at = clock::now() + options_.look_every;
        }
        ask();
        publish();
        std::unique_lock lock(mutex_);
        if (changed_.wait_for(lock, options_.ask_every, [&] { return stop_; }))
            return;
    }
}

std::optional<std::vector<found_gpu>> watched_node::list(std::string& error) {
    auto gpus = list_gpus(options_.lister, options_.look_timeout_ms, error);
    if (options_.mig_lister.empty())
        return gpus;
    std::string mig_error;
    if (auto cut = list_mig(options_.mig_lister, options_.look_timeout_ms, mig_error)) {
        cut_ = std::move(*cut);
        mig_failures_ = 0;
    } else if (++mig_failures_ >= failures_until_gone) {
        for (auto& gpu : cut_)
            gpu.instances.clear(); // what they are a part of is no GPU all the same
    }
    const auto all = with_instances(gpus.value_or(std::vector<found_gpu>{}), cut_);
    // Where all GPUs are cut no other program may find one.
    const bool all_cut = !gpus && !all.empty() && std::ranges::all_of(next_.gpus(), [](const known_gpu& one) {
        return !one.gpu.profile.empty();
    });
    if (!gpus && !all_cut)
        return std::nullopt;
    error = mig_error;
    return all;
}

void watched_node::look() {
    std::string error;
    next_.looked(list(error));
    if (error.empty() && next_.left_out() != 0)
        error =
            fmt::format("{} of this node's GPUs and MIG instances can't be allocated: it offers {} at most",
                        next_.left_out(), max_gpus);
    if (!error.empty() && error != said_)
        report_(error);
    said_ = error;
}

void watched_node::ask() {
    for (const auto& known : std::vector<known_gpu>(next_.gpus())) {
        const auto socket = options_.paths.share_directory + "/" + known.gpu.id;
        bool answers = control::share_arbiter_answers(socket);
        if (!answers && known.arbiter) {
            // The kubelet hears of it before it runs again: programs that run now are not scheduled any more.
            report_(fmt::format("the share arbiter of {} ({}) has ended", known.gpu.id, known.gpu.name));
        } else if (!answers) {
            if (const auto error = control::start_share_arbiter(socket, true); !error.empty())
                report_(error);
            answers = control::share_arbiter_answers(socket);
        }
        next_.asked(known.gpu.id, answers);
    }
}

void watched_node::publish() {
    if (!options_.cdi_file.empty()) {
        const auto specification = gpu_specification(next_.gpus(), options_.paths);
        const auto text = specification.is_null() ? std::string() : specification.dump(2) + "\n";
        if (text.empty())
            remove_file(options_.cdi_file);
        else if (text != written_ || !file_is_there(options_.cdi_file))
            if (const auto error = write_atomically(options_.cdi_file, text); !error.empty())
                return report_(error); // again in a moment; until then nothing new is advertised
        written_ = text;
    }
    {
        const std::lock_guard lock(mutex_);
        if (current_.version() == next_.version())
            return;
        for (const auto& known : next_.gpus()) {
            const auto* const before = current_.find(known.gpu.id);
            if (before && before->healthy() == known.healthy())
                continue;
            report_(known.healthy() ? fmt::format("{} ({}) can be allocated", known.gpu.id, known.gpu.name)
                                    : known.trouble());
        }
        current_ = next_;
    }
    changed_.notify_all();
}

} // namespace kagemusha::kubernetes
