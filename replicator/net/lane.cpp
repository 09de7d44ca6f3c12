// SPDX-License-Identifier: GPL-2.0-or-later
// See lane.hpp.
#include "net/lane.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "net/lane_stream.hpp"
#include "net/quiet_thread.hpp"

namespace kagemusha::net {

namespace {

// On the loop's thread, as long as the lane is there.
template <class Shared, class F>
void tell(const std::shared_ptr<Shared>& self, F&& f) {
    self->loop->post([self, f = std::forward<F>(f)] {
        if (self->owner)
            f(*self->owner);
    });
}

template <class T>
std::span<std::byte> bytes_of(T& x) {
    return std::as_writable_bytes(std::span(&x, 1));
}

// A function of the user's, which may destroy the lane that has it.
template <class... Parameters, class... Arguments>
void call(std::function<void(Parameters...)> f, Arguments&&... arguments) {
    f(std::forward<Arguments>(arguments)...);
}

// What both kinds of lane have: a thread with a stream, jobs for it, and the way back to the loop.
template <class Lane, class Job>
struct lane_thread {
    // Loop's thread. Nothing is told any more.
    void end() {
        owner = nullptr;
        {
            const std::lock_guard lock(mutex);
            stop = true;
            if (connected)
                stream.abort();
        }
        wanted.notify_one();
        thread.join();
        jobs.clear(); // what they keep goes on this thread
    }
    void push(Job job) {
        {
            const std::lock_guard lock(mutex);
            jobs.push_back(std::move(job));
        }
        wanted.notify_one();
    }

    // The lane's thread.
    std::optional<Job> next() {
        std::unique_lock lock(mutex);
        wanted.wait(lock, [this] { return stop || !jobs.empty(); });
        if (stop)
            return {};
        Job job = std::move(jobs.front());
        jobs.pop_front();
        return job;
    }
    // From here on end() can wake it. False: it is over already.
    bool can_abort() {
        const std::lock_guard lock(mutex);
        connected = true;
        return !stop;
    }

    event_loop* loop = nullptr;
    Lane* owner = nullptr; // the loop's thread; null: it is gone
    std::mutex mutex;      // up to `connected`
    std::condition_variable wanted;
    std::deque<Job> jobs;
    bool connected = false;
    std::atomic<bool> stop = false;
    lane_stream stream; // the lane's thread
    std::thread thread;
};

} // namespace

// ---- who connects

namespace {

struct piece_to_send {
    std::vector<std::span<const std::byte>> payload;
    std::shared_ptr<const void> keep;
    std::uint64_t bytes = 0;
};

} // namespace

struct lane_sender::shared : lane_thread<lane_sender, piece_to_send> {
    target to;
    // By mutex, until the loop has heard of it or the lane ends: what it keeps goes before its user does.
    std::deque<piece_to_send> written;

    std::uint64_t take_written() {
        piece_to_send first; // ends outside the lock
        const std::lock_guard lock(mutex);
        first = std::move(written.front());
        written.pop_front();
        return first.bytes;
    }

    // Empty, or why it did not open.
    std::string open() {
        if (auto why = stream.connect(to.endpoint, to.connect_timeout_ms, stop); !why.empty())
            return why;
        if (!can_abort())
            return "no longer wanted";
        if (to.tls)
            if (auto why = stream.shake_hands(to.tls); !why.empty())
                return why;
        const std::array<std::span<const std::byte>, 1> greeting{bytes_of(to.greeting)};
        if (auto why = stream.write(greeting); !why.empty())
            return why;
        lane_answer answer;
        if (auto why = stream.read(bytes_of(answer)); !why.empty())
            return why;
        if (answer.magic != lane_magic || answer.number != to.greeting.number)
            return "the peer did not answer as a lane does";
        stream.set_timeout(to.write_timeout_ms);
        return {};
    }

    static void run(const std::shared_ptr<shared>& self) {
        std::string why = self->open();
        if (why.empty()) {
            tell(self, [](lane_sender& lane) { lane.open_ = true; });
            while (auto job = self->next()) {
                why = self->stream.write(job->payload);
                if (!why.empty()) {
                    const std::lock_guard lock(self->mutex);
                    self->jobs.push_front(std::move(*job));
                    break;
                }
                {
                    const std::lock_guard lock(self->mutex);
                    self->written.push_back(std::move(*job));
                }
                tell(self, [self](lane_sender& lane) {
                    const std::uint64_t bytes = self->take_written();
                    lane.queued_bytes_ -= bytes;
                    call(lane.events_.sent, bytes);
                });
            }
        }
        if (!self->stop)
            tell(self, [why](lane_sender& lane) { call(lane.events_.ended, why); });
    }
};

lane_sender::lane_sender(event_loop& loop, target to, events e)
    : events_(std::move(e)), shared_(std::make_shared<shared>()) {
    shared_->loop = &loop;
    shared_->to = std::move(to);
    shared_->owner = this;
    shared_->thread = quiet_thread([s = shared_] { shared::run(s); });
}

lane_sender::~lane_sender() {
    shared_->end();
    shared_->written.clear();
}

void lane_sender::send(std::vector<std::span<const std::byte>> payload, std::shared_ptr<const void> keep) {
    piece_to_send p{std::move(payload), std::move(keep)};
    for (const auto& piece : p.payload)
        p.bytes += piece.size();
    queued_bytes_ += p.bytes;
    shared_->push(std::move(p));
}

// ---- who listens

struct lane_receiver::shared : lane_thread<lane_receiver, receive_buffers> {
    std::uint32_t greeting_timeout_ms = 0, read_timeout_ms = 0;
    std::optional<std::uint32_t> accepted; // by mutex

    static void run(const std::shared_ptr<shared>& self) {
        lane_stream& stream = self->stream;
        stream.set_timeout(self->greeting_timeout_ms);
        std::uint32_t magic = 0;
        if (!stream.look(bytes_of(magic)) || magic != lane_magic) {
            if (!self->stop)
                tell(self,
                     [self](lane_receiver& lane) { call(lane.events_.no_lane, self->stream.give_back()); });
            return;
        }
        const std::string why = serve(self);
        if (!self->stop)
            tell(self, [why](lane_receiver& lane) { call(lane.events_.ended, why); });
    }
    // As a lane, to its end: why it ended.
    static std::string serve(const std::shared_ptr<shared>& self) {
        shared& s = *self;
        lane_greeting greeting;
        if (auto why = s.stream.read(bytes_of(greeting)); !why.empty())
            return why;
        tell(self, [greeting](lane_receiver& lane) { call(lane.events_.greeted, greeting); });
        {
            std::unique_lock lock(s.mutex);
            s.wanted.wait(lock, [&] { return s.stop || s.accepted; });
            if (s.stop)
                return {};
        }
        lane_answer answer;
        answer.number = *s.accepted;
        const std::array<std::span<const std::byte>, 1> bytes{bytes_of(answer)};
        if (auto why = s.stream.write(bytes); !why.empty())
            return why;
        s.stream.set_timeout(s.read_timeout_ms);
        while (auto job = s.next()) {
            for (const std::span<std::byte> piece : job->pieces)
                if (auto why = s.stream.read(piece); !why.empty())
                    return why;
            tell(self, [keep = std::move(job->keep)](lane_receiver& lane) { call(lane.events_.arrived); });
        }
        return {};
    }
};

lane_receiver::lane_receiver(event_loop& loop, admitted_peer peer, std::uint32_t greeting_timeout_ms,
                             std::uint32_t read_timeout_ms, events e)
    : events_(std::move(e)), shared_(std::make_shared<shared>()) {
    shared_->loop = &loop;
    shared_->greeting_timeout_ms = greeting_timeout_ms;
    shared_->read_timeout_ms = read_timeout_ms;
    shared_->owner = this;
    shared_->stream.adopt(std::move(peer));
    shared_->connected = true;
    shared_->thread = quiet_thread([s = shared_] { shared::run(s); });
}

lane_receiver::~lane_receiver() {
    shared_->end();
}

void lane_receiver::accept(std::uint32_t number) {
    {
        const std::lock_guard lock(shared_->mutex);
        shared_->accepted = number;
    }
    shared_->wanted.notify_one();
}

void lane_receiver::expect(receive_buffers where) {
    shared_->push(std::move(where));
}

} // namespace kagemusha::net
