// The interface by which a program has the machine run a kernel: plain C, so that Python and the test
// programs, which load the machine as a library, can both.
#pragma once

#include <cstdint>

extern "C" {

enum { kPtxMaxTargets = 64 };

struct PtxSize {
  uint32_t x, y, z;
};

struct PtxLaunch {
  const char* kernel;  // its name in PTX, or the name that g++ gives the same function
  PtxSize grid, block;
  uint32_t cluster_blocks;  // 1: no cluster
  uint32_t dynamic_shared_bytes;
  const void* const* arguments;
  // Finds where multimem.st stores: fills in up to kPtxMaxTargets addresses and returns
  // their number, 0 if this is no multicast address. May be null.
  int (*find_targets)(uint64_t multicast, uint64_t* targets);
};

struct PtxOptions {
  uint64_t seed;  // 0: a fixed order
  uint64_t max_instructions;
  bool finds_races, finds_undefined, counts_memory;
  bool allows_equal_stores;  // Triton's threads store one value to one address together: no race
};

// Reads a module. Returns null if it cannot, and then ptx_vm_error tells why.
void* ptx_vm_load(const char* text);
void ptx_vm_unload(void* module);

// Runs a kernel to its end. Returns null or what is wrong.
const char* ptx_vm_launch(void* module, const PtxLaunch* launch, const PtxOptions* options);
const char* ptx_vm_error();

// Memory that several devices share, where races are found from launch to launch.
void ptx_vm_watch(uint64_t begin, uint64_t end);
void ptx_vm_watch_nothing();

// Counters of each kernel that ran, and how often each instruction of it ran, as JSON.
const char* ptx_vm_report(void* module);

// The forms of the table of opcodes, one a line.
const char* ptx_vm_forms();
}
