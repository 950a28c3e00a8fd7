#include "json/scalars/listed_texts.h"

#include <algorithm>

namespace structout::json {

using engine::Edge;

uint32_t ListedTexts::child(uint32_t node, uint8_t byte) const {
  const std::vector<Edge>& edges = nodes_[node].edges;
  auto edge = std::lower_bound(edges.begin(), edges.end(), byte, [](const Edge& a, uint8_t b) { return a.first < b; });
  return edge != edges.end() && edge->first == byte ? edge->target : engine::kDead;
}

uint32_t ListedTexts::add_child(uint32_t node, uint8_t byte) {
  uint32_t known = child(node, byte);
  if (known != engine::kDead) return known;
  uint32_t added = uint32_t(nodes_.size());
  nodes_.emplace_back();
  std::vector<Edge>& edges = nodes_[node].edges;
  auto after = std::upper_bound(edges.begin(), edges.end(), byte, [](uint8_t a, const Edge& b) { return a < b.first; });
  edges.insert(after, {byte, byte, added});
  return added;
}

void ListedTexts::add(const std::string& text, uint32_t label) {
  uint32_t node = 0;
  for (char byte : text) node = add_child(node, uint8_t(byte));
  nodes_[node].label = label;
}

void ListedTexts::build() {
  engine::AutomatonBuilder builder;
  for (const Node& node : nodes_) builder.add_state(node.label != kNone, node.edges);
  automaton_ = builder.numbered(0);
  // The automaton numbers its states in the order of a breadth-first search: so do labels_.
  std::vector<uint32_t> order = {0};
  std::vector<bool> is_seen(nodes_.size());
  is_seen[0] = true;
  for (size_t i = 0; i < order.size(); ++i) {
    labels_.push_back(nodes_[order[i]].label);
    for (const Edge& edge : nodes_[order[i]].edges) {
      if (!is_seen[edge.target]) order.push_back(edge.target);
      is_seen[edge.target] = true;
    }
  }
  nodes_.clear();
}

}  // namespace structout::json
