// One CUDA block, on the calling OS thread: the fibers that are its threads, and the
// scheduler that gives them turns and completes the calls in which they wait. See
// host_simt.h.
#pragma once

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
extern "C" void AnnotateIgnoreSyncBegin(const char* file, int line);
extern "C" void AnnotateIgnoreSyncEnd(const char* file, int line);
#endif

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline thread_local uint3 threadIdx, blockIdx;
inline thread_local dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace structout::simt {

// For harness code that runs on behalf of CUDA threads: its own accesses must not be
// reported as data races between them.
#define STRUCTOUT_SIMT_UNTRACED __attribute__((no_sanitize("address", "thread")))

#ifndef __SANITIZE_ADDRESS__
inline void __sanitizer_start_switch_fiber(void**, const void*, size_t) {}
inline void __sanitizer_finish_switch_fiber(void*, const void**, size_t*) {}
#endif
#ifndef __SANITIZE_THREAD__
constexpr unsigned __tsan_switch_to_fiber_no_sync = 1;
inline void* __tsan_get_current_fiber() { return nullptr; }
inline void* __tsan_create_fiber(unsigned) { return nullptr; }
inline void __tsan_destroy_fiber(void*) {}
inline void __tsan_set_fiber_name(void*, const char*) {}
inline void __tsan_switch_to_fiber(void*, unsigned) {}
inline void __tsan_acquire(void*) {}
inline void __tsan_release(void*) {}
inline void AnnotateIgnoreSyncBegin(const char*, int) {}
inline void AnnotateIgnoreSyncEnd(const char*, int) {}
#endif

constexpr unsigned kAllLanes = ~0u;
constexpr unsigned kVote = warpSize;  // as Wait::source: the mask of lanes whose value is not 0
constexpr unsigned kMaxBlockThreads = 1024;
constexpr size_t kStackBytes = 256 * 1024;  // sanitized frames are large, and TSan reports from this stack
constexpr int kUnwrittenByte = 0xCB;

[[noreturn]] __attribute__((format(printf, 1, 2))) inline void fail(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::fprintf(stderr, "host_simt: block (%u, %u, %u): ", blockIdx.x, blockIdx.y, blockIdx.z);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  std::abort();
}

// A call in which a CUDA thread waits for others.
struct Wait {
  const char* name = nullptr;  // null: the thread does not wait
  unsigned mask = 0;           // the lanes of its warp that must arrive; 0: the whole block
  uint64_t value = 0;          // this lane's argument, and later its result
  unsigned source = kVote;     // the lane whose value is the result
  bool orders_memory = false;

  bool is_same_call(const Wait& other) const {
    return name != nullptr && other.name != nullptr && std::strcmp(name, other.name) == 0 && mask == other.mask;
  }
  std::string description() const {
    char text[64];
    std::snprintf(text, sizeof(text), mask == 0 ? "%s()" : "%s(0x%08x)", name, mask);
    return text;
  }
};

struct Fiber {
  ucontext_t registers;
  const void* stack = nullptr;
  size_t stack_bytes = 0;
  void* asan_fake_stack = nullptr;
  void* tsan_thread = nullptr;
};

struct Thread : Fiber {
  unsigned id;  // linear index within the block
  uint3 index;
  Wait wait;
  bool has_exited = false;
  bool has_fenced = false;

  unsigned lane() const { return id % warpSize; }
  bool is_runnable() const { return !has_exited && wait.name == nullptr; }
};

struct Group {
  size_t size = 0;
  Thread* threads[kMaxBlockThreads];
};

class Block;
inline thread_local Block* current_block;
inline thread_local Thread* current_thread;

STRUCTOUT_SIMT_UNTRACED inline void switch_fiber(Fiber& from, Fiber& to, bool is_last_of_from = false) {
  __sanitizer_start_switch_fiber(is_last_of_from ? nullptr : &from.asan_fake_stack, to.stack, to.stack_bytes);
  __tsan_switch_to_fiber(to.tsan_thread, __tsan_switch_to_fiber_no_sync);
  swapcontext(&from.registers, &to.registers);
  __sanitizer_finish_switch_fiber(from.asan_fake_stack, nullptr, nullptr);
}

// A kernel launch. TSan synchronizes on its address when threads end.
struct Launch {
  size_t dynamic_shared_bytes;
  void (*run_thread)(void* closure);  // not a std::function, which would add four frames to every report
  void* closure;
  // The previous block's threads. TSan reuses the ids of destroyed threads, and then
  // treats the old thread's accesses as the new thread's own past. So they are
  // destroyed only after the next block has run, and no data race between the two
  // blocks is missed.
  void* retired_tsan_threads[kMaxBlockThreads] = {};
};

STRUCTOUT_SIMT_UNTRACED inline void retire_tsan_thread(void*& retired, void* thread) {
  if (retired != nullptr) __tsan_destroy_fiber(retired);
  retired = thread;
}

class Block {
 public:
  explicit Block(Launch& launch) : launch_(launch), threads_(size_t{blockDim.x} * blockDim.y * blockDim.z) {
    current_block = this;
    dynamic_shared_ = std::malloc(launch.dynamic_shared_bytes);
    std::memset(dynamic_shared_, kUnwrittenByte, launch.dynamic_shared_bytes);
    // Mapped anew for each block, so that TSan forgets the accesses of the previous
    // block's threads.
    stacks_ = static_cast<char*>(mmap(nullptr, threads_.size() * kStackBytes, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (stacks_ == MAP_FAILED) fail("cannot map the stacks of %zu threads", threads_.size());
    scheduler_.tsan_thread = __tsan_get_current_fiber();
    for (unsigned id = 0; id < threads_.size(); ++id) create_thread(id);
  }

  ~Block() {
    __tsan_acquire(&launch_);
    for (const Thread& thread : threads_) {
      retire_tsan_thread(launch_.retired_tsan_threads[thread.id], thread.tsan_thread);
    }
    munmap(stacks_, threads_.size() * kStackBytes);
    std::free(dynamic_shared_);
  }

  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void* dynamic_shared() const { return dynamic_shared_; }

  void run() {
    while (num_exited_ < threads_.size()) {
      for (Thread& thread : threads_) {
        if (thread.is_runnable()) resume(thread);
      }
      complete_if_all_arrived({"__syncthreads"}, find_live(0, threads_.size(), kAllLanes));
      bool can_proceed = num_exited_ == threads_.size();
      for (const Thread& thread : threads_) {
        if (waits_for_warp(thread)) complete_if_all_arrived(thread.wait, find_awaited(thread));
        can_proceed |= thread.is_runnable();
      }
      if (!can_proceed) report_deadlock();
    }
  }

  // Lets the other threads run. Returns when it is the current thread's turn again.
  STRUCTOUT_SIMT_UNTRACED void suspend() { switch_fiber(*current_thread, scheduler_); }

 private:
  void create_thread(unsigned id) {
    Thread& thread = threads_[id];
    thread.id = id;
    thread.index = {id % blockDim.x, id / blockDim.x % blockDim.y, id / blockDim.x / blockDim.y};
    thread.stack = stacks_ + id * kStackBytes;
    thread.stack_bytes = kStackBytes;

    getcontext(&thread.registers);
    thread.registers.uc_stack.ss_sp = stacks_ + id * kStackBytes;
    thread.registers.uc_stack.ss_size = kStackBytes;
    makecontext(&thread.registers, enter_thread, 0);
    thread.registers.uc_stack = {};  // only ASan reads it, and would forget the stack's frames at every switch

    char name[64];
    std::snprintf(name, sizeof(name), "thread (%u, %u, %u) of block (%u, %u, %u)", thread.index.x, thread.index.y,
                  thread.index.z, blockIdx.x, blockIdx.y, blockIdx.z);
    thread.tsan_thread = __tsan_create_fiber(0);
    __tsan_set_fiber_name(thread.tsan_thread, name);
  }

  STRUCTOUT_SIMT_UNTRACED static void enter_thread() {
    Block& block = *current_block;
    __sanitizer_finish_switch_fiber(nullptr, &block.scheduler_.stack, &block.scheduler_.stack_bytes);
    block.launch_.run_thread(block.launch_.closure);
    __tsan_release(&block.launch_);
    current_thread->has_exited = true;
    ++block.num_exited_;
    switch_fiber(*current_thread, block.scheduler_, /*is_last_of_from=*/true);
  }

  STRUCTOUT_SIMT_UNTRACED void resume(Thread& thread) {
    current_thread = &thread;
    threadIdx = thread.index;
    switch_fiber(scheduler_, thread);
  }

  Group find_live(size_t begin, size_t end, unsigned mask) {
    Group group;
    for (size_t id = begin; id < std::min(end, threads_.size()); ++id) {
      const bool is_named = (mask >> id % warpSize & 1u) != 0;
      if (is_named && !threads_[id].has_exited) group.threads[group.size++] = &threads_[id];
    }
    return group;
  }

  static bool waits_for_warp(const Thread& thread) { return thread.wait.name != nullptr && thread.wait.mask != 0; }

  // The live lanes that must arrive. Exited lanes are not waited for.
  Group find_awaited(const Thread& thread) {
    const size_t warp = thread.id - thread.lane();
    return find_live(warp, warp + warpSize, thread.wait.mask);
  }

  void complete_if_all_arrived(const Wait& call, const Group& group) {
    for (size_t i = 0; i < group.size; ++i) {
      if (!group.threads[i]->wait.is_same_call(call)) return;
    }
    if (group.size != 0 && group.threads[0]->wait.orders_memory) order_memory(group);
    exchange_values(group);
  }

  // Orders, for TSan, everything that any of these threads did before all that they
  // will do.
  STRUCTOUT_SIMT_UNTRACED void order_memory(const Group& group) {
    // All groups that used this address before had the same first thread, so this adds
    // no order beyond what that thread has already seen.
    void* meeting_point = group.threads[0];
    for (size_t i = 0; i < group.size; ++i) {
      __tsan_switch_to_fiber(group.threads[i]->tsan_thread, __tsan_switch_to_fiber_no_sync);
      __tsan_release(meeting_point);
    }
    for (size_t i = 0; i < group.size; ++i) {
      __tsan_switch_to_fiber(group.threads[i]->tsan_thread, __tsan_switch_to_fiber_no_sync);
      __tsan_acquire(meeting_point);
    }
    __tsan_switch_to_fiber(scheduler_.tsan_thread, __tsan_switch_to_fiber_no_sync);
  }

  static void exchange_values(const Group& group) {
    uint64_t values[warpSize + 1] = {};
    uint64_t present = uint64_t{1} << kVote;
    for (size_t i = 0; i < group.size; ++i) {
      const Thread& thread = *group.threads[i];
      values[thread.lane()] = thread.wait.value;
      values[kVote] |= uint64_t{thread.wait.value != 0} << thread.lane();
      present |= uint64_t{1} << thread.lane();
    }
    for (size_t i = 0; i < group.size; ++i) {
      Wait& wait = group.threads[i]->wait;
      if ((present >> wait.source & 1u) == 0) {
        fail("thread %u reads lane %u in %s, where that lane takes no part", group.threads[i]->id, wait.source,
             wait.description().c_str());
      }
      wait.value = values[wait.source];
      wait.name = nullptr;
    }
  }

  [[noreturn]] void report_deadlock() {
    for (const Thread& thread : threads_) {
      if (!waits_for_warp(thread)) continue;
      const Group group = find_awaited(thread);
      for (size_t i = 0; i < group.size; ++i) {
        const Wait& other = group.threads[i]->wait;
        if (other.is_same_call(thread.wait)) continue;
        fail("deadlock: thread %u waits in %s for thread %u, which waits in %s", thread.id,
             thread.wait.description().c_str(), group.threads[i]->id, other.description().c_str());
      }
    }
    std::abort();  // unreachable: had all threads waited in __syncthreads, it would have completed
  }

  Launch& launch_;
  std::vector<Thread> threads_;
  size_t num_exited_ = 0;
  Fiber scheduler_;
  char* stacks_;
  void* dynamic_shared_;
};

}  // namespace structout::simt
