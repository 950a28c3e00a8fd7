#include "automata/free_text.h"

#include <array>
#include <map>
#include <stdexcept>
#include <utility>

#include "base/utf8.h"

namespace structout::tags {

namespace utf8 = engine::utf8;

namespace {

// The automaton of Aho and Corasick for some texts. A node stands for the longest suffix
// of the text read so far that is a prefix of one of them.
class Matcher {
 public:
  static constexpr uint32_t kRoot = 0, kNone = UINT32_MAX;

  // `texts[i]` ends with number `i`.
  Matcher(const std::vector<std::string>& texts, engine::Budget& budget) {
    add_node(utf8::kBetween, 0, budget);
    for (size_t i = 0; i < texts.size(); ++i) add(texts[i], uint32_t(i), budget);
    link(budget);
  }

  uint32_t size() const { return uint32_t(nodes_.size()); }
  uint32_t next(uint32_t node, uint8_t byte) const { return nodes_[node].next[byte]; }
  uint32_t depth(uint32_t node) const { return nodes_[node].depth; }
  uint8_t rest(uint32_t node) const { return nodes_[node].rest; }

  // The numbers of the texts that end here, longest first.
  const std::vector<uint32_t>& ending(uint32_t node) const { return nodes_[node].ending; }

 private:
  struct Node {
    std::array<uint32_t, 256> next;
    uint32_t depth;
    uint8_t rest;  // what the last character lacks: a state of utf8
    std::vector<uint32_t> ending;
  };

  uint32_t add_node(uint8_t rest, uint32_t depth, engine::Budget& budget) {
    nodes_.emplace_back();
    nodes_.back().next.fill(kNone);
    nodes_.back().depth = depth;
    nodes_.back().rest = rest;
    budget.check_states(nodes_.size());
    return size() - 1;
  }

  void add(const std::string& text, uint32_t number, engine::Budget& budget) {
    if (text.empty()) throw std::invalid_argument("a text to look for is empty");
    uint32_t node = kRoot;
    for (size_t i = 0; i < text.size(); ++i) {
      uint8_t byte = uint8_t(text[i]);
      uint8_t rest = utf8::after(nodes_[node].rest, byte);
      if (rest == utf8::kInvalid) throw std::invalid_argument("a text to look for is not UTF-8");
      uint32_t next = nodes_[node].next[byte];
      if (next == kNone) {
        next = add_node(rest, uint32_t(i + 1), budget);
        nodes_[node].next[byte] = next;
      }
      node = next;
    }
    if (nodes_[node].rest != utf8::kBetween) throw std::invalid_argument("a text to look for is not UTF-8");
    nodes_[node].ending.push_back(number);
  }

  // Completes `next` and `ending`, breadth first.
  void link(engine::Budget& budget) {
    std::vector<uint32_t> longest_ending(nodes_.size(), kRoot), order = {kRoot};
    for (size_t i = 0; i < order.size(); ++i) {
      uint32_t node = order[i];
      Node& from = nodes_[node];
      const Node& shorter = nodes_[longest_ending[node]];
      if (node != kRoot) from.ending.insert(from.ending.end(), shorter.ending.begin(), shorter.ending.end());
      for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t after = node == kRoot ? uint32_t(kRoot) : shorter.next[byte];
        if (from.next[byte] == kNone) {
          from.next[byte] = after;
        } else {
          longest_ending[from.next[byte]] = after;
          order.push_back(from.next[byte]);
        }
      }
      budget.spend(16);
    }
  }

  std::vector<Node> nodes_;
};

// Collects the states. After an excluded text has ended, the text is allowed only if a
// stop that began before the end of the excluded text completes: such a "saved" state
// counts the bytes since that end. A stop "<end>" may thus contain the excluded text
// "end".
class FreeText {
 public:
  FreeText(const std::vector<std::string>& stops, const std::vector<std::string>& excluded, uint32_t num_anywhere,
           engine::Budget& budget)
      : stops_(stops),
        num_anywhere_(num_anywhere),
        budget_(budget),
        all_(all_of(stops, excluded), budget),
        only_stops_(stops, budget) {}

  engine::Branching build() {
    result_.returns.assign(stops_.size() + num_anywhere_, 0);
    uint32_t num_searching = all_.size() + utf8::kNumStates - 1;  // after the nodes: the root inside of a character
    result_.states.resize(num_searching);
    find_begun_stops();
    for (uint32_t state = 0; state < num_searching; ++state) add_edges_of_search(state);
    for (size_t i = 0; i < saved_.size(); ++i) add_edges_of_saved(saved_[i]);
    return std::move(result_);
  }

 private:
  struct Saved {
    uint32_t state, node, num_bytes;  // node of only_stops_; bytes since the end of the excluded text
  };

  static std::vector<std::string> all_of(std::vector<std::string> stops, const std::vector<std::string>& excluded) {
    stops.insert(stops.end(), excluded.begin(), excluded.end());
    return stops;
  }

  // The longest stops among texts that end in one place.
  std::vector<uint32_t> longest_stops(const std::vector<uint32_t>& ending) const {
    std::vector<uint32_t> longest;
    for (uint32_t text : ending) {
      if (text >= stops_.size()) continue;
      if (!longest.empty() && stops_[text].size() < stops_[longest[0]].size()) break;
      longest.push_back(text);
    }
    return longest;
  }

  // Maps each node of `all_` to the node of `only_stops_` for the longest prefix of a
  // stop that its text ends with.
  void find_begun_stops() {
    begun_.assign(all_.size(), Matcher::kNone);
    begun_[Matcher::kRoot] = Matcher::kRoot;
    std::vector<uint32_t> pending = {Matcher::kRoot};
    for (size_t i = 0; i < pending.size(); ++i) {
      for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t next = all_.next(pending[i], uint8_t(byte));
        if (begun_[next] != Matcher::kNone) continue;
        begun_[next] = only_stops_.next(begun_[pending[i]], uint8_t(byte));
        pending.push_back(next);
      }
    }
  }

  void add_edges_of_search(uint32_t state) {
    uint32_t node = state < all_.size() ? state : uint32_t(Matcher::kRoot);
    uint8_t rest = state < all_.size() ? all_.rest(node) : uint8_t(state - all_.size() + 1);
    budget_.spend(16);
    if (state < all_.size() && !all_.ending(node).empty()) {
      result_.states[state].exits = longest_stops(all_.ending(node));
      return;
    }
    for (uint32_t i = 0; rest == utf8::kBetween && i < num_anywhere_; ++i) {
      result_.states[state].exits.push_back(uint32_t(stops_.size()) + i);
    }
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint8_t left = utf8::after(rest, uint8_t(byte));
      if (left == utf8::kInvalid) continue;
      // No text begins inside of a character: what is not the root knows the character.
      uint32_t target = all_.next(node, uint8_t(byte));
      if (target == Matcher::kRoot && left != utf8::kBetween) target = all_.size() + left - 1;
      if (target < all_.size() && !all_.ending(target).empty() && longest_stops(all_.ending(target)).empty()) {
        if (begun_[target] != Matcher::kRoot) add_edge(state, uint8_t(byte), saved(begun_[target], 0));
        continue;
      }
      add_edge(state, uint8_t(byte), target);
    }
  }

  void add_edges_of_saved(Saved from) {
    budget_.spend(16);
    for (uint32_t byte = 0; byte < 256; ++byte) {
      if (utf8::after(only_stops_.rest(from.node), uint8_t(byte)) == utf8::kInvalid) continue;
      uint32_t node = only_stops_.next(from.node, uint8_t(byte));
      if (only_stops_.depth(node) <= from.num_bytes + 1) continue;  // begun too late
      std::vector<uint32_t> ending = longest_stops(only_stops_.ending(node));
      if (!ending.empty() && stops_[ending[0]].size() <= from.num_bytes + 1) continue;
      uint32_t target = saved(node, ending.empty() ? from.num_bytes + 1 : 0);
      result_.states[target].exits = std::move(ending);
      add_edge(from.state, uint8_t(byte), target);
    }
  }

  uint32_t saved(uint32_t node, uint32_t num_bytes) {
    auto [found, is_new] = saved_states_.try_emplace({node, num_bytes}, uint32_t(result_.states.size()));
    if (is_new) {
      result_.states.emplace_back();
      budget_.check_states(result_.states.size());
      if (longest_stops(only_stops_.ending(node)).empty()) saved_.push_back({found->second, node, num_bytes});
    }
    return found->second;
  }

  void add_edge(uint32_t state, uint8_t byte, uint32_t target) {
    std::vector<engine::Edge>& edges = result_.states[state].edges;
    if (!edges.empty() && edges.back().target == target && edges.back().last + 1u == byte) {
      edges.back().last = byte;
    } else {
      edges.push_back({byte, byte, target});
    }
  }

  const std::vector<std::string>& stops_;
  const uint32_t num_anywhere_;
  engine::Budget& budget_;
  Matcher all_;  // of stops and excluded texts
  Matcher only_stops_;
  std::vector<uint32_t> begun_;  // by node of all_: that of only_stops_
  std::vector<Saved> saved_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> saved_states_;
  engine::Branching result_;
};

}  // namespace

engine::Branching free_text(const std::vector<std::string>& stops, const std::vector<std::string>& excluded,
                            uint32_t num_anywhere, engine::Budget& budget) {
  return FreeText(stops, excluded, num_anywhere, budget).build();
}

}  // namespace structout::tags
