#include "tags/free_text.h"

#include <array>
#include <stdexcept>

namespace structout::tags {

namespace {

// What is left of a character: of any, or, behind a first byte that rules some out, of
// those that are in Unicode and not longer than needed.
enum Rest : uint8_t { kNothing, kOne, kTwo, kThree, kAfterE0, kAfterED, kAfterF0, kAfterF4, kNumRests, kBroken };

Rest after(Rest rest, uint8_t byte) {
  auto in = [byte](uint8_t first, uint8_t last) { return first <= byte && byte <= last; };
  switch (rest) {
    case kNothing:
      if (in(0x00, 0x7F)) return kNothing;
      if (in(0xC2, 0xDF)) return kOne;
      if (byte == 0xE0) return kAfterE0;
      if (byte == 0xED) return kAfterED;
      if (in(0xE1, 0xEF)) return kTwo;
      if (byte == 0xF0) return kAfterF0;
      if (byte == 0xF4) return kAfterF4;
      return in(0xF1, 0xF3) ? kThree : kBroken;
    case kOne:
      return in(0x80, 0xBF) ? kNothing : kBroken;
    case kTwo:
      return in(0x80, 0xBF) ? kOne : kBroken;
    case kThree:
      return in(0x80, 0xBF) ? kTwo : kBroken;
    case kAfterE0:
      return in(0xA0, 0xBF) ? kOne : kBroken;
    case kAfterED:
      return in(0x80, 0x9F) ? kOne : kBroken;
    case kAfterF0:
      return in(0x90, 0xBF) ? kTwo : kBroken;
    case kAfterF4:
      return in(0x80, 0x8F) ? kTwo : kBroken;
    default:
      return kBroken;
  }
}

// The trie of some texts, with the longest of their beginnings that each text ends with.
class Matcher {
 public:
  static constexpr uint32_t kRoot = 0, kNone = UINT32_MAX;

  Matcher(const std::vector<std::string>& stops, const std::vector<std::string>& excluded, engine::Budget& budget) {
    add_node(kNothing, budget);
    for (size_t i = 0; i < stops.size(); ++i) {
      uint32_t node = add(stops[i], budget);
      nodes_[node].stops.push_back(uint32_t(i));
      nodes_[node].ends_search = true;
    }
    for (const std::string& text : excluded) nodes_[add(text, budget)].ends_search = true;
    link(budget);
  }

  uint32_t size() const { return uint32_t(nodes_.size()); }
  uint32_t next(uint32_t node, uint8_t byte) const { return nodes_[node].next[byte]; }
  Rest rest(uint32_t node) const { return nodes_[node].rest; }

  // Whether a stop or an excluded text ends here, and the stops that count then.
  bool ends_search(uint32_t node) const { return nodes_[node].ends_search; }
  const std::vector<uint32_t>& stops(uint32_t node) const { return nodes_[node].stops; }

 private:
  struct Node {
    std::array<uint32_t, 256> next;
    Rest rest;  // of the last character
    bool ends_search = false;
    std::vector<uint32_t> stops;
  };

  uint32_t add_node(Rest rest, engine::Budget& budget) {
    nodes_.emplace_back();
    nodes_.back().next.fill(kNone);
    nodes_.back().rest = rest;
    budget.check_states(nodes_.size());
    return size() - 1;
  }

  uint32_t add(const std::string& text, engine::Budget& budget) {
    if (text.empty()) throw std::invalid_argument("a text to look for is empty");
    uint32_t node = kRoot;
    for (char character : text) {
      uint8_t byte = uint8_t(character);
      Rest rest = after(nodes_[node].rest, byte);
      if (rest == kBroken) throw std::invalid_argument("a text to look for is not UTF-8");
      uint32_t next = nodes_[node].next[byte];
      if (next == kNone) {
        next = add_node(rest, budget);
        nodes_[node].next[byte] = next;
      }
      node = next;
    }
    if (nodes_[node].rest != kNothing) throw std::invalid_argument("a text to look for is not UTF-8");
    return node;
  }

  // Completes `next`, breadth first.
  void link(engine::Budget& budget) {
    std::vector<uint32_t> longest_ending(nodes_.size(), kRoot), order = {kRoot};
    for (size_t i = 0; i < order.size(); ++i) {
      uint32_t node = order[i];
      Node& from = nodes_[node];
      const Node& shorter = nodes_[longest_ending[node]];
      if (!from.ends_search) {
        from.ends_search = shorter.ends_search;
        from.stops = shorter.stops;
      }
      for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t behind = node == kRoot ? uint32_t(kRoot) : shorter.next[byte];
        if (from.next[byte] == kNone) {
          from.next[byte] = behind;
        } else {
          longest_ending[from.next[byte]] = behind;
          order.push_back(from.next[byte]);
        }
      }
      budget.spend(16);
    }
  }

  std::vector<Node> nodes_;
};

}  // namespace

engine::Branching free_text(const std::vector<std::string>& stops, const std::vector<std::string>& excluded,
                            uint32_t num_anywhere, engine::Budget& budget) {
  Matcher matcher(stops, excluded, budget);
  uint32_t num_stops = uint32_t(stops.size());
  engine::Branching result;
  result.returns.assign(num_stops + num_anywhere, 0);
  // Behind the nodes of the matcher: its root inside of a character.
  uint32_t size = matcher.size() + kNumRests - 1;
  result.states.resize(size);
  for (uint32_t state = 0; state < size; ++state) {
    uint32_t node = state < matcher.size() ? state : uint32_t(Matcher::kRoot);
    Rest rest = state < matcher.size() ? matcher.rest(node) : Rest(state - matcher.size() + 1);
    engine::Branching::State& into = result.states[state];
    budget.spend(16);
    if (state < matcher.size() && matcher.ends_search(node)) {
      into.exits = matcher.stops(node);
      continue;
    }
    for (uint32_t i = 0; rest == kNothing && i < num_anywhere; ++i) into.exits.push_back(num_stops + i);
    for (uint32_t byte = 0; byte < 256; ++byte) {
      Rest left = after(rest, uint8_t(byte));
      if (left == kBroken) continue;
      // No text begins inside of a character: what is not the root knows the character.
      uint32_t target = matcher.next(node, uint8_t(byte));
      if (target == Matcher::kRoot && left != kNothing) target = matcher.size() + left - 1;
      if (target < matcher.size() && matcher.ends_search(target) && matcher.stops(target).empty()) continue;
      if (!into.edges.empty() && into.edges.back().target == target && into.edges.back().last + 1u == byte) {
        into.edges.back().last = uint8_t(byte);
      } else {
        into.edges.push_back({uint8_t(byte), uint8_t(byte), target});
      }
    }
  }
  return result;
}

}  // namespace structout::tags
