// UsedValues: the keys of an object or the items of an array that have come and must not
// come again. Sets are persistent: a new one shares its nodes with the one before, so
// configurations keep theirs for rollback and drafts at little cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "json/document/value.h"

namespace structout::json {

// An immutable set of texts, as a radix tree: the label of a node is what all texts below
// it have in common there.
class TextSet {
  struct Node {
    std::string label;
    bool is_end = false;
    uint32_t count = 0;  // texts that end here or below
    std::vector<std::shared_ptr<const Node>> children;
  };
  using Link = std::shared_ptr<const Node>;

 public:
  // A point in the tree that a text leads to byte by byte. It is valid as long as the set.
  class Cursor {
   public:
    Cursor() = default;

    // True if no text of the set starts with the bytes so far.
    bool is_dead() const { return node_ == nullptr; }
    // True if the bytes so far are a text of the set.
    bool is_whole() const { return node_ != nullptr && offset_ == node_->label.size() && node_->is_end; }
    // The number of texts that start with the bytes so far.
    uint32_t count() const { return node_ == nullptr ? 0 : node_->count; }

    void read(uint8_t byte);

    // Calls visit(byte, cursor) for each byte with which texts continue.
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

  // The set with another text, which must not be in it. Copies the nodes on the way to it
  // alone, so the time grows with the length of the text, not with the size of the set.
  TextSet with(const std::string& text) const;

 private:
  static Link with(const Link& node, const std::string& text, size_t begin);

  Link root_;
};

// A complete item, linked to the one before it.
struct UsedItem {
  UsedItem(Value value, uint32_t value_formulas, std::shared_ptr<const UsedItem> before)
      : value(std::move(value)), value_formulas(value_formulas), before(std::move(before)) {}
  ~UsedItem();

  const Value value;              // with texts and names in canonical form
  const uint32_t value_formulas;  // its obligations: a number of the automaton
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
  bool have_same_formulas = true;  // all items had the same obligations
};

}  // namespace structout::json
