// Lists of texts whose automaton tells which of them was read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "regular/automaton.h"

namespace structout::json {

class ListedTexts {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Adds a text that is not there yet. All states of the texts are apart, so the automaton
  // is not minimal.
  void add(const std::string& text, uint32_t label);

  // To be called once, after all were added.
  void build();

  const engine::Automaton& automaton() const { return automaton_; }

  // The label of the text that leads to a state, or kNone.
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
