// The keys of an object or the items of an array that must not come again. Sets share
// what they have in common, so that positions may keep earlier ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "json/value.h"

namespace structout::json {

// A set of texts: a tree whose edges are labelled with what texts have in common.
class TextSet {
  struct Node {
    std::string label;
    bool is_end = false;
    uint32_t count = 0;  // texts that end here or below
    std::vector<std::shared_ptr<const Node>> children;
  };
  using Link = std::shared_ptr<const Node>;

 public:
  // A place in the set that a text leads to byte by byte. It is valid as long as the set.
  class Cursor {
   public:
    Cursor() = default;

    // Whether no text of the set begins so.
    bool is_dead() const { return node_ == nullptr; }
    bool is_whole() const { return node_ != nullptr && offset_ == node_->label.size() && node_->is_end; }
    // How many texts begin so.
    uint32_t count() const { return node_ == nullptr ? 0 : node_->count; }

    void read(uint8_t byte);

    // Calls visit(byte, cursor) for each byte with which texts go on.
    template <typename Visit>
    void visit_next(Visit&& visit) const {
      if (node_ == nullptr) return;
      if (offset_ < node_->label.size()) {
        visit(uint8_t(node_->label[offset_]), Cursor(node_, offset_ + 1));
      } else {
        for (const Link& child : node_->children) visit(uint8_t(child->label[0]), Cursor(child.get(), 1));
      }
    }

   private:
    friend class TextSet;
    Cursor(const Node* node, size_t offset) : node_(node), offset_(offset) {}

    const Node* node_ = nullptr;
    size_t offset_ = 0;
  };

  size_t size() const { return root_ == nullptr ? 0 : root_->count; }
  Cursor begin() const { return Cursor(root_.get(), 0); }
  bool contains(const std::string& text) const;

  // The set with another text that is not in it. The time grows with the text alone.
  TextSet with(const std::string& text) const;

 private:
  static Link with(const Link& node, const std::string& text, size_t begin);

  Link root_;
};

// An item that is complete, and those before it.
struct UsedItem {
  UsedItem(Value value, uint32_t children, std::shared_ptr<const UsedItem> before)
      : value(std::move(value)), children(children), before(std::move(before)) {}
  ~UsedItem();

  const Value value;        // with texts and names in canonical form
  const uint32_t children;  // what was asked of it: a number of the machine
  std::shared_ptr<const UsedItem> before;
};

struct UsedValues {
  TextSet values;                        // keys as they are spelled, or items in canonical form
  TextSet strings;                       // all strings in items that are arrays or objects
  std::shared_ptr<const UsedItem> last;  // of the items
  // The items as they were written, without spaces and with canonical texts, if each value
  // can be written in one order only.
  TextSet written;
  bool are_written_once = true;
  bool are_alike = true;  // the same was asked of all items
};

}  // namespace structout::json
