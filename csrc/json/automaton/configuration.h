// The configuration of a text of a schema: the stack of the automaton, and what it must
// remember.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "json/automaton/schema_automaton.h"
#include "json/uniqueness/duplicate_candidates.h"
#include "language/embedded.h"

namespace structout::json {

// Frees a list in a loop: destructors that call each other would run out of stack.
template <typename Node>
void free_list(std::shared_ptr<const Node> node, std::shared_ptr<const Node> Node::* link) {
  while (node != nullptr && node.use_count() == 1) {
    std::shared_ptr<const Node> next = std::move(const_cast<Node&>(*node).*link);
    node = std::move(next);
  }
}

// A text, as a list from its last byte to its first, so that configurations share what they
// have in common.
struct TextNode {
  TextNode(char byte, size_t length, std::shared_ptr<const TextNode> before)
      : byte(byte), length(length), before(std::move(before)) {}
  ~TextNode() { free_list(std::move(before), &TextNode::before); }

  char byte;
  size_t length;
  std::shared_ptr<const TextNode> before;
};

// The registers of one object or array: its used keys or items, and its seen keys.
struct Registers {
  std::shared_ptr<const UsedValues> used;
  size_t begin = 0;           // of the present key or item in the text
  PastKeys seen_keys;         // by index in the object's order of names, where they come in any order
  bool is_outer_new = false;  // of an item: the item around it surely differs from earlier ones
};

inline const PastKeys kNoSeenKeys;

inline const PastKeys& seen_keys_of(const Registers* registers) {
  return registers == nullptr ? kNoSeenKeys : registers->seen_keys;
}

// A frame of the stack: a state that waits for a value, and the frames below it.
struct Frame {
  Frame(State state, bool is_item, std::shared_ptr<const Frame> below, std::shared_ptr<const Registers> registers)
      : state(state),
        has_registers(registers != nullptr || (below != nullptr && below->has_registers)),
        has_used((registers != nullptr && registers->used != nullptr) || (below != nullptr && below->has_used)),
        item(is_item            ? this
             : below != nullptr ? below->item
                                : nullptr),
        depth(below == nullptr ? 1 : below->depth + 1),
        below(std::move(below)),
        registers(std::move(registers)) {}
  ~Frame() { free_list(std::move(below), &Frame::below); }

  State state;
  // True if any frame from here down has registers, or used texts in them.
  bool has_registers, has_used;
  const Frame* item;  // the first from here down that waits for an item that is remembered
  uint32_t depth;     // the number of frames from here down
  std::shared_ptr<const Frame> below;
  std::shared_ptr<const Registers> registers;
};

// The configuration of the pushdown automaton after a text: a stack of states, and the
// registers of each. Two texts with equal configurations have the same continuations.
// Configurations share stacks, registers and texts, so copies are cheap;
// CachedConfiguration adds a number and a mask to one that texts share. Reading makes
// states of the automaton, so all configurations of an automaton need one lock.
class Configuration final : public engine::EmbeddedConfiguration {
 public:
  explicit Configuration(SchemaAutomaton& automaton) : Configuration(automaton, automaton.start()) {}
  Configuration(SchemaAutomaton& automaton, State start) : automaton_(&automaton), state_(start) {}

  // Reads another byte. If it is not allowed, the configuration is of no use any more.
  bool read(uint8_t byte);
  bool read(const uint8_t* begin, const uint8_t* end) {
    return std::all_of(begin, end, [this](uint8_t byte) { return read(byte); });
  }

  // True if the text may end here.
  bool is_complete() const;

  // True if the keys and items that have begun can still differ from the used ones. Counts
  // of values decide this where they suffice, and a search for a completion elsewhere.
  bool has_unused() const;

  // The answer for one item around, by counts of values alone. kUnknown if the counts do
  // not decide it.
  enum class Outlook : uint8_t { kLive, kDead, kUnknown };
  Outlook outlook(const Frame& item) const;

  // Finds the duplicate candidates of all items that have begun: earlier items that they
  // could still equal. Copies of this configuration share them.
  void prepare_duplicate_candidates() const;

  // A key of the text within an item: configurations with equal keys can complete the same
  // items.
  std::string key_within(const Frame& item) const;

  // The bytes that every continuation begins with, up to where the text may end.
  std::string forced() const;

  // Configurations of an automaton with equal keys accept the same continuations. None
  // where texts are remembered, or the stack is deep: the key is as long as the stack.
  std::optional<std::string> key() const;

  // Conservative equality: true only if both configurations accept the same continuations.
  // False wherever texts are remembered, as comparing them takes long. The cost grows with
  // the frames that the configurations do not share.
  bool equals(const Configuration& other) const;

  State state() const { return state_; }  // on top of the stack
  const Frame* below() const { return below_.get(); }
  const Registers* registers() const { return registers_.get(); }  // of the state on top
  const PastKeys& seen_keys() const { return seen_keys_of(registers_.get()); }
  SchemaAutomaton& automaton() const { return *automaton_; }

  // Inside a free key, or a string in an item: the cursor in the tree of the used texts, of
  // the object or of the innermost array, after the bytes so far.
  const TextSet::Cursor& used_begin() const { return used_begin_; }

  // True if the innermost item surely differs from the earlier ones. The items around it
  // may still repeat others.
  bool is_new_item() const { return is_new_; }

  // True if keys or items were used that must not come again.
  bool has_used() const {
    return (registers_ != nullptr && registers_->used != nullptr) || (below_ != nullptr && below_->has_used);
  }

  // True if continuations depend on more than states and seen keys: on used values, or on
  // the text of a key or item that has begun.
  bool remembers_text() const { return has_used() || text_ != nullptr; }

 private:
  bool apply(const Action& action, uint8_t byte);
  bool has_registers() const { return registers_ != nullptr || (below_ != nullptr && below_->has_registers); }
  size_t length() const { return text_ == nullptr ? 0 : text_->length; }
  std::string text_since(size_t begin) const;
  void follow_string(State next, uint8_t byte);
  bool complete_item(const Frame& waiting, std::string text);
  const DuplicateCandidates& duplicate_candidates_of(const Frame& item) const;

  SchemaAutomaton* automaton_;
  // The stack: the state on top with its registers, and the frames below.
  State state_;
  std::shared_ptr<const Registers> registers_;
  std::shared_ptr<const Frame> below_;
  TextSet::Cursor used_begin_;
  bool is_new_ = false;
  bool has_free_key_ = false;             // in the items around
  std::shared_ptr<const TextNode> text_;  // while a key or an item is read that is remembered
  // By the registers of the frame that waits for the item.
  mutable std::vector<std::pair<std::shared_ptr<const Registers>, std::shared_ptr<const DuplicateCandidates>>>
      duplicate_candidates_;
};

}  // namespace structout::json
