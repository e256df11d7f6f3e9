#include "simt.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <ucontext.h>

#include <csetjmp>
#include <cstdlib>
#include <memory>

#include "emulator.h"

namespace simt {
namespace {

constexpr size_t STACK = 256 * 1024;
constexpr uint16_t NOBODY = 0xffff;

enum class State { READY, AT_WARP, AT_BLOCK, DONE };

struct Copy {
    void* to;
    void const* from;
    bool valid;
    int group;
};

struct Fibre {
    ucontext_t entry;
    jmp_buf place;
    std::unique_ptr<unsigned char[]> stack{new unsigned char[STACK]};
    bool started;
    State state;
    Operation operation;
    void* operand;
    std::vector<Copy> copies;
    int group;
};

// Who was last at two bytes of shared memory, and when: in which interval between barriers, of the block and of his
// warp.
struct Visit {
    uint16_t thread = NOBODY;
    uint32_t block_time = 0, warp_time = 0;
};
struct Cell {
    Visit writer, reader, other_reader;
    bool under_way = false;
};

// The sectors of a buffer, and the last block that read or wrote each.
constexpr uintptr_t SECTOR = 32;
struct Buffer {
    uintptr_t begin, end;
    bool writable;
    std::vector<uint64_t> read_by, written_by;
};
std::vector<Buffer> buffers;

std::string error;
unsigned long long sectors_read, sectors_written, products;
uint64_t block_number;
bool tolerant;

std::vector<std::unique_ptr<Fibre>> fibres;
jmp_buf scheduler;
std::function<void()> const* kernel;
void* kernel_address;
int current;
trtbuild::Index block;
std::vector<uint32_t> warp_times;
uint32_t block_time;

// Room for the largest block of shared memory, aligned as a GPU's is.
std::vector<unsigned char> shared_memory;
std::vector<Cell> cells;
unsigned char* shared_begin;

Fibre& own() { return *fibres[static_cast<size_t>(current)]; }

void leave(State state) {
    own().state = state;
    if (_setjmp(own().place) == 0) _longjmp(scheduler, 1);
}

void begin() {
    (*kernel)();
    leave(State::DONE);
}

// Run a thread until it waits or ends.
void resume(int thread) {
    current = thread;
    Fibre& fibre = own();
    fibre.state = State::READY;
    if (_setjmp(scheduler) != 0) return;
    if (fibre.started) _longjmp(fibre.place, 1);
    fibre.started = true;
    setcontext(&fibre.entry);
}

std::string kernel_name() {
    Dl_info info;
    if (dladdr(kernel_address, &info) == 0 || info.dli_sname == nullptr) return "a kernel";
    int status = 0;
    std::unique_ptr<char, decltype(&std::free)> const name(
        abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), std::free);
    return status == 0 ? name.get() : info.dli_sname;
}

std::string place() {
    return kernel_name() + ", block " + std::to_string(block.x) + " " + std::to_string(block.y) + " " +
           std::to_string(block.z) + ", thread " + std::to_string(current);
}

void note_failure(std::string const& what) {
    if (error.empty()) error = place() + ": " + what;
}

bool failed() { return !error.empty(); }

// All lanes of a warp, until each waits for the block or has ended.
void run_warp(int first, int last) {
    for (;;) {
        for (int thread = first; thread < last; ++thread) {
            if (fibres[static_cast<size_t>(thread)]->state == State::READY) resume(thread);
            if (failed()) return;
        }
        void* operands[WARP];
        int waiting = 0;
        Operation operation = nullptr;
        for (int thread = first; thread < last; ++thread) {
            Fibre& fibre = *fibres[static_cast<size_t>(thread)];
            if (fibre.state != State::AT_WARP) continue;
            current = thread;
            if (waiting > 0 && fibre.operation != operation) return note_failure("its warp is at another operation");
            operation = fibre.operation;
            operands[waiting++] = fibre.operand;
        }
        if (waiting == 0) return;
        if (waiting != WARP) return note_failure("not all lanes of its warp come to this operation");
        operation(operands);
        for (int thread = first; thread < last; ++thread) fibres[static_cast<size_t>(thread)]->state = State::READY;
    }
}

void run_block(int threads, size_t shared) {
    std::fill_n(shared_begin, shared, 0xff);
    cells.assign((shared + 1) / 2, {});
    warp_times.assign(static_cast<size_t>((threads + WARP - 1) / WARP), 0);
    block_time = 0;
    ++block_number;
    for (int thread = 0; thread < threads; ++thread) {
        Fibre& fibre = *fibres[static_cast<size_t>(thread)];
        getcontext(&fibre.entry);
        fibre.entry.uc_stack.ss_sp = fibre.stack.get();
        fibre.entry.uc_stack.ss_size = STACK;
        fibre.entry.uc_link = nullptr;
        makecontext(&fibre.entry, begin, 0);
        fibre.started = false;
        fibre.state = State::READY;
        fibre.copies.clear();
        fibre.group = 0;
    }
    for (;;) {
        for (int first = 0; first < threads && !failed(); first += WARP) {
            run_warp(first, std::min(first + WARP, threads));
        }
        if (failed()) return;
        bool waiting = false;
        for (int thread = 0; thread < threads; ++thread) {
            Fibre& fibre = *fibres[static_cast<size_t>(thread)];
            if (fibre.state == State::AT_BLOCK) {
                fibre.state = State::READY;
                waiting = true;
            }
        }
        if (!waiting) return;
        ++block_time;
    }
}

bool ordered(Visit const& before, Visit const& now) {
    if (before.thread == NOBODY || before.thread == now.thread || before.block_time < now.block_time) return true;
    return before.thread / WARP == now.thread / WARP && before.warp_time < now.warp_time;
}

size_t shared_offset(void const* address, size_t bytes, char const* what) {
    auto const at = reinterpret_cast<uintptr_t>(address), from = reinterpret_cast<uintptr_t>(shared_begin);
    if (at < from || at + bytes > from + cells.size() * 2) {
        fail(std::string(what) + " of " + std::to_string(bytes) + " bytes outside shared memory");
    }
    if (at % bytes != 0)
        fail(std::string(what) + " of shared memory not aligned to " + std::to_string(bytes) + " bytes");
    return at - from;
}

Visit visit() { return {static_cast<uint16_t>(current), block_time, warp_times[static_cast<size_t>(current / WARP)]}; }

void write_cell(Cell& cell, Visit const& now, bool under_way) {
    for (Visit const* before : {&cell.writer, &cell.reader, &cell.other_reader}) {
        if (!ordered(*before, now)) {
            fail("writes shared memory that thread " + std::to_string(before->thread) +
                 " uses, with no barrier between");
        }
    }
    cell.writer = now;
    cell.under_way = under_way;
}

void read_cell(Cell& cell, Visit const& now) {
    if (cell.writer.thread == NOBODY) fail("reads shared memory that nothing was written to");
    if (cell.under_way) fail("reads shared memory that a copy is under way to");
    if (!ordered(cell.writer, now)) {
        fail("reads shared memory that thread " + std::to_string(cell.writer.thread) +
             " writes, with no barrier between");
    }
    if (cell.reader.thread != now.thread) cell.other_reader = cell.reader;
    cell.reader = now;
}

void count_sectors(Buffer& buffer, uintptr_t from, uintptr_t to, bool write) {
    auto& last = write ? buffer.written_by : buffer.read_by;
    for (uintptr_t sector = from / SECTOR; sector <= (to - 1) / SECTOR; ++sector) {
        uint64_t& by = last[sector - buffer.begin / SECTOR];
        if (by == block_number) continue;
        by = block_number;
        ++(write ? sectors_written : sectors_read);
    }
}

}  // namespace

void fail(std::string const& what) {
    note_failure(what);
    _longjmp(scheduler, 1);
}

int thread_index() { return current; }
trtbuild::Index block_index() { return block; }
unsigned char* shared_base() { return shared_begin; }

void check_global(void const* address, size_t bytes, bool write) {
    auto const at = reinterpret_cast<uintptr_t>(address);
    for (size_t i = 0; i < buffers.size(); ++i) {
        if (at < buffers[i].begin || at + bytes > buffers[i].end) continue;
        if (write && !buffers[i].writable) fail("writes to an input");
        count_sectors(buffers[i], at, at + bytes, write);
        if (at % bytes != 0) fail("an access of global memory not aligned to " + std::to_string(bytes) + " bytes");
        return;
    }
    fail(std::string(write ? "writes " : "reads ") + std::to_string(bytes) + " bytes outside every buffer");
}

void note_shared(void const* address, size_t bytes, bool write) {
    size_t const offset = shared_offset(address, bytes, write ? "a write" : "a read");
    Visit const now = visit();
    for (size_t cell = offset / 2; cell < (offset + bytes + 1) / 2; ++cell) {
        if (write) {
            write_cell(cells[cell], now, false);
        } else {
            read_cell(cells[cell], now);
        }
    }
}

void copy_later(void* to, void const* from, bool valid) {
    size_t const offset = shared_offset(to, 16, "a copy");
    for (size_t cell = offset / 2; cell < offset / 2 + 8; ++cell) write_cell(cells[cell], visit(), true);
    own().copies.push_back({to, from, valid, own().group});
}

void commit_copies() { ++own().group; }

void wait_for_copies(int groups_left) {
    auto& copies = own().copies;
    size_t done = 0;
    for (; done < copies.size() && copies[done].group < own().group - groups_left; ++done) {
        Copy const& copy = copies[done];
        size_t const offset = shared_offset(copy.to, 16, "a copy");
        for (size_t cell = offset / 2; cell < offset / 2 + 8; ++cell) write_cell(cells[cell], visit(), false);
        if (copy.valid) {
            std::memcpy(copy.to, copy.from, 16);
        } else {
            std::memset(copy.to, 0, 16);
        }
    }
    copies.erase(copies.begin(), copies.begin() + static_cast<std::ptrdiff_t>(done));
}

int put_in_range(int value, int first, int last) {
    if (value >= first && value <= last) return value;
    if (!tolerant)
        fail("uses " + std::to_string(value) + ", which is not in " + std::to_string(first) + " .. " +
             std::to_string(last));
    return value < first ? first : last;
}

void count_product() { ++products; }

void together(Operation operation, void* operand) {
    own().operation = operation;
    own().operand = operand;
    leave(State::AT_WARP);
}

void sync_threads() { leave(State::AT_BLOCK); }

void sync_warp() {
    together([](void* const(&)[WARP]) { ++warp_times[static_cast<size_t>(current / WARP)]; }, nullptr);
}

int run(void* address, trtbuild::Grid grid, int threads, size_t shared, std::function<void()> const& body) {
    kernel_address = address;
    error.clear();
    kernel = &body;
    while (fibres.size() < static_cast<size_t>(threads)) fibres.push_back(std::make_unique<Fibre>());
    if (shared_memory.size() < shared + 128) shared_memory.resize(shared + 128);
    shared_begin =
        reinterpret_cast<unsigned char*>((reinterpret_cast<uintptr_t>(shared_memory.data()) + 127) & ~127ull);
    for (block.z = 0; block.z < grid.z; ++block.z) {
        for (block.y = 0; block.y < grid.y; ++block.y) {
            for (block.x = 0; block.x < grid.x; ++block.x) {
                run_block(threads, shared);
                if (failed()) return 1;
            }
        }
    }
    return 0;
}

}  // namespace simt

void simt_register(void* begin, size_t bytes, int writable) {
    auto const at = reinterpret_cast<uintptr_t>(begin);
    size_t const sectors = bytes / simt::SECTOR + 2;
    simt::buffers.push_back(
        {at, at + bytes, writable != 0, std::vector<uint64_t>(sectors), std::vector<uint64_t>(sectors)});
}

void simt_forget() {
    simt::buffers.clear();
    simt::sectors_read = simt::sectors_written = simt::products = 0;
}

void simt_tolerate(int tolerate) { simt::tolerant = tolerate != 0; }

void simt_counts(unsigned long long counts[3]) {
    counts[0] = simt::sectors_read;
    counts[1] = simt::sectors_written;
    counts[2] = simt::products;
}

char const* simt_error() { return simt::error.c_str(); }
