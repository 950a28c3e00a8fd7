#include "ptx_vm/races.h"

#include <algorithm>

namespace structout::ptx_vm {
namespace {

void join(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

uint32_t time_of(const Clock& clock, uint32_t warp) { return warp < clock.size() ? clock[warp] : 0; }

// The warp's next accesses come after what others may now know of it.
void advance(Warp& warp) { ++warp.clock[warp.number]; }

}  // namespace

bool RaceDetector::is_watched(uint64_t address) const {
  return std::any_of(watched_.begin(), watched_.end(),
                     [&](const auto& range) { return range.first <= address && address < range.second; });
}

void RaceDetector::begin_launch(uint32_t num_warps) {
  if (watched_.empty() && num_launches_ == 0) {  // one launch after another: nothing is remembered
    devices_.clear();
    published_.clear();
    num_warps_ = 0;
  }
  ++num_launches_;
  Device& device = devices_[std::this_thread::get_id()];
  if (device.number == 0) device.number = static_cast<uint16_t>(devices_.size());
  if (device.num_warps < num_warps) {
    device.first_warp = num_warps_;
    device.num_warps = num_warps;
    num_warps_ += num_warps;
  }
}

void RaceDetector::end_launch() {
  --num_launches_;
  Device& device = devices_.at(std::this_thread::get_id());
  device.clock = device.at_end;
  device.words.clear();
}

MemoryWord& RaceDetector::word_at(Warp& warp, Block* owner, uint64_t address) {
  if (owner == nullptr) {
    return is_watched(address) ? watched_words_[address] : devices_.at(std::this_thread::get_id()).words[address];
  }
  if (owner->words.empty()) owner->words.resize(warp.cluster->launch.shared_bytes() / 4 + 1);
  return owner->words[(address - reinterpret_cast<uint64_t>(owner->shared)) / 4];
}

void RaceDetector::begin_warp(Warp& warp, uint64_t number_in_grid) {
  const Device& device = devices_.at(std::this_thread::get_id());
  warp.number = device.first_warp + static_cast<uint32_t>(number_in_grid);
  warp.device = device.number;
  warp.clock = device.clock;
  warp.clock.resize(std::max<size_t>(warp.clock.size(), num_warps_));
  advance(warp);
}

void RaceDetector::end_warp(Warp& warp) { join(devices_.at(std::this_thread::get_id()).at_end, warp.clock); }

bool RaceDetector::reaches(Scope a, uint16_t device_a, Scope b, uint16_t device_b) {
  const Scope needed = device_a == device_b ? Scope::kDevice : Scope::kSystem;
  return a >= needed && b >= needed;
}

void RaceDetector::check(const Warp& warp, int lane, uint64_t address, const MemoryEvent& earlier,
                         const MemoryEvent& now, const char* what) {
  if (earlier.time == 0 || earlier.warp == warp.number || (earlier.bytes & now.bytes) == 0) return;
  if (earlier.time <= time_of(warp.clock, earlier.warp)) return;
  if (earlier.is_strong && now.is_strong && reaches(earlier.scope, earlier.device, now.scope, now.device)) return;
  fail(warp, lane,
       text_of("data race at 0x%llx with %s of warp %u", static_cast<unsigned long long>(address), what, earlier.warp));
}

void RaceDetector::publish(Warp& warp, uint64_t address, const Access& access) {
  const Clock& clock = access.releases ? warp.clock : warp.at_fence;
  if (clock.empty()) {
    if (!access.reads) published_.erase(address);
    return;
  }
  const Scope scope = access.releases ? access.scope : std::min(access.scope, warp.fence_scope);
  Published& published = published_[address];
  if (access.reads) {  // an atomic continues the release sequence
    join(published.clock, clock);
  } else {
    published.clock = clock;
  }
  published.scope = scope;
  published.device = warp.device;
  if (access.releases) advance(warp);
}

void RaceDetector::acquire(Warp& warp, uint64_t address, const Access& access) {
  const auto found = published_.find(address);
  if (found == published_.end()) return;
  const Published& published = found->second;
  if (!reaches(published.scope, published.device, access.scope, warp.device)) return;
  join(access.acquires ? warp.clock : warp.pending, published.clock);
}

void RaceDetector::access(Warp& warp, int lane, uint64_t address, const Access& access) {
  Block* owner = warp.cluster->owner_of(address);
  if (owner != nullptr && owner != warp.block) {
    if (owner->remote_accesses.size() < warp.clock.size()) owner->remote_accesses.resize(warp.clock.size());
    owner->remote_accesses[warp.number] = warp.clock[warp.number];
  }
  const uint64_t end = address + access.total();
  if (access.is_strong && access.reads) acquire(warp, address, access);
  for (uint64_t at = address & ~uint64_t{3}; at < end; at += 4) {
    const unsigned first = static_cast<unsigned>(std::max(at, address) - at),
                   last = static_cast<unsigned>(std::min(at + 4, end) - at);
    const uint32_t used = access.used_bytes >> (at + first - address);
    const auto bytes = static_cast<uint8_t>(((1u << last) - (1u << first)) & (used << first));
    if (bytes == 0) continue;
    const MemoryEvent now{warp.number, warp.clock[warp.number], warp.device, bytes, access.scope, access.is_strong};
    MemoryWord& word = word_at(warp, owner, at);
    check(warp, lane, at, word.write, now, "a write");
    if (access.writes) {
      for (const MemoryEvent& read : word.reads) check(warp, lane, at, read, now, "a read");
      word.reads.clear();
      word.write = now;
    } else {
      const auto same = std::find_if(word.reads.begin(), word.reads.end(),
                                     [&](const MemoryEvent& read) { return read.warp == now.warp; });
      if (same == word.reads.end()) {
        word.reads.push_back(now);
      } else {
        const uint8_t all_bytes = same->time == now.time ? same->bytes | bytes : bytes;
        *same = now;
        same->bytes = all_bytes;
      }
    }
  }
  if (access.is_strong && access.writes) publish(warp, address, access);
}

void RaceDetector::fence(Warp& warp, Scope scope) {
  join(warp.clock, warp.pending);
  warp.at_fence = warp.clock;
  warp.fence_scope = scope;
  advance(warp);
}

void RaceDetector::meet(Block& block) {
  Clock all;
  for (const Warp& warp : block.warps) join(all, warp.clock);
  for (Warp& warp : block.warps) {
    warp.clock = all;
    advance(warp);
  }
}

// 9.7.13.5: an arrival at the cluster's barrier releases, the end of the wait acquires.
void RaceDetector::arrive(Warp& warp) {
  join(warp.cluster->at_barrier, warp.clock);
  advance(warp);
}

void RaceDetector::leave(Cluster& cluster) {
  for (Block& block : cluster.blocks) {
    for (Warp& warp : block.warps) {
      join(warp.clock, cluster.at_barrier);
      advance(warp);
    }
  }
}

void RaceDetector::end_block(Block& block) {
  Clock known;
  for (const Warp& warp : block.warps) join(known, warp.clock);
  for (uint32_t warp = 0; warp < block.remote_accesses.size(); ++warp) {
    if (block.remote_accesses[warp] <= time_of(known, warp)) continue;
    fail(block.warps[0], 0,
         text_of("block %u of a cluster ends while warp %u may still access its shared memory", block.rank, warp));
  }
}

}  // namespace structout::ptx_vm
