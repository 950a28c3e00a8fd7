// A vector that one thread may read while another adds to it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace structout::engine {

// Elements never move: they are in chunks, each twice as large as the one before. A
// thread that knows an index may read the element without a lock, if the element itself
// allows that; add() needs a lock.
template <typename Element>
class StableVector {
 public:
  StableVector() = default;
  StableVector(const StableVector&) = delete;
  ~StableVector() {
    for (const std::atomic<Element*>& chunk : chunks_) delete[] chunk.load(std::memory_order_relaxed);
  }

  Element& operator[](uint32_t index) const {
    uint32_t chunk = chunk_of(index);
    return chunks_[chunk].load(std::memory_order_acquire)[index + kFirstSize - (kFirstSize << chunk)];
  }

  // Adds an element, which has no value yet, and returns its index.
  uint32_t add() {
    uint32_t chunk = chunk_of(size_);
    if (chunks_[chunk].load(std::memory_order_relaxed) == nullptr) {
      chunks_[chunk].store(new Element[size_t(kFirstSize) << chunk](), std::memory_order_release);
    }
    return size_++;
  }

  uint32_t size() const { return size_; }
  size_t memory_bytes() const {
    return size_ == 0 ? 0 : (size_t(kFirstSize) << (chunk_of(size_ - 1) + 1)) * sizeof(Element);
  }

 private:
  static constexpr uint32_t kFirstSize = 64;  // each chunk is twice as large as the one before

  static uint32_t chunk_of(uint32_t index) {
    return 31 - uint32_t(__builtin_clz(index + kFirstSize)) - uint32_t(__builtin_ctz(kFirstSize));
  }

  std::array<std::atomic<Element*>, 26> chunks_{};
  uint32_t size_ = 0;
};

}  // namespace structout::engine
