// SPDX-License-Identifier: GPL-2.0-or-later
// faulty_backend: another backend with faults on command. Objects are the inner backend's own except contexts
// and queues; faults that concern time are user events that the command has to wait for, so that ordering,
// dependents and completions go the way they go on a real GPU.
#include <CL/cl.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "gpu/backend_module.hpp"
#include "gpu/faulty/fault_script.hpp"

namespace kagemusha::gpu {

namespace {

using steady = std::chrono::steady_clock;

// Sets user events when their time has come. What is left when it ends is set to an error at once.
class release_timer {
public:
    release_timer() : state_(std::make_shared<state>()) {
        thread_ = std::thread([s = state_] { s->run(); });
    }
    ~release_timer() {
        {
            const std::lock_guard lock(state_->mutex);
            state_->stop = true;
        }
        state_->wake.notify_all();
        // The last reference to the device may go on this very thread, in the completion of a delayed
        // command.
        if (thread_.get_id() == std::this_thread::get_id())
            thread_.detach();
        else
            thread_.join();
    }
    release_timer(const release_timer&) = delete;
    release_timer& operator=(const release_timer&) = delete;

    void add(std::unique_ptr<host_event> event, std::int64_t delay_ms) {
        {
            const std::lock_guard lock(state_->mutex);
            state_->entries.push_back(
                {steady::now() + std::chrono::milliseconds(delay_ms), std::move(event)});
        }
        state_->wake.notify_all();
    }

private:
    struct entry {
        steady::time_point when;
        std::unique_ptr<host_event> event;
    };
    struct state {
        std::mutex mutex;
        std::condition_variable wake;
        std::vector<entry> entries;
        bool stop = false;

        void run() {
            std::unique_lock lock(mutex);
            for (;;) {
                const auto next =
                    std::min_element(entries.begin(), entries.end(),
                                     [](const entry& a, const entry& b) { return a.when < b.when; });
                if (next == entries.end()) {
                    if (stop)
                        return;
                    wake.wait(lock);
                } else if (stop || next->when <= steady::now()) {
                    const bool due = !stop;
                    const entry ripe = std::move(*next);
                    entries.erase(next);
                    lock.unlock();
                    ripe.event->set_status(due ? CL_COMPLETE : CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
                    lock.lock();
                } else {
                    wake.wait_until(lock, steady::time_point(next->when));
                }
            }
        }
    };
    std::shared_ptr<state> state_;
    std::thread thread_;
};

struct faulty_context final : host_context {
    std::shared_ptr<host_context> inner; // shared with its queues
};

struct faulty_queue final : host_queue {
    std::unique_ptr<host_queue> inner;
    std::shared_ptr<host_context> context;
    std::vector<std::unique_ptr<host_event>> hung; // commands that never begin wait for these

    ~faulty_queue() override {
        for (auto& event : hung)
            event->set_status(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    }
};

host_context& inner_of(host_context& context) {
    return *static_cast<faulty_context&>(context).inner;
}
host_queue& inner_of(host_queue& queue) {
    return *static_cast<faulty_queue&>(queue).inner;
}
auto& inner_of(auto& other) {
    return other;
}

// What kind of operation a command is, by what its row says that it does to memory.
template <class Row>
consteval fault_point point_of_row() {
    using namespace codec::commands;
    bool in = is_packed<Row>, out = false, reads = false, writes = false, launches = false;
    const auto look = [&]<class Part>(const Part& part) {
        if constexpr (requires { part.way; }) {
            in = in || part.way == direction::in;
            out = out || part.way == direction::out;
        } else if constexpr (requires { part.how; }) {
            reads = reads || part.how == access::read;
            writes = writes || part.how == access::write;
        } else {
            launches = launches || is_arguments<Part>;
        }
    };
    std::apply([&](const auto&... part) { (look(part), ...); }, Row::parts);
    if (in || out)
        return in ? fault_point::write : fault_point::read;
    if (launches)
        return fault_point::launch;
    if (moves_memory<Row> || (reads && writes))
        return fault_point::copy;
    return writes ? fault_point::fill : fault_point::sync;
}

fault_point point_of(const command& what) {
    fault_point point{};
    std::visit(
        [&](const auto& r) {
            codec::commands::with_row(r.op, [&]<class Row>() { point = point_of_row<Row>(); });
        },
        what);
    return point;
}

[[noreturn]] void never_return() {
    for (;;)
        pause();
}

class faulty_device final : public backend_device {
public:
    faulty_device(std::shared_ptr<backend_device> inner, fault_script script, gpu_description description)
        : inner_(std::move(inner)), script_(std::move(script)), description_(std::move(description)) {}

    const gpu_description& description() const override { return description_; }
    bool means_lost(std::int32_t status) const override { return inner_->means_lost(status); }

    std::int32_t info(const info_query& query, std::vector<std::byte>& result) override {
        info_query q = query;
        q.context = query.context ? &inner_of(*query.context) : nullptr;
        const std::int32_t error = call(fault_point::info);
        return error ? error : inner_->info(q, result);
    }
    std::int32_t answer(const query& what, std::vector<std::byte>& result) override {
        const std::int32_t error = call(fault_point::info);
        if (error)
            return error;
        return std::visit(
            [&]<class Op>(const resolved<Op>& r) {
                return std::apply(
                    [&](auto&... part) {
                        return inner_->answer(resolved<Op>{r.op, {inner_of(part)...}}, result);
                    },
                    r.parts);
            },
            what);
    }
    std::int32_t create(const creation& what) override {
        const std::int32_t error = call(fault_point::create);
        return error ? error : std::visit([this](const auto& r) { return create_in_inner(r); }, what);
    }
    std::int32_t create_user_event(host_context& context, std::unique_ptr<host_event>& out) override {
        const std::int32_t error = call(fault_point::create);
        return error ? error : inner_->create_user_event(inner_of(context), out);
    }
    std::int32_t create_program(host_context& context, vgpu_program_kind kind,
                                std::span<const std::byte> content,
                                std::unique_ptr<host_program>& out) override {
        const std::int32_t error = call(fault_point::create);
        return error ? error : inner_->create_program(inner_of(context), kind, content, out);
    }
    std::int32_t set_spec_constant(host_program& program, std::uint32_t constant,
                                   std::span<const std::byte> value) override {
        const std::int32_t error = call(fault_point::build);
        return error ? error : inner_->set_spec_constant(program, constant, value);
    }
    std::string built_files_directory() const override { return inner_->built_files_directory(); }
    std::uint64_t program_variable_bytes(host_program& program) override { // no call that a fault counts
        return inner_->program_variable_bytes(program);
    }
    std::int32_t build_program(host_program& program, const std::string& options) override {
        const std::int32_t error = call(fault_point::build);
        return error ? error : inner_->build_program(program, options);
    }
    std::int32_t compile_program(host_program& program, const std::string& options,
                                 std::span<host_program* const> headers,
                                 std::span<const char* const> names) override {
        const std::int32_t error = call(fault_point::build);
        return error ? error : inner_->compile_program(program, options, headers, names);
    }
    std::int32_t link_program(host_context& context, const std::string& options,
                              std::span<host_program* const> inputs,
                              std::unique_ptr<host_program>& out) override {
        const std::int32_t error = call(fault_point::build);
        return error ? error : inner_->link_program(inner_of(context), options, inputs, out);
    }
    std::int32_t flush(host_queue& queue) override {
        return lost_ ? CL_DEVICE_NOT_AVAILABLE : inner_->flush(*static_cast<faulty_queue&>(queue).inner);
    }

    std::int32_t enqueue(host_queue& host, const command& what, std::span<host_event* const> waits,
                         bool wants_event, enqueued& out) override {
        auto& queue = static_cast<faulty_queue&>(host);
        const std::optional<fault> f = script_.next(point_of(what));
        if (const std::int32_t error = immediate(f))
            return error;
        if (!f)
            return inner_->enqueue(*queue.inner, what, waits, wants_event, out);

        std::unique_ptr<host_event> gate;
        if (const std::int32_t error = inner_->create_user_event(*queue.context, gate))
            return error;
        if (f->action == fault_action::fail) {
            out.event = std::move(gate);
            return out.event->set_status(static_cast<std::int32_t>(f->number));
        }
        std::vector<host_event*> all(waits.begin(), waits.end());
        enqueued before;
        if (std::holds_alternative<resolved<codec::op_sync>>(what) && waits.empty()) {
            // With a wait of ours it would not wait for everything before it any more.
            const vgpu_cmd_sync marker{{VGPU_CMD_MARKER, 0, sizeof(marker)}, {}};
            const codec::op_sync op{&marker, {}};
            if (const std::int32_t error =
                    inner_->enqueue(*queue.inner, resolved<codec::op_sync>{op, {}}, {}, true, before))
                return error;
            all.push_back(before.event.get());
        }
        all.push_back(gate.get());
        const std::int32_t error = inner_->enqueue(*queue.inner, what, all, true, out);
        if (error)
            gate->set_status(CL_COMPLETE);
        else if (f->action == fault_action::delay)
            timer_.add(std::move(gate), f->number);
        else
            queue.hung.push_back(std::move(gate));
        return error;
    }
    // The executor's own, not the guest's, so no rule counts it.
    std::int32_t mark(host_queue& queue, std::unique_ptr<host_event>& out) override {
        return lost_ ? CL_DEVICE_NOT_AVAILABLE : inner_->mark(*static_cast<faulty_queue&>(queue).inner, out);
    }

private:
    // Contexts and queues are ours around the inner backend's, all else is its own.
    std::int32_t create_in_inner(const resolved<codec::op_create_context>& r) {
        const auto& [place] = r.parts;
        std::unique_ptr<host_context> inner;
        if (const std::int32_t error = inner_->create(resolved<codec::op_create_context>{r.op, {inner}}))
            return error;
        auto context = std::make_unique<faulty_context>();
        context->inner = std::move(inner);
        place = std::move(context);
        return CL_SUCCESS;
    }
    std::int32_t create_in_inner(const resolved<codec::op_create_queue>& r) {
        const auto& [place, context] = r.parts;
        auto queue = std::make_unique<faulty_queue>();
        queue->context = static_cast<faulty_context&>(context).inner;
        if (const std::int32_t error =
                inner_->create(resolved<codec::op_create_queue>{r.op, {queue->inner, *queue->context}}))
            return error;
        place = std::move(queue);
        return CL_SUCCESS;
    }
    template <class Op>
    std::int32_t create_in_inner(const resolved<Op>& r) {
        return std::apply(
            [&](auto&... part) { return inner_->create(resolved<Op>{r.op, {inner_of(part)...}}); }, r.parts);
    }

    // Faults that need no command. Calls treat the others as what they can be: a call that hangs does not
    // return.
    std::int32_t immediate(const std::optional<fault>& f) {
        if (f && f->action == fault_action::lost)
            lost_ = true;
        if (lost_)
            return CL_DEVICE_NOT_AVAILABLE;
        if (!f)
            return CL_SUCCESS;
        switch (f->action) {
        case fault_action::error:
            return static_cast<std::int32_t>(f->number);
        case fault_action::stall:
            never_return();
        case fault_action::crash:
            std::signal(static_cast<int>(f->number), SIG_DFL);
            std::raise(static_cast<int>(f->number));
            std::abort(); // a signal that ends nothing
        case fault_action::exit:
            _exit(static_cast<int>(f->number));
        default:
            return CL_SUCCESS;
        }
    }
    std::int32_t call(fault_point point) {
        const std::optional<fault> f = script_.next(point);
        if (const std::int32_t error = immediate(f))
            return error;
        if (!f)
            return CL_SUCCESS;
        if (f->action == fault_action::fail)
            return static_cast<std::int32_t>(f->number);
        if (f->action == fault_action::hang)
            never_return();
        std::this_thread::sleep_for(std::chrono::milliseconds(f->number));
        return CL_SUCCESS;
    }

    const std::shared_ptr<backend_device> inner_;
    fault_script script_;
    const gpu_description description_;
    bool lost_ = false;
    release_timer timer_;
};

// Options of this backend: the script, "backend" and "gpu"; the rest belongs to the inner backend.
struct faulty_options {
    fault_script script;
    std::string backend = "null";
    std::string gpu;
    std::string inner;
};

bool read_options(backend_options options, faulty_options& out, std::string& error) {
    if (!out.script.parse(options, error))
        return false;
    for (const auto& [key, value] : options)
        if (key == "backend")
            out.backend = value;
        else if (key == "gpu")
            out.gpu = value;
        else
            out.inner += (out.inner.empty() ? "" : ",") + key + "=" + value;
    if (out.backend != "faulty")
        return true;
    error = "the faulty backend does not wrap itself: use backend=null or backend=opencl";
    return false;
}

class faulty_backend final : public backend_module {
public:
    std::string_view name() const override { return "faulty"; }

    std::vector<gpu_description> list(const backend_options& options, std::string& error) const override {
        faulty_options o;
        if (!read_options(options, o, error))
            return {};
        gpu_list inner = list_gpus(o.backend, o.inner);
        error = inner.error;
        for (gpu_description& gpu : inner.gpus)
            gpu.name = "Faulty " + gpu.name;
        return inner.gpus;
    }

    std::shared_ptr<backend_device> open(const gpu_description& gpu, const backend_options& options,
                                         std::string& error) const override {
        faulty_options o;
        if (!read_options(options, o, error))
            return nullptr;
        open_result inner = open_gpu(o.backend, o.gpu.empty() ? std::to_string(gpu.index) : o.gpu, o.inner);
        error = inner.error;
        if (!inner.device)
            return nullptr;
        gpu_description description = inner.device->description();
        description.name = "Faulty " + description.name;
        return std::make_shared<faulty_device>(std::move(inner.device), std::move(o.script),
                                               std::move(description));
    }
};

} // namespace

const backend_module& faulty_module() {
    static const faulty_backend module;
    return module;
}

} // namespace kagemusha::gpu
