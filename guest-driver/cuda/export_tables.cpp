// SPDX-License-Identifier: GPL-2.0-or-later
//
// cuGetExportTable: tables of functions that have no names, which a libcudart and NVIDIA's libraries ask for.
// They are not documented; what the slots here do was seen from outside (docs/notes/nvidia.md).
//
// Two of them lie where the host's driver has its own, because the runtime's validity check takes their
// addresses into account (docs/adr/0028). The check's function is the genuine one's address, with a jump to
// ours there; ours sends the question to the host.
#include "export_tables.hpp"
#include "driver.hpp"

#include "guest-driver/opencl/query.hpp"
#include "proto/cuda/export_tables.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <utility>

extern "C" int kagemusha_cuda_not_supported(const char* name);

namespace kagemusha::cuda {
namespace {

using word = std::uintptr_t;

template <class Function>
word address_of(Function* function) {
    return reinterpret_cast<word>(function);
}

// A slot without code here; a report names the table by its length.
template <std::size_t Words, std::size_t Slot>
int no_slot() {
    static const auto* const name =
        new std::string("cuGetExportTable_" + std::to_string(Words) + "_" + std::to_string(Slot));
    return kagemusha_cuda_not_supported(name->c_str());
}

// ---- the slots

CUresult primary_context_of(CUcontext* handle, CUdevice number) {
    return guarded([&] {
        device* const one = device_of(number);
        return !one      ? CUDA_ERROR_INVALID_DEVICE
               : !handle ? CUDA_ERROR_INVALID_VALUE
                         : primary_context(*one, *handle);
    });
}

// Whether a tool watches a function of a runtime, by the function's number; none does.
void* watched_functions(void** place, std::size_t* count) {
    static word flags[1024];
    *count = std::size(flags);
    return *place = flags;
}
void* watched_domains(void** place, std::size_t* count) {
    static word flags[14];
    *count = std::size(flags);
    return *place = flags;
}

CUresult current_context(CUcontext* handle) {
    return cuCtxGetCurrent(handle);
}

// Calls the program for each function of a module; how many there are.
using found_function = void (*)(void* user, CUfunction found);
unsigned visit_functions(CUcontext, CUmodule of, found_function visit, void* user) {
    unsigned count = 0;
    if (!visit || cuModuleGetFunctionCount(&count, of) != CUDA_SUCCESS)
        return 0;
    std::vector<CUfunction> functions(count);
    if (cuModuleEnumerateFunctions(functions.data(), count, of) != CUDA_SUCCESS)
        return 0;
    for (const CUfunction one : functions)
        visit(user, one);
    return count;
}

int nothing_to_check() {
    return 0;
}
CUresult check_context(CUcontext handle, unsigned* fault, void**) {
    return guarded([&] {
        if (!fault)
            return CUDA_ERROR_INVALID_VALUE;
        *fault = object_of<context>(the_driver().contexts, handle) ? 0 : CUDA_ERROR_INVALID_CONTEXT;
        return CUDA_SUCCESS;
    });
}

CUresult context_number(CUcontext handle, std::uint64_t* number) {
    unsigned long long id = 0;
    const CUresult error = number ? cuCtxGetId(handle, &id) : CUDA_ERROR_INVALID_VALUE;
    if (!error)
        *number = id;
    return error;
}

// A stream behind a handle, in two steps.
CUresult stream_behind(CUcontext of, CUstream handle, stream** found) {
    return guarded([&] {
        CUresult error = CUDA_ERROR_INVALID_VALUE;
        stream* const one = found ? stream_of(handle, error) : nullptr;
        if (!one)
            return error;
        if (of && of != reinterpret_cast<CUcontext>(one->owner))
            return CUDA_ERROR_INVALID_HANDLE;
        *found = one;
        return CUDA_SUCCESS;
    });
}
CUresult stream_number(CUcontext, const stream* one, std::uint64_t* number) {
    return guarded([&] {
        if (!one || !number)
            return CUDA_ERROR_INVALID_VALUE;
        *number = one->number;
        return CUDA_SUCCESS;
    });
}

// Where multiprocessors lie in the GPU, which differs between two GPUs of a kind. Programs ask for a faster order
// of their blocks, and do without.
int no_layout() {
    return CUDA_ERROR_NOT_SUPPORTED;
}

// What libraries keep with a context, by a key of theirs.
using end_value = void (*)(CUcontext, void* key, void* value);
struct kept_value {
    void* value;
    end_value end;
};
class context_storage {
public:
    static context_storage& instance() {
        static auto* const only = new context_storage;
        return *only;
    }
    void put(context* of, void* key, kept_value value) {
        const std::lock_guard held(mutex_);
        values_[{of, key}] = value;
    }
    bool get(context* of, void* key, void*& value) {
        const std::lock_guard held(mutex_);
        const auto found = values_.find({of, key});
        if (found != values_.end())
            value = found->second.value;
        return found != values_.end();
    }
    bool forget(context* of, void* key) {
        const std::lock_guard held(mutex_);
        return values_.erase({of, key}) != 0;
    }
    void end(context* dead) {
        std::map<place, kept_value> ended;
        {
            const std::lock_guard held(mutex_);
            const auto first = values_.lower_bound({dead, nullptr});
            auto last = first;
            while (last != values_.end() && last->first.first == dead)
                ended.insert(*last++);
            values_.erase(first, last);
        }
        for (const auto& [of, kept] : ended)
            if (kept.end)
                kept.end(reinterpret_cast<CUcontext>(dead), of.second, kept.value);
    }

private:
    using place = std::pair<context*, void*>;
    std::mutex mutex_;
    std::map<place, kept_value> values_;
};

// No handle is the current one.
template <class Body>
CUresult of_context(CUcontext handle, Body&& body) {
    return guarded([&] {
        CUresult error = CUDA_ERROR_INVALID_CONTEXT;
        context* const one = handle ? object_of<context>(the_driver().contexts, handle) : current(error);
        return one ? body(one) : error;
    });
}
CUresult storage_put(CUcontext handle, void* key, void* value, end_value end) {
    return of_context(handle, [&](context* one) {
        context_storage::instance().put(one, key, {value, end});
        return CUDA_SUCCESS;
    });
}
CUresult storage_delete(CUcontext handle, void* key) {
    return of_context(handle, [&](context* one) {
        return context_storage::instance().forget(one, key) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    });
}
CUresult storage_get(void** value, CUcontext handle, void* key) {
    return of_context(handle, [&](context* one) {
        return !value                                              ? CUDA_ERROR_INVALID_VALUE
               : context_storage::instance().get(one, key, *value) ? CUDA_SUCCESS
                                                                   : CUDA_ERROR_INVALID_HANDLE;
    });
}

// ---- the validity check

vgpu_cuda_tables known_tables; // once, before a program gets them

// The parameters are the driver's.
CUresult check_validity(unsigned version, std::uint64_t seconds, void* proof) {
    return guarded([&] {
        const auto link = the_driver().ready ? the_driver().devices.front()->native->link() : nullptr;
        if (!link || !proof)
            return link ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_INITIALIZED;
        vgpu_cuda_question question{};
        question.known = known_tables;
        question.seconds = seconds;
        question.version = version;
        question.process = static_cast<__u32>(::getpid());
        question.thread = static_cast<__u64>(::pthread_self());
        const auto input = std::as_bytes(std::span(&question, 1));
        const auto told =
            opencl::ask(*link, {VGPU_INFO_DEVICE, VGPU_CUDA_VALIDITY, 0, 0, input}).as<vgpu_cuda_proof>();
        if (!told) {
            report_unsupported("runtime_validity_check");
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        std::memcpy(proof, told->bytes, sizeof told->bytes);
        return static_cast<CUresult>(told->result);
    });
}

// ---- the tables

// Of this many words; the first says how many bytes they have.
template <std::size_t Words>
struct table {
    word words[Words];
    table() : table(std::make_index_sequence<Words>()) {}
    template <std::size_t... Slots>
    explicit table(std::index_sequence<Slots...>) : words{address_of(no_slot<Words, Slots>)...} {
        words[0] = sizeof words;
    }
    table& set(std::size_t slot, word function) {
        words[slot] = function;
        return *this;
    }
};

using interface_table = table<13>;
using check_table = table<3>;

#if defined(__x86_64__)
// endbr64; movabs $check_validity, %rax; jmp *%rax
std::vector<unsigned char> jump_to_check() {
    std::vector<unsigned char> code = {0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0xb8};
    const word target = address_of(check_validity);
    const auto* const bytes = reinterpret_cast<const unsigned char*>(&target);
    code.insert(code.end(), bytes, bytes + sizeof target);
    code.insert(code.end(), {0xff, 0xe0});
    return code;
}
#else
std::vector<unsigned char> jump_to_check() {
    return {}; // hosts with CUDA's runtime check have x86-64
}
#endif

// Memory at addresses that the host names, page by page. Whatever else is there stays.
class placed_pages {
public:
    bool put(word address, const void* content, std::size_t bytes, int protection) {
        const word first = address & ~(page - 1), end = address + bytes;
        if (bytes == 0 || address == 0 || end < address || end > last_address)
            return false;
        for (word at = first; at < end; at += page) {
            auto [one, fresh] = pages_.try_emplace(at, protection);
            one->second |= protection;
            if (!fresh)
                continue;
            void* const wanted = reinterpret_cast<void*>(at);
            void* const got = ::mmap(wanted, page, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
            if (got != wanted) {
                if (got != MAP_FAILED)
                    ::munmap(got, page); // a kernel that does not know the flag
                pages_.erase(one);
                return false;
            }
        }
        std::memcpy(reinterpret_cast<void*>(address), content, bytes);
        return true;
    }
    bool close() {
        return std::ranges::all_of(pages_, [](const auto& one) {
            return ::mprotect(reinterpret_cast<void*>(one.first), page, one.second) == 0;
        });
    }
    void drop() {
        for (const auto& [at, protection] : pages_)
            ::munmap(reinterpret_cast<void*>(at), page);
        pages_.clear();
    }

private:
    static constexpr word page = 4096, last_address = word{1} << 47;
    std::map<word, int> pages_; // protection by address
};

bool place_tables(const vgpu_cuda_tables& where) {
    const std::vector<unsigned char> code = jump_to_check();
    interface_table interface;
    interface.set(2, address_of(primary_context_of));
    check_table checks;
    checks.set(1, static_cast<word>(where.check_function));
    placed_pages pages;
    if (pages.put(where.interface_table, interface.words, sizeof interface.words, PROT_READ) &&
        pages.put(where.check_table, checks.words, sizeof checks.words, PROT_READ) &&
        pages.put(where.check_function, code.data(), code.size(), PROT_READ | PROT_EXEC) && pages.close())
        return true;
    pages.drop();
    return false;
}

// Asks the host and puts the tables there, once; whether they are there.
bool tables_are_placed() {
    static std::mutex once;
    const std::lock_guard held(once);
    if (known_tables.check_table)
        return true;
    const auto link = the_driver().devices.front()->native->link();
    if (!link)
        return false;
    const auto told = opencl::ask(*link, {VGPU_INFO_DEVICE, VGPU_CUDA_TABLES}).as<vgpu_cuda_tables>();
    if (!told || !place_tables(*told))
        return false;
    known_tables = *told;
    return true;
}

const void* hooks_table() {
    static const auto it =
        table<7>().set(2, address_of(watched_functions)).set(6, address_of(watched_domains));
    return it.words;
}
const void* current_table() {
    static const auto it = table<3>().set(2, address_of(current_context));
    return it.words;
}
const void* storage_table() { // has no size
    static const word it[] = {address_of(storage_put), address_of(storage_delete), address_of(storage_get),
                              0};
    return it;
}
const void* checks_table() {
    static const auto it = table<15>().set(2, address_of(check_context)).set(3, address_of(nothing_to_check));
    return it.words;
}
const void* numbers_table() {
    static const auto it = table<93>()
                               .set(4, address_of(context_number))
                               .set(39, address_of(stream_number))
                               .set(51, address_of(stream_behind));
    return it.words;
}
const void* functions_table() {
    static const auto it = table<99>().set(7, address_of(visit_functions));
    return it.words;
}
const void* layout_table() {
    static const auto it = table<17>().set(4, address_of(no_layout)).set(13, address_of(no_layout));
    return it.words;
}
const void* placed_interface_table() {
    return tables_are_placed() ? reinterpret_cast<const void*>(known_tables.interface_table) : nullptr;
}
const void* placed_check_table() {
    return tables_are_placed() ? reinterpret_cast<const void*>(known_tables.check_table) : nullptr;
}

struct named_table {
    CUuuid name;
    const void* (*get)();
};
const named_table tables[] = {
    {KVG_CUDA_TABLE_INTERFACE, placed_interface_table},
    {KVG_CUDA_TABLE_CHECK, placed_check_table},
    {KVG_CUDA_TABLE_HOOKS, hooks_table},
    {KVG_CUDA_TABLE_CURRENT, current_table},
    {KVG_CUDA_TABLE_STORAGE, storage_table},
    {KVG_CUDA_TABLE_CONTEXT_CHECKS, checks_table},
    {KVG_CUDA_TABLE_NUMBERS, numbers_table},
    {KVG_CUDA_TABLE_FUNCTIONS, functions_table},
    {KVG_CUDA_TABLE_LAYOUT, layout_table},
};

} // namespace

void end_context_storage(context& dead) {
    context_storage::instance().end(&dead);
}

KAGEMUSHA_EXPORT CUresult cuGetExportTable(const void** place, const CUuuid* name) {
    if (!the_driver().ready) // a runtime asks before it starts the driver
        cuInit(0);
    return guarded([&] {
        if (!place || !name)
            return CUDA_ERROR_INVALID_VALUE;
        if (!the_driver().ready)
            return CUDA_ERROR_NOT_INITIALIZED;
        *place = nullptr;
        for (const named_table& one : tables)
            if (std::memcmp(one.name.bytes, name->bytes, sizeof name->bytes) == 0)
                *place = one.get();
        return *place ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
    });
}

} // namespace kagemusha::cuda
