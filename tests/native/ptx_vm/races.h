// Data races: two accesses of the same bytes by different warps, of which one writes and
// one is not strong at the scope of both, and which nothing orders (PTX ISA 9.0, 8.7).
//
// Every warp counts its own time and knows how far it has seen the others': a vector
// clock. Barriers join the clocks of those who meet. A release publishes a clock at an
// address, from where an acquire takes it; a fence makes the strong accesses before it
// acquire and those after it release. So a race is found in whichever order the
// accesses ran. Races between lanes of one warp are not found.
//
// Global memory is watched within one launch, and from launch to launch where the
// program says that devices share it (`watch`). A device is a thread of the program that
// launches.
#pragma once

#include <thread>
#include <unordered_map>

#include "ptx_vm/machine.h"

namespace structout::ptx_vm {

struct RaceDetector {
  void watch(uint64_t begin, uint64_t end) { watched_.emplace_back(begin, end); }
  void watch_nothing() {
    watched_.clear();
    watched_words_.clear();
  }

  // A launch begins after everything that its device did before, and ends before
  // everything that follows.
  void begin_launch(uint32_t num_warps);
  void end_launch();
  void begin_warp(Warp& warp, uint64_t number_in_grid);
  void end_warp(Warp& warp);

  void access(Warp& warp, int lane, uint64_t address, const Access& access);
  void fence(Warp& warp, Scope scope);
  void meet(Block& block);
  void arrive(Warp& warp);
  void leave(Cluster& cluster);
  void end_block(Block& block);

 private:
  using Words = std::unordered_map<uint64_t, MemoryWord>;
  struct Published {
    Clock clock;
    Scope scope;
    uint16_t device;
  };
  struct Device {
    uint16_t number = 0;  // from 1 on
    uint32_t first_warp = 0, num_warps = 0;
    Clock clock, at_end;
    Words words;  // of global memory, in the current launch
  };

  bool is_watched(uint64_t address) const;
  MemoryWord& word_at(Warp& warp, Block* owner, uint64_t address);
  void check(const Warp& warp, int lane, uint64_t address, const MemoryEvent& earlier, const MemoryEvent& now,
             const char* what);
  void publish(Warp& warp, uint64_t address, const Access& access);
  void acquire(Warp& warp, uint64_t address, const Access& access);
  static bool reaches(Scope a, uint16_t device_a, Scope b, uint16_t device_b);

  std::vector<std::pair<uint64_t, uint64_t>> watched_;
  std::map<std::thread::id, Device> devices_;
  uint32_t num_warps_ = 0, num_launches_ = 0;  // of all devices; that are running
  Words watched_words_;
  std::unordered_map<uint64_t, Published> published_;
};

}  // namespace structout::ptx_vm
