// The strongly connected components of a graph.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace structout::engine {

// Numbers the strongly connected components of a graph (Tarjan, "Depth-first search and
// linear graph algorithms", 1972), without recursion.
class Components {
 public:
  explicit Components(const std::vector<std::vector<uint32_t>>& targets)
      : targets_(targets),
        order_(targets.size(), kUnvisited),
        lowest_(targets.size()),
        component_(targets.size(), kUnvisited) {
    for (uint32_t node = 0; node < targets.size(); ++node) {
      if (order_[node] == kUnvisited) visit(node);
    }
  }

  // A component has a higher number than those that it leads to.
  uint32_t operator[](uint32_t node) const { return component_[node]; }
  uint32_t size() const { return num_components_; }

 private:
  struct Frame {
    uint32_t node;
    size_t num_followed;
  };

  void enter(uint32_t node) {
    order_[node] = lowest_[node] = num_visited_++;
    open_.push_back(node);
    frames_.push_back({node, 0});
  }

  void visit(uint32_t start) {
    enter(start);
    while (!frames_.empty()) {
      uint32_t node = frames_.back().node;
      if (frames_.back().num_followed < targets_[node].size()) {
        uint32_t target = targets_[node][frames_.back().num_followed++];
        if (order_[target] == kUnvisited) {
          enter(target);
        } else if (component_[target] == kUnvisited) {
          lowest_[node] = std::min(lowest_[node], order_[target]);
        }
        continue;
      }
      frames_.pop_back();
      if (!frames_.empty()) {
        uint32_t& lowest = lowest_[frames_.back().node];
        lowest = std::min(lowest, lowest_[node]);
      }
      if (lowest_[node] == order_[node]) close(node);
    }
  }

  void close(uint32_t root) {
    uint32_t node;
    do {
      node = open_.back();
      open_.pop_back();
      component_[node] = num_components_;
    } while (node != root);
    ++num_components_;
  }

  static constexpr uint32_t kUnvisited = UINT32_MAX;

  const std::vector<std::vector<uint32_t>>& targets_;
  std::vector<uint32_t> order_, lowest_, component_, open_;
  std::vector<Frame> frames_;
  uint32_t num_visited_ = 0, num_components_ = 0;
};

}  // namespace structout::engine
