// The used items that an item may still become.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "json/used_values.h"

namespace structout::json {

// Reads the text of an item byte by byte, and keeps the earlier items that agree with it
// so far. Members are compared by their keys, in any order, unless each value can be
// written in one order only: then the tree of the texts tells how many agree.
class Rivals {
 public:
  // `length`: of the text before the item.
  Rivals(std::shared_ptr<const UsedValues> used, size_t length);

  void read(const std::string& text);

  size_t size() const { return is_written_once_ ? begin_.count() : items_.size(); }
  size_t length() const { return length_; }  // of the text that was read
  // Steps of a budget that reading took since the last call.
  uint64_t take_work() {
    uint64_t work = work_;
    work_ = 0;
    return work;
  }

  // How many are among the texts of `children` that begin as this one: those of which the
  // same was asked, and whose keys came in the same order, if that matters.
  size_t num_alike(uint32_t children, bool is_order_free) const;

 private:
  enum class Mode : uint8_t {
    kValue,       // before a value or the end of an array
    kString,      // inside of a string
    kNumber,      // inside of a number
    kLiteral,     // after offset_ bytes of a literal
    kAfterValue,  // before a comma or the end
    kBeforeKey,   // before a key or the end of an object
    kKey,         // inside of a key
    kColon,       // before a colon
    kDone,
  };
  struct Container {
    bool is_object;
    size_t count = 0;                     // members or items that are complete
    std::vector<std::string> names = {};  // of members
  };

  // For the item `index`: the values around the present one, the outermost first, then the
  // present one if it is known.
  const Value* const* row(size_t index) const { return values_.data() + index * width_; }

  void read_written(uint8_t byte);
  void read(uint8_t byte);
  // Drops those whose present text does not begin as this one.
  void compare_begin();
  template <typename Predicate>
  void keep(Predicate&& predicate);
  // Keeps the items for which child(value around) is not null, as the present value.
  template <typename Child>
  void descend(Child&& child);
  void begin_value(uint8_t byte);
  void complete();
  void close();
  const Value* member(const Value& object, const std::string& name) const;
  bool has_member_that_begins(const Value& object) const;

  std::shared_ptr<const UsedValues> used_;
  bool is_written_once_;
  TextSet::Cursor begin_;  // of the written texts, without the present number
  size_t length_;
  uint64_t work_ = 0;
  std::vector<const UsedItem*> items_;
  std::vector<const Value*> values_;  // rows of `width_` values
  size_t width_ = 1;
  std::vector<Container> open_;
  Mode mode_ = Mode::kValue;
  size_t offset_ = 0;
  bool is_escaped_ = false;
  std::string text_;  // of the present key, string or number
};

}  // namespace structout::json
