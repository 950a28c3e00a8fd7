// apply_bitmask on the CPU, split into tiles that threads may run in any order.
#pragma once

#include "common/apply_bitmask.h"

namespace structout::cpu {

class ApplyBitmaskTiles {
 public:
  ApplyBitmaskTiles(const ApplyBitmaskParams& params, int64_t num_threads);
  int64_t size() const;
  int64_t num_threads() const;  // threads worth waking, at most the constructor's num_threads
  void run(int64_t tile) const;

 private:
  ApplyBitmaskParams params_;
  int64_t num_threads_;
  int64_t tile_tokens_;  // a multiple of kBitsPerWord
  int64_t tiles_per_row_;
};

}  // namespace structout::cpu
