// Numbers for the values that a schema lists in `enum` or `const`, and for sets of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "json/document/value.h"

namespace structout::json {

// Numbers constants and sets of constants, so that equal ones have one number: 1.0 equals
// 1, and objects are equal in any order of their keys. The values stay with the caller, who
// must keep them alive. An array is treated like an object whose keys are the indices of
// its items.
class Constants {
 public:
  // `number_of_name`: numbers the names of keys.
  explicit Constants(std::function<uint32_t(const std::string&)> number_of_name)
      : number_of_name_(std::move(number_of_name)) {}

  uint32_t number_of(const Value& value);
  uint32_t set_of(std::vector<uint32_t> constants);

  // The first value that got this number.
  const Value& value(uint32_t constant) const { return *constants_[constant].value; }

  // The constants of a set, in increasing order.
  const std::vector<uint32_t>& operator[](uint32_t set) const { return sets_[set]; }

  // A key of an object, or an index of an array, with the number of its value.
  struct Part {
    uint32_t key;
    uint32_t value;
  };
  const std::vector<Part>& parts(uint32_t constant) const { return constants_[constant].parts; }

  // The constants of a set that have a key, with its values, in increasing order of these.
  // The first call for a set indexes all of its keys; later ones are hash lookups.
  using WithValue = std::vector<std::pair<uint32_t, uint32_t>>;  // a value, and a constant that has it
  const WithValue& with_key(uint32_t set, uint32_t key);

  // The keys of the objects of a set, in increasing order.
  std::vector<uint32_t> keys(uint32_t set) const;

  size_t memory_bytes() const { return memory_bytes_; }

 private:
  struct Constant {
    const Value* value;
    std::vector<Part> parts;
  };

  std::function<uint32_t(const std::string&)> number_of_name_;
  std::vector<Constant> constants_;
  std::unordered_map<std::string, uint32_t> numbers_;  // by a text that equal values share
  std::vector<std::vector<uint32_t>> sets_;
  std::unordered_map<std::string, uint32_t> set_numbers_;
  std::unordered_map<uint32_t, std::unordered_map<uint32_t, WithValue>> by_key_;  // of sets
  size_t memory_bytes_ = 0;
};

}  // namespace structout::json
