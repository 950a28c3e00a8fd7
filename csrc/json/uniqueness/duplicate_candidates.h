// DuplicateCandidates: earlier array items that the current, partially read item could
// still equal (for uniqueItems).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "json/uniqueness/used_values.h"

namespace structout::json {

// Reads the text of an item byte by byte and drops the earlier items that no longer agree
// with it. Example: after the earlier items 1 and {"a": 2}, the text {"a" has one candidate
// left.
//
// If each value can be written in one order of its members only
// (UsedValues::are_written_once), a cursor in the tree of written texts counts the
// candidates, and a byte costs the same however many there are. Otherwise members are
// compared by key, in any order, and each JSON token costs time linear in the number of
// candidates.
class DuplicateCandidates {
 public:
  // `length`: bytes of the text before the item.
  DuplicateCandidates(std::shared_ptr<const UsedValues> used, size_t length);

  void read(const std::string& text);

  size_t size() const { return is_written_once_ ? begin_.count() : items_.size(); }
  size_t length() const { return length_; }  // bytes of the text that was read
  // Returns the budget steps spent by reading since the last call.
  uint64_t take_work() {
    uint64_t work = work_;
    work_ = 0;
    return work;
  }

  // Counts the candidates that a count of this item's possible values includes: they had
  // the same obligations, `value_formulas`, and their keys came in the same order unless
  // `is_order_free`.
  size_t num_with_same_formulas(uint32_t value_formulas, bool is_order_free) const;

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

  // The path into candidate `index`: its arrays and objects around the present value, the
  // outermost first, then the present value if one has begun.
  const Value* const* row(size_t index) const { return values_.data() + index * width_; }

  void read_written(uint8_t byte);
  void read(uint8_t byte);
  // Drops the candidates whose present string or key does not start with text_.
  void compare_begin();
  // Keeps the candidates whose row satisfies the predicate.
  template <typename Predicate>
  void keep(Predicate&& predicate);
  // Keeps the candidates for which child(innermost value) is not null; that child becomes
  // the innermost value.
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
