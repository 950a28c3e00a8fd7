// Reads and writes numbers in a fixed byte order, with a checksum at the end.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "base/hash.h"

namespace structout::engine {

class ByteWriter {
 public:
  void write(uint64_t value, int size) {
    for (int i = 0; i < size; ++i, value >>= 8) bytes_.push_back(char(value & 0xFF));
  }
  void write(const std::string& text) { bytes_ += text; }

  // The bytes, followed by their checksum.
  std::string finished() {
    write(hash_bytes(reinterpret_cast<const uint8_t*>(bytes_.data()), bytes_.size()), 8);
    return std::move(bytes_);
  }

 private:
  std::string bytes_;
};

// Every problem is std::invalid_argument.
class ByteReader {
 public:
  ByteReader(const std::string& bytes, const std::string& name) : bytes_(bytes), name_(name) {
    if (bytes.size() < 8) fail("is too short");
    end_ = bytes.size() - 8;
    at_ = end_;
    end_ += 8;
    uint64_t checksum = read(8);
    at_ = 0;
    end_ -= 8;
    if (hash_bytes(reinterpret_cast<const uint8_t*>(bytes.data()), end_) != checksum) fail("is damaged");
  }

  uint64_t read(int size) {
    if (end_ - at_ < size_t(size)) fail("ends too early");
    uint64_t value = 0;
    for (int i = 0; i < size; ++i) value |= uint64_t(uint8_t(bytes_[at_ + size_t(i)])) << (8 * i);
    at_ += size_t(size);
    return value;
  }

  std::string read_text(size_t size) {
    if (end_ - at_ < size) fail("ends too early");
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }

  // Bytes left before the checksum.
  size_t num_left() const { return end_ - at_; }

  void check_header(const std::string& magic, uint32_t version) {
    if (read_text(magic.size()) != magic) fail("is of another kind");
    uint64_t found = read(4);
    if (found != version) fail("has version " + std::to_string(found) + ", not " + std::to_string(version));
  }

  [[noreturn]] void fail(const std::string& problem) const { throw std::invalid_argument(name_ + " " + problem); }

 private:
  const std::string& bytes_;
  const std::string name_;
  size_t at_ = 0, end_ = 0;
};

}  // namespace structout::engine
