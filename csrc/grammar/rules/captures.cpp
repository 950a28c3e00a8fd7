#include "grammar/rules/captures.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "base/sorted_set.h"
#include "grammar/lexer/lexer.h"

namespace structout::context_free {

class CaptureParser::Parse {
  static constexpr size_t kNowhere = SIZE_MAX;

  // A position in a text: in front of a byte, after the first `num_tokens` of the tokens
  // without bytes that stand there. `is_again` marks a position in front of a stop (see
  // TerminalOptions::stop) that ended a lexeme and now begins the next one.
  struct Position {
    size_t byte;
    size_t num_tokens;
    bool is_again;
    bool operator<(const Position& other) const {
      return std::tie(byte, num_tokens, is_again) < std::tie(other.byte, other.num_tokens, other.is_again);
    }
  };

  // An Earley item: a rule that began at `origin` has advanced to a node of its
  // automaton. `before` and `inside` are back pointers, from which captures_of() recovers
  // the parse.
  struct Entry {
    uint32_t rule, node;
    Position origin;     // the begin of the rule
    uint32_t before;     // the entry that it continues from, or kNone
    uint32_t inside;     // the entry that ends the rule that was called there, or kNone
    size_t first, last;  // the bytes read so far, without ignored ones around them
  };

  // The entries at one position: an Earley set.
  struct Chart {
    std::vector<uint32_t> entries;
    std::map<std::tuple<uint32_t, uint32_t, Position>, uint32_t> numbers;
    std::map<uint32_t, std::vector<std::pair<uint32_t, uint32_t>>>
        callers;                         // by rule: entries, and the nodes after the calls
    std::map<uint32_t, uint32_t> empty;  // by rule: the entry that ends it where it begins
    bool may_ignore = false;             // true if an ignored terminal may stand here
  };

 public:
  Parse(const CaptureParser& parser, const std::vector<TokenText>& text)
      : parser_(parser), budget_(parser.limits_), lexer_(parser.network_) {
    token_at_.resize(1);
    for (const TokenText& token : text) {
      size_t begin = bytes_.size();
      bytes_ += token.bytes;
      token_at_.resize(bytes_.size() + 1);
      if (token.bytes.empty()) {
        token_at_[begin].without_bytes.push_back(token.id);
      } else {
        token_at_[begin].id = token.id;
        token_at_[begin].end = bytes_.size();
        token_at_[bytes_.size()].begins = true;
      }
    }
  }

  std::optional<std::vector<Capture>> captures() {
    uint32_t root = uint32_t(parser_.rules_.size() - 1);
    Position start{0, 0, false};
    add(start, {root, RuleNfa::kStart, start, kNone, kNone, kNowhere, kNowhere});
    for (auto at = charts_.begin(); at != charts_.end(); ++at) {  // scanning adds later charts
      close(at->first, at->second);
      scan(at->first, at->second);
    }
    for (const auto& [position, chart] : charts_) {
      if (position.byte < bytes_.size() || position.num_tokens < token_at_.back().without_bytes.size()) continue;
      for (uint32_t number : chart.entries) {
        const Entry& entry = entries_[number];
        if (entry.rule == root && node_of(entry).is_accepting) return captures_of(number);
      }
    }
    return std::nullopt;
  }

 private:
  // The token that begins at a byte, and the tokens without bytes in front of it.
  struct TokenAt {
    uint32_t id = kNone;
    size_t end = 0;
    bool begins = false;  // true if a token with bytes ends here
    std::vector<uint32_t> without_bytes;
  };

  const RuleNfa::Node& node_of(const Entry& entry) const { return parser_.rules_[entry.rule].node(entry.node); }

  void add(const Position& position, Entry entry) {
    budget_.spend(1);
    Chart& chart = charts_[position];
    auto [found, is_new] = chart.numbers.try_emplace({entry.rule, entry.node, entry.origin}, uint32_t(entries_.size()));
    if (!is_new) return;
    chart.entries.push_back(uint32_t(entries_.size()));
    entries_.push_back(entry);
  }

  // Returns the entry that follows another once it has read bytes begin ... end.
  static Entry entry_after(const Entry& entry, uint32_t number, uint32_t node, size_t begin, size_t end) {
    return {entry.rule, node, entry.origin, number, kNone, entry.first == kNowhere ? begin : entry.first, end};
  }

  // Advances the entry `caller` over its call, after the called rule has ended with the
  // entry `ended` (Earley's completer).
  void return_to(const Position& position, uint32_t caller, uint32_t target, uint32_t ended) {
    const Entry from = entries_[caller], inside = entries_[ended];
    bool reads_nothing = inside.first == kNowhere;
    add(position, {from.rule, target, from.origin, caller, ended, from.first == kNowhere ? inside.first : from.first,
                   reads_nothing ? from.last : inside.last});
  }

  // Begins the rules that entries call (Earley's predictor), and returns from the rules
  // that may end (the completer). `empty` remembers rules that ended where they began, so
  // that callers which come later also return from them.
  void close(const Position& position, Chart& chart) {
    for (size_t i = 0; i < chart.entries.size(); ++i) {
      uint32_t number = chart.entries[i];
      const Entry entry = entries_[number];
      const RuleNfa::Node& node = node_of(entry);
      for (uint32_t target : node.empty) {
        add(position, {entry.rule, target, entry.origin, number, kNone, entry.first, entry.last});
      }
      for (const Call& call : node.calls) {
        if (is_embedded(call.rule)) continue;
        chart.callers[call.rule].emplace_back(number, call.target);
        add(position, {call.rule, RuleNfa::kStart, position, kNone, kNone, kNowhere, kNowhere});
        auto empty = chart.empty.find(call.rule);
        if (empty != chart.empty.end()) return_to(position, number, call.target, empty->second);
      }
      if (!node.is_accepting) continue;
      bool is_empty = !(entry.origin < position);
      if (is_empty && !chart.empty.try_emplace(entry.rule, number).second) continue;
      const auto& callers = charts_[entry.origin].callers;
      auto found = callers.find(entry.rule);
      if (found == callers.end()) continue;
      for (auto [caller, target] : std::vector(found->second)) return_to(position, caller, target, number);
    }
  }

  bool is_embedded(uint32_t rule) const { return rule >= parser_.rules_.size(); }

  // Earley's scanner: advances entries over the token, the embedded text, the lexeme or the
  // byte here.
  void scan(const Position& position, const Chart& chart) {
    const TokenAt& token = token_at_[position.byte];
    if (position.num_tokens < token.without_bytes.size()) {
      Position next{position.byte, position.num_tokens + 1, false};
      return scan_token(chart, token.without_bytes[position.num_tokens], position.byte, next);
    }
    if (position.byte == bytes_.size()) return;
    if (token.id != kNone) scan_token(chart, token.id, position.byte, {token.end, 0, false});
    scan_embedded(position, chart);
    if (parser_.network_.has_lexer()) return scan_lexeme(position, chart);
    scan_symbol(chart, uint8_t(bytes_[position.byte]), position.byte, {position.byte + 1, 0, false});
  }

  // Advances all entries that read the symbol. It spans from byte `begin` to the position
  // `end`.
  void scan_symbol(const Chart& chart, uint32_t symbol, size_t begin, const Position& end) {
    for (uint32_t number : std::vector(chart.entries)) {
      const Entry entry = entries_[number];
      for (const SymbolEdge& edge : node_of(entry).edges) {
        if (edge.first > symbol || symbol > edge.last) continue;
        add(end, entry_after(entry, number, edge.target, begin, end.byte));
        charts_[end].may_ignore = true;
      }
    }
  }

  void scan_token(const Chart& chart, uint32_t id, size_t begin, const Position& end) {
    scan_symbol(chart, kFirstToken + id, begin, end);
  }

  // Returns the end of the bytes that a lexeme or an embedded text at `from` can take:
  // neither continues past a token without bytes.
  size_t end_of_bytes(size_t from) const {
    for (++from; from < bytes_.size() && token_at_[from].without_bytes.empty();) ++from;
    return from;
  }

  void scan_embedded(const Position& position, const Chart& chart) {
    std::map<uint32_t, std::vector<std::pair<uint32_t, uint32_t>>> begun;  // by language: entries and targets
    for (uint32_t number : chart.entries) {
      for (const Call& call : node_of(entries_[number]).calls) {
        if (is_embedded(call.rule)) begun[call.rule].emplace_back(number, call.target);
      }
    }
    for (const auto& [rule, callers] : begun) {
      for (size_t end : ends_of_embedded(rule - uint32_t(parser_.rules_.size()), position.byte)) {
        for (auto [number, target] : callers) {
          add({end, 0, false}, entry_after(entries_[number], number, target, position.byte, end));
          charts_[{end, 0, false}].may_ignore = true;
        }
      }
    }
  }

  std::vector<size_t> ends_of_embedded(uint32_t language, size_t begin) {
    struct LockedCache {
      explicit LockedCache(std::shared_ptr<engine::EmbeddedCache> cache) : cache(std::move(cache)) {
        this->cache->lock();
      }
      ~LockedCache() { cache->unlock(); }
      std::shared_ptr<engine::EmbeddedCache> cache;
    } locked(parser_.network_.embedded()[language]->embedded_cache());
    const uint8_t* bytes = reinterpret_cast<const uint8_t*>(bytes_.data());
    const uint8_t *at = bytes + begin, *end = bytes + end_of_bytes(begin);
    std::vector<size_t> ends;
    engine::ConfigurationPtr config = locked.cache->start();
    while (at < end) {
      budget_.spend(1);
      config = locked.cache->after(*config, at, end);
      if (config == nullptr) break;
      if (!locked.cache->may_end(*config)) continue;
      ends.push_back(size_t(at - bytes));
      if (!locked.cache->may_continue(*config)) break;
    }
    return ends;
  }

  // Reads the longest lexeme at the position. The lexer follows the terminals that the
  // entries allow there, and the ignored ones if they may stand there, just as the Reader's
  // lexer does.
  void scan_lexeme(const Position& position, const Chart& chart) {
    std::vector<uint32_t> allowed;
    for (uint32_t number : chart.entries) {
      for (const SymbolEdge& edge : node_of(entries_[number]).edges) {
        if (edge.first < kFirstToken) allowed.push_back(edge.first);
      }
    }
    for (uint32_t terminal = 0; terminal < parser_.network_.terminals().size() && chart.may_ignore; ++terminal) {
      if (lexer_.is_ignored(terminal)) allowed.push_back(terminal);
    }
    engine::make_set(allowed);
    uint32_t state = lexer_.start(lexer_.set_of(allowed)), num_tokens = 0;
    size_t at = position.byte;
    for (size_t end = end_of_bytes(at); at < end; ++at) {
      if (at > position.byte && token_at_[at].begins && lexer_.exceeds_limit(state, ++num_tokens)) {
        end_lexeme(position, chart, lexer_.limited(state, num_tokens).accepted, at);
        uint32_t without = lexer_.limited(state, num_tokens).state;
        if (without != Lexer::kStuck) state = without;
      }
      uint32_t next = lexer_.after(state, uint8_t(bytes_[at]), budget_);
      if (next == Lexer::kStuck) break;
      state = next;
    }
    end_lexeme(position, chart, lexer_.accepted(state), at);
  }

  void end_lexeme(const Position& position, const Chart& chart, uint32_t accepted, size_t end) {
    const std::vector<uint32_t> terminals(lexer_.begin(accepted), lexer_.end(accepted));
    for (uint32_t terminal : terminals) {
      if (lexer_.is_ignored(terminal)) return skip(chart, {end, 0, false});
      scan_symbol(chart, terminal, position.byte, {end, 0, false});
      const std::string& stop = parser_.network_.terminals()[terminal].options.stop;
      Position again{end - stop.size(), 0, true};
      if (!stop.empty() && position < again) scan_symbol(chart, terminal, position.byte, again);
    }
  }

  // Copies the entries that wait for a symbol, or with which the text may end, to the
  // position after an ignored lexeme.
  void skip(const Chart& chart, const Position& end) {
    for (uint32_t number : std::vector(chart.entries)) {
      Entry entry = entries_[number];
      entry.before = number;
      entry.inside = kNone;
      bool is_root = entry.rule == parser_.rules_.size() - 1;
      const RuleNfa::Node& node = node_of(entry);
      bool reads_symbols = !node.edges.empty() || std::any_of(node.calls.begin(), node.calls.end(),
                                                              [&](const Call& call) { return is_embedded(call.rule); });
      if (reads_symbols || (is_root && node.is_accepting)) add(end, entry);
    }
    Chart& after = charts_[end];
    after.may_ignore = after.may_ignore || !parser_.network_.ignores_once();
  }

  // Follows the back pointers from the last entry of the text. Returns the rules to report
  // that ended on the way, in the order of their ends.
  std::vector<Capture> captures_of(uint32_t last) const {
    std::vector<Capture> captures;
    std::vector<uint32_t> pending = {last};
    while (!pending.empty()) {  // from the end of the text to its begin, outer rules first
      uint32_t number = pending.back();
      pending.pop_back();
      const Entry& ended = entries_[number];
      uint32_t reference = parser_.captured_[ended.rule];
      bool is_empty = ended.first == kNowhere;
      if (reference != kNone) {
        captures.push_back(
            {reference, is_empty ? ended.origin.byte : ended.first, is_empty ? ended.origin.byte : ended.last});
      }
      std::vector<uint32_t> inside;  // from the last to the first
      for (uint32_t at = number; at != kNone; at = entries_[at].before) {
        if (entries_[at].inside != kNone) inside.push_back(entries_[at].inside);
      }
      pending.insert(pending.end(), inside.rbegin(), inside.rend());
    }
    std::reverse(captures.begin(), captures.end());
    return captures;
  }

  const CaptureParser& parser_;
  engine::Budget budget_;
  Lexer lexer_;
  std::string bytes_;
  std::vector<TokenAt> token_at_;  // by byte
  std::map<Position, Chart> charts_;
  std::vector<Entry> entries_;
};

CaptureParser::CaptureParser(const engine::Rules& rules, uint32_t root, const NetworkOptions& options,
                             const std::vector<uint32_t>& captured, const engine::Limits& limits)
    : limits_(limits), network_(rules, root, options, limits, &rules_), captured_(rules_.size(), kNone) {
  for (uint32_t reference : captured) captured_[rules.pattern().parts[reference].index] = reference;
}

std::optional<std::vector<Capture>> CaptureParser::captures(const std::vector<TokenText>& text) const {
  return Parse(*this, text).captures();
}

}  // namespace structout::context_free
