#include "automata/character_graph.h"

#include <algorithm>
#include <map>

namespace structout::engine {

namespace {

constexpr uint32_t kNoNode = UINT32_MAX - 1;
constexpr uint32_t kFirstHigh = 0xD800, kNumHigh = 0x400, kFirstLow = 0xDC00, kNumLow = 0x400,
                   kEndOfSurrogates = 0xE000;
constexpr uint32_t kFirstPair = 0x10000;
constexpr int kHexDigits = 4;

struct ShortEscape {
  char letter;
  uint32_t code;
};
constexpr ShortEscape kShortEscapes[] = {{'"', '"'},  {'/', '/'},  {'\\', '\\'}, {'b', 0x08},
                                         {'f', 0x0C}, {'n', 0x0A}, {'r', 0x0D},  {'t', 0x09}};

// The characters that cannot stand for themselves, and those of them with an escape of
// one letter.
const CodePointSet kEscaped{{0x00, 0x1F}, {'"', '"'}, {'\\', '\\'}};
const CodePointSet kShortlyEscaped{{0x08, 0x0A}, {0x0C, 0x0D}, {'"', '"'}, {'\\', '\\'}};

CodePointSet difference(const CodePointSet& set, const CodePointSet& removed) {
  CodePointSet others = set.complement();
  others.add(removed);
  others.normalize();
  return others.complement();
}

// Equal nodes are shared by their edges (`known_`), so the graph of a large set, such as
// every character but a few, stays small.
class GraphBuilder {
 public:
  explicit GraphBuilder(Spelling spelling) : spelling_(spelling) {}

  CharacterGraph build(const CodePointSet& set) {
    std::vector<Edge> edges = utf8_edges(spelling_ == Spelling::kUtf8 ? set : difference(set, kEscaped));
    uint32_t escape = kNoNode;
    if (spelling_ == Spelling::kJson) escape = escape_node(set, set);
    if (spelling_ == Spelling::kJsonCanonical) {
      CodePointSet escaped = difference(set, kEscaped.complement());
      escape = escape_node(escaped, difference(escaped, kShortlyEscaped));
    }
    if (escape != kNoNode) insert(edges, {'\\', '\\', escape});
    if (edges.empty()) return {};
    graph_.push_back(std::move(edges));
    return std::move(graph_);
  }

 private:
  // Units of UTF-16 that lead to one node.
  struct Units {
    uint32_t first, last, target;
    bool operator<(const Units& other) const { return first < other.first; }
  };

  uint32_t node_of(std::vector<Edge> edges) {
    if (edges.empty()) return kNoNode;
    std::vector<uint32_t> key;
    for (const Edge& edge : edges) key.insert(key.end(), {edge.first, edge.last, edge.target});
    auto [found, is_new] = known_.try_emplace(std::move(key), uint32_t(graph_.size()));
    if (is_new) graph_.push_back(std::move(edges));
    return found->second;
  }

  static void append(std::vector<Edge>& edges, Edge edge) {
    if (!edges.empty() && edges.back().target == edge.target && edges.back().last + 1 == edge.first) {
      edges.back().last = edge.last;
    } else {
      edges.push_back(edge);
    }
  }

  static void insert(std::vector<Edge>& edges, Edge edge) {
    auto after = std::find_if(edges.begin(), edges.end(), [&](const Edge& other) { return other.first > edge.first; });
    edges.insert(after, edge);
  }

  std::vector<Edge> utf8_edges(const CodePointSet& set) {
    std::vector<Utf8Sequence> sequences = utf8_sequences(set);
    return utf8_edges(sequences.data(), sequences.data() + sequences.size(), 0);
  }

  // The edges for sequences that agree in their first `depth` bytes.
  std::vector<Edge> utf8_edges(const Utf8Sequence* begin, const Utf8Sequence* end, int depth) {
    std::vector<Edge> edges;
    while (begin < end) {
      ByteRange range = begin->bytes[depth];
      const Utf8Sequence* group_end = begin + 1;
      while (group_end < end && group_end->bytes[depth] == range) ++group_end;
      uint32_t target = begin->length == depth + 1 ? kExit : node_of(utf8_edges(begin, group_end, depth + 1));
      append(edges, {range.first, range.last, target});
      begin = group_end;
    }
    return edges;
  }

  // The node after a backslash: a letter for the characters in `set` that have a short
  // escape, or `u` and hexadecimal digits for those in `numbered`.
  uint32_t escape_node(const CodePointSet& set, const CodePointSet& numbered) {
    std::vector<Edge> edges;
    for (ShortEscape escape : kShortEscapes) {
      if (set.contains(escape.code)) insert(edges, {uint8_t(escape.letter), uint8_t(escape.letter), kExit});
    }
    uint32_t number = hex_node(units_of(numbered), kHexDigits);
    if (number != kNoNode) insert(edges, {'u', 'u', number});
    return node_of(std::move(edges));
  }

  // Characters beyond U+FFFF are written as pairs of surrogates. A surrogate alone is no
  // character.
  std::vector<Units> units_of(const CodePointSet& set) {
    std::vector<Units> units;
    std::vector<std::vector<CodePointRange>> lows(kNumHigh);  // after each high surrogate
    for (const CodePointRange& range : set.ranges()) {
      if (range.first < kFirstHigh) units.push_back({range.first, std::min(range.last, kFirstHigh - 1), kExit});
      if (range.first < kFirstPair && range.last >= kEndOfSurrogates) {
        units.push_back({std::max(range.first, kEndOfSurrogates), std::min(range.last, kFirstPair - 1), kExit});
      }
      if (range.last < kFirstPair) continue;
      uint32_t first = std::max(range.first, kFirstPair) - kFirstPair, last = range.last - kFirstPair;
      for (uint32_t high = first / kNumLow; high <= last / kNumLow; ++high) {
        lows[high].push_back(
            {high == first / kNumLow ? first % kNumLow : 0, high == last / kNumLow ? last % kNumLow : kNumLow - 1});
      }
    }
    for (uint32_t high = 0; high < kNumHigh; ++high) {
      if (lows[high].empty()) continue;
      bool is_as_before = high > 0 && lows[high] == lows[high - 1];
      uint32_t target = is_as_before ? units.back().target : low_surrogate_node(lows[high]);
      units.push_back({kFirstHigh + high, kFirstHigh + high, target});
    }
    std::sort(units.begin(), units.end());
    size_t kept = 0;  // merges neighbours with one target
    for (const Units& next : units) {
      if (kept > 0 && units[kept - 1].target == next.target && units[kept - 1].last + 1 == next.first) {
        units[kept - 1].last = next.last;
      } else {
        units[kept++] = next;
      }
    }
    units.resize(kept);
    return units;
  }

  uint32_t low_surrogate_node(const std::vector<CodePointRange>& lows) {
    std::vector<Units> units;
    for (const CodePointRange& low : lows) units.push_back({kFirstLow + low.first, kFirstLow + low.last, kExit});
    uint32_t number = node_of({{'u', 'u', hex_node(units, kHexDigits)}});
    return node_of({{'\\', '\\', number}});
  }

  // The hexadecimal numbers of `digits` digits in the ranges.
  uint32_t hex_node(const std::vector<Units>& units, int digits) {
    if (units.empty()) return kNoNode;
    if (digits == 0) return units[0].target;
    uint32_t span = 1u << (4 * (digits - 1));
    bool is_full = units.size() == 1 && units[0].first == 0 && units[0].last == 16 * span - 1;
    uint32_t targets[16];
    size_t at = 0;
    for (uint32_t digit = 0; digit < 16; ++digit) {
      if (is_full && digit > 0) {
        targets[digit] = targets[0];
        continue;
      }
      uint32_t first = digit * span, last = first + span - 1;
      while (at < units.size() && units[at].last < first) ++at;
      std::vector<Units> inside;
      for (size_t i = at; i < units.size() && units[i].first <= last; ++i) {
        inside.push_back(
            {std::max(units[i].first, first) - first, std::min(units[i].last, last) - first, units[i].target});
      }
      targets[digit] = hex_node(inside, digits - 1);
    }
    std::vector<Edge> edges;
    for (char first : {'0', 'A', 'a'}) {
      if (first == 'A' && spelling_ == Spelling::kJsonCanonical) continue;
      for (int digit = first == '0' ? 0 : 10; digit < (first == '0' ? 10 : 16); ++digit) {
        if (targets[digit] == kNoNode) continue;
        uint8_t byte = uint8_t(first + (first == '0' ? digit : digit - 10));
        append(edges, {byte, byte, targets[digit]});
      }
    }
    return node_of(std::move(edges));
  }

  const Spelling spelling_;
  CharacterGraph graph_;
  std::map<std::vector<uint32_t>, uint32_t> known_;
};

}  // namespace

CharacterGraph character_graph(const CodePointSet& set, Spelling spelling) { return GraphBuilder(spelling).build(set); }

std::string canonical_spelling(char character) {
  uint8_t code = uint8_t(character);
  if (!kEscaped.contains(code)) return {character};
  for (ShortEscape escape : kShortEscapes) {
    if (escape.code == code) return {'\\', escape.letter};
  }
  const char* digits = "0123456789abcdef";
  return {'\\', 'u', '0', '0', digits[code >> 4], digits[code & 0xF]};
}

}  // namespace structout::engine
