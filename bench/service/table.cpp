// SPDX-License-Identifier: GPL-2.0-or-later
//
// See table.hpp.
#include "table.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace service {

namespace {

constexpr std::size_t key_bytes = 32, value_bytes = 64;
constexpr std::size_t group = 32; // work items of a look-up
static_assert(largest_batch % group == 0);
constexpr unsigned char is_increase = 255; // where a value has its length + 1

// A slot is an item: a key's length and bytes (length 0: empty), a value's length + 1 and bytes, zeros behind them.
// Slots are searched one after the other from the key's hash on; nothing is ever removed.
const char* const source = R"(
#define KEY 8   /* words */
#define ITEM 24
uint place_of(global const uint* slots, uint count, global const uint* key)
{
    uint hash = 2166136261u;
    for (uint i = 0; i < KEY; ++i)
        hash = (hash ^ key[i]) * 16777619u;
    hash ^= hash >> 15;
    for (uint tried = 0; tried < count; ++tried) {
        uint place = (hash + tried) % count;
        global const uint* slot = slots + place * ITEM;
        uint same = 1;
        for (uint i = 0; i < KEY; ++i)
            same &= slot[i] == key[i];
        if (same || slot[0] == 0)
            return place;
    }
    return count;
}

kernel void look(global const uint* slots, uint count, global const uint* items, global uint* values)
{
    uint id = get_global_id(0);
    uint place = place_of(slots, count, items + id * ITEM);
    for (uint i = 0; i < ITEM - KEY; ++i)
        values[id * (ITEM - KEY) + i] = place < count ? slots[place * ITEM + KEY + i] : 0;
}

/* One more, in decimal; 0 if it is no number of at most 18 digits. A value that is not there is 0. */
uint increased(global uchar* value)
{
    uint digits = value[0] ? value[0] - 1 : 0;
    ulong number = 0;
    if (digits > 18)
        return 0;
    for (uint i = 1; i <= digits; ++i) {
        if (value[i] < '0' || value[i] > '9')
            return 0;
        number = number * 10 + (value[i] - '0');
    }
    ++number;
    digits = 0;
    for (ulong left = number; left; left /= 10)
        ++digits;
    value[0] = digits + 1;
    for (uint i = digits; i > 0; --i, number /= 10)
        value[i] = '0' + number % 10;
    return 1;
}

/* By one work item: requests for the same key come one after the other. */
kernel void change(global uint* slots, uint count, global const uint* items, global uint* values, uint requests)
{
    for (uint id = 0; id < requests; ++id) {
        global const uint* item = items + id * ITEM;
        global uint* answer = values + id * (ITEM - KEY);
        uint place = place_of(slots, count, item);
        uint done = place < count;
        if (done) {
            global uint* slot = slots + place * ITEM;
            if (*(global const uchar*)(item + KEY) == 255)
                done = increased((global uchar*)(slot + KEY));
            else
                for (uint i = KEY; i < ITEM; ++i)
                    slot[i] = item[i];
            for (uint i = 0; done && i < KEY; ++i)
                slot[i] = item[i];
            for (uint i = KEY; done && i < ITEM; ++i)
                answer[i - KEY] = slot[i];
        }
        if (!done)
            answer[0] = 0;
    }
}
)";

void put(unsigned char* to, std::size_t bytes, const std::string& text, unsigned more) {
    std::memset(to, 0, bytes);
    to[0] = static_cast<unsigned char>(text.size() + more);
    std::memcpy(to + 1, text.data(), text.size());
}

bool is_change(const request& r) {
    return r.what != verb::get;
}

} // namespace

table::table(std::uint32_t keys)
    : slots_(keys * 2)
    , slots_memory_(gpu_.make(slots_ * sizeof(item)))
    , items_memory_(gpu_.make(largest_batch * sizeof(item)))
    , values_memory_(gpu_.make(largest_batch * value_bytes))
    , kernels_(gpu_.build(source, {"look", "change"}))
    , items_(largest_batch)
    , values_(largest_batch * value_bytes) {
    static_assert(sizeof(item) == key_bytes + value_bytes);
    gpu_.write(slots_memory_, std::vector<unsigned char>(slots_memory_.bytes()).data());
    kernels_[0].with(slots_memory_, slots_, items_memory_, values_memory_);
    std::vector<request> made(largest_batch);
    std::vector<const request*> batch;
    for (std::uint32_t key = 0; key < keys;) {
        batch.clear();
        for (auto& r : made) {
            if (key == keys)
                break;
            char number[16];
            std::snprintf(number, sizeof number, "%012u", key++);
            r = {verb::set, std::string("key:") + number, std::string("value of ") + number, true, 0};
            batch.push_back(&r);
        }
        execute(batch);
    }
}

void table::run(bool changes, std::size_t count) {
    if (changes)
        kernels_[1].with(slots_memory_, slots_, items_memory_, values_memory_, static_cast<cl_uint>(count));
    suite::need(clEnqueueWriteBuffer(gpu_.queue(), items_memory_.get(), CL_FALSE, 0, count * sizeof(item),
                                     items_.data(), 0, nullptr, nullptr),
                "clEnqueueWriteBuffer");
    // Groups of one size: a runtime may compile a kernel for each size that it meets. Who is too many looks up
    // an item of an earlier batch, and nobody reads that.
    if (changes)
        gpu_.launch(kernels_[1], 1, 1);
    else
        gpu_.launch(kernels_[0], (count + group - 1) / group * group, group);
    suite::need(clEnqueueReadBuffer(gpu_.queue(), values_memory_.get(), CL_TRUE, 0, count * value_bytes,
                                    values_.data(), 0, nullptr, nullptr),
                "clEnqueueReadBuffer");
}

std::vector<std::optional<std::string>> table::execute(const std::vector<const request*>& batch) {
    if (batch.size() > largest_batch)
        std::abort(); // the caller's bound
    std::vector<std::optional<std::string>> answers;
    // Runs of requests that only read, and of those that change something.
    for (std::size_t from = 0, to = 0; from < batch.size(); from = to) {
        const bool changes = is_change(*batch[from]);
        for (; to < batch.size() && is_change(*batch[to]) == changes; ++to) {
            auto& one = items_[to - from];
            put(one.key, sizeof one.key, batch[to]->key, 0);
            put(one.value, sizeof one.value, batch[to]->value, 1);
            if (batch[to]->what == verb::increase)
                one.value[0] = is_increase;
        }
        run(changes, to - from);
        for (std::size_t i = 0; i < to - from; ++i) {
            const auto* value = &values_[i * value_bytes];
            if (value[0] == 0 || value[0] > value_bytes)
                answers.emplace_back();
            else
                answers.emplace_back(std::string(reinterpret_cast<const char*>(value) + 1, value[0] - 1u));
        }
    }
    return answers;
}

} // namespace service
