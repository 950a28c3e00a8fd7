// A trie of listed texts as an automaton whose accepting states tell the text that led there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "automata/automaton.h"

namespace structout::json {

// The texts of an `enum`'s strings or numbers, for example, each labelled with the index of
// its value. Two texts may share a label, as 1 and 1.0 do.
class ListedTexts {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Adds a text that is not there yet. Different prefixes lead to different states, so that
  // a state tells its text: the automaton is a trie and not minimal.
  void add(const std::string& text, uint32_t label);

  // Makes the automaton. Call it once, after the last add().
  void build();

  const engine::Automaton& automaton() const { return automaton_; }

  // The label of the text that ends in a state, or kNone if none does.
  uint32_t label(uint32_t state) const { return labels_[state]; }

 private:
  struct Node {
    std::vector<engine::Edge> edges = {};  // of one byte each, in increasing order
    uint32_t label = kNone;
  };

  uint32_t child(uint32_t node, uint8_t byte) const;
  uint32_t add_child(uint32_t node, uint8_t byte);

  std::vector<Node> nodes_ = std::vector<Node>(1);
  engine::Automaton automaton_;
  std::vector<uint32_t> labels_;
};

}  // namespace structout::json
