// Lists of texts as minimal automata, built in one pass over the sorted texts (Daciuk,
// Mihov, Watson and Watson, "Incremental construction of minimal acyclic finite-state
// automata", 2000).
#include <algorithm>

#include "automata/compile.h"
#include "base/hash.h"
#include "base/state_numbers.h"

namespace structout::engine {

namespace {

// `path_` has the states along the last text that may still get edges. States off that path
// are final: equal ones are one state in `builder_`.
class ChoiceBuilder {
 public:
  // Texts come in order.
  void add(const std::string& text) {
    size_t shared = 0;
    while (shared < text.size() && shared < bytes_.size() && bytes_[shared] == uint8_t(text[shared])) ++shared;
    finish(shared);
    for (size_t i = shared; i < text.size(); ++i) {
      bytes_.push_back(uint8_t(text[i]));
      if (path_.size() <= bytes_.size()) path_.emplace_back();
      path_[bytes_.size()].edges.clear();
      path_[bytes_.size()].is_accepting = false;
    }
    path_[bytes_.size()].is_accepting = true;
  }

  Automaton build() {
    finish(0);
    return builder_.numbered(register_state(path_[0]));
  }

 private:
  struct Unfinished {
    std::vector<Edge> edges;
    bool is_accepting = false;
  };

  // Registers the states below `length` bytes of the last text: nothing more is added
  // to them.
  void finish(size_t length) {
    while (bytes_.size() > length) {
      uint32_t target = register_state(path_[bytes_.size()]);
      uint8_t byte = bytes_.back();
      bytes_.pop_back();
      std::vector<Edge>& edges = path_[bytes_.size()].edges;
      if (!edges.empty() && edges.back().target == target && edges.back().last + 1 == byte) {
        edges.back().last = byte;
      } else {
        edges.push_back({byte, byte, target});
      }
    }
  }

  // The number of an equal state, or of a new one.
  uint32_t register_state(const Unfinished& state) {
    uint64_t hash = state.is_accepting;
    for (const Edge& edge : state.edges) {
      hash = mix(hash, uint64_t(edge.target) << 16 | uint64_t(edge.first) << 8 | edge.last);
    }
    auto is_equal = [&](uint32_t other) { return builder_.is_equal(other, state.is_accepting, state.edges); };
    auto [number, is_new] = numbers_.find_or_add(hash, is_equal);
    if (is_new) builder_.add_state(state.is_accepting, state.edges);
    return number;
  }

  std::vector<uint8_t> bytes_;                                 // of the last text, as far as it is unfinished
  std::vector<Unfinished> path_ = std::vector<Unfinished>(1);  // the states along them
  StateNumbers numbers_;
  AutomatonBuilder builder_;
};

}  // namespace

Automaton compile_choices(std::vector<std::string> texts) {
  if (texts.empty()) return {};
  std::sort(texts.begin(), texts.end(), [](const std::string& a, const std::string& b) {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(),
                                        [](char x, char y) { return uint8_t(x) < uint8_t(y); });
  });
  ChoiceBuilder builder;
  for (const std::string& text : texts) builder.add(text);
  return builder.build();
}

}  // namespace structout::engine
