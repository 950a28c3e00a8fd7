#include "json/texts.h"

#include <algorithm>
#include <list>
#include <mutex>

#include "base/hash.h"
#include "json/errors.h"
#include "json/number.h"
#include "masks/character_classes.h"
#include "regular/compile.h"

namespace structout::json {

using engine::Automaton;
using engine::Edge;
using engine::kDead;

namespace {

constexpr uint64_t kWorkPerLanguage = 1024;  // in steps of the budget
constexpr size_t kMaxStates = 1 << 20;
constexpr size_t kMaxEdges = 16 << 20;
constexpr size_t kMaxSharedBytes = 64 << 20;
constexpr size_t kBytesOfPair = 40;             // in a set
constexpr uint32_t kBoundary = 0;               // the syntax state between two characters of a string
constexpr uint8_t kSeparator[] = {0xE2, 0x80};  // U+2028 and U+2029 begin so
constexpr uint32_t kUnlimited = UINT32_MAX - 1;
constexpr size_t kMaxSearched = 2000;
constexpr size_t kMaxPlainStates = 500;
constexpr size_t kMaxListedLength = 256;

}  // namespace

struct Texts::SharedLanguage {
  SharedLanguage(Automaton automaton, const Automaton& syntax);

  Automaton automaton;
  // Pairs of its states with states of the syntax at which it accepts whatever may follow.
  std::unordered_set<uint64_t> is_everything;
  std::vector<uint32_t> distances;  // of each state to the nearest that accepts
};

// Languages that several schemas use, such as those of formats. The oldest go first.
class Texts::SharedLanguages {
 public:
  std::shared_ptr<const SharedLanguage> find(const std::string& name) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = by_name_.find(name);
    if (found == by_name_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return entries_.front().second;
  }

  void add(const std::string& name, std::shared_ptr<const SharedLanguage> language) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (by_name_.count(name) != 0) return;
    bytes_ += size_of(name, *language);
    entries_.emplace_front(name, std::move(language));
    by_name_[name] = entries_.begin();
    while (bytes_ > kMaxSharedBytes && entries_.size() > 1) {
      bytes_ -= size_of(entries_.back().first, *entries_.back().second);
      by_name_.erase(entries_.back().first);
      entries_.pop_back();
    }
  }

 private:
  using Entries = std::list<std::pair<std::string, std::shared_ptr<const SharedLanguage>>>;

  static size_t size_of(const std::string& name, const SharedLanguage& language) {
    return 2 * name.size() + language.automaton.memory_bytes() + kBytesOfPair * language.is_everything.size() +
           language.distances.size() * sizeof(uint32_t);
  }

  std::mutex mutex_;
  Entries entries_;
  std::unordered_map<std::string, Entries::iterator> by_name_;
  size_t bytes_ = 0;
};

namespace {

uint64_t pair_of(uint32_t state, uint32_t syntax_state) { return uint64_t(state) << 32 | syntax_state; }

// The pairs of a state of `automaton` and one of `syntax` that a text leads to, where the
// automaton accepts all that the syntax does.
std::unordered_set<uint64_t> pairs_that_accept_everything(const Automaton& automaton, const Automaton& syntax) {
  std::unordered_map<uint64_t, uint32_t> numbers;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  std::vector<std::vector<uint32_t>> sources;
  std::vector<uint32_t> different;
  auto number_of = [&](uint32_t state, uint32_t other) {
    auto [found, is_new] = numbers.try_emplace(pair_of(state, other), uint32_t(pairs.size()));
    if (is_new) {
      pairs.emplace_back(state, other);
      sources.emplace_back();
    }
    return found->second;
  };
  std::vector<bool> is_different;
  if (automaton.num_states() == 0) return {};
  number_of(0, 0);
  for (uint32_t i = 0; i < pairs.size(); ++i) {
    auto [state, other] = pairs[i];
    bool differs = automaton.accepts(state) != syntax.accepts(other);
    const Edge* edge = automaton.begin(state);
    int byte = 0;  // those below are covered
    for (const Edge* expected = syntax.begin(other); expected < syntax.end(other); ++expected) {
      for (byte = expected->first; byte <= expected->last;) {
        while (edge < automaton.end(state) && edge->last < byte) ++edge;
        bool has_edge = edge < automaton.end(state) && edge->first <= byte;
        differs = differs || !has_edge;
        if (!has_edge) break;
        sources[number_of(edge->target, expected->target)].push_back(i);
        byte = std::min<int>(edge->last, expected->last) + 1;
      }
      // The automaton may have more edges below, which lead to pairs of their own.
      for (const Edge* more = edge; more < automaton.end(state) && more->first <= expected->last; ++more) {
        if (more->last >= expected->first) number_of(more->target, expected->target);
      }
    }
    is_different.push_back(differs);
    if (differs) different.push_back(i);
  }
  while (!different.empty()) {
    uint32_t last = different.back();
    different.pop_back();
    for (uint32_t source : sources[last]) {
      if (is_different[source]) continue;
      is_different[source] = true;
      different.push_back(source);
    }
  }
  std::unordered_set<uint64_t> everything;
  for (uint32_t i = 0; i < pairs.size(); ++i) {
    if (!is_different[i]) everything.insert(pair_of(pairs[i].first, pairs[i].second));
  }
  return everything;
}

std::vector<uint32_t> distances_to_an_end(const Automaton& automaton) {
  std::vector<std::vector<uint32_t>> sources(automaton.num_states());
  std::vector<uint32_t> distances(automaton.num_states(), 0), reached;
  for (uint32_t state = 0; state < automaton.num_states(); ++state) {
    if (automaton.accepts(state)) reached.push_back(state);
    for (const Edge* edge = automaton.begin(state); edge < automaton.end(state); ++edge) {
      sources[edge->target].push_back(state);
    }
  }
  for (size_t i = 0; i < reached.size(); ++i) {
    for (uint32_t source : sources[reached[i]]) {
      if (automaton.accepts(source) || distances[source] != 0) continue;
      distances[source] = distances[reached[i]] + 1;
      reached.push_back(source);
    }
  }
  return distances;
}

}  // namespace

Texts::Texts(Formulas& formulas, engine::Budget& budget, const std::vector<bool>& allowed_bytes)
    : formulas_(formulas),
      budget_(budget),
      strings_(engine::any_string_content()),
      numbers_(any_number()),
      allowed_bytes_(allowed_bytes),
      allows_all_bytes_(std::count(allowed_bytes.begin(), allowed_bytes.end(), true) == 256) {}

Texts::SharedLanguage::SharedLanguage(Automaton given, const Automaton& syntax)
    : automaton(std::move(given)),
      is_everything(pairs_that_accept_everything(automaton, syntax)),
      distances(distances_to_an_end(automaton)) {}

Formula Texts::language(TextKind kind, const std::string& name, const std::function<Automaton()>& compile) {
  auto [found, is_new] = languages_by_name_.try_emplace(name, uint32_t(languages_.size()));
  if (is_new) {
    try {
      static SharedLanguages* const all = new SharedLanguages;  // threads may outlive main
      std::shared_ptr<const SharedLanguage> shared = all->find(name);
      if (shared == nullptr) {
        shared = std::make_shared<const SharedLanguage>(compile(), syntax(kind));
        all->add(name, shared);
      }
      languages_.push_back(
          {kind, {shared, &shared->automaton}, {shared, &shared->is_everything}, {shared, &shared->distances}});
      memory_bytes_ += shared->automaton.memory_bytes();
      budget_.spend(kWorkPerLanguage);
    } catch (...) {
      languages_by_name_.erase(name);
      throw;
    }
  }
  return atom_of(found->second, 0, 0);
}

Formula Texts::listed(TextKind kind, const std::string& name, uint32_t which,
                      const std::function<ListedTexts()>& build) {
  std::shared_ptr<const ListedTexts>& texts = listed_by_name_[name];
  if (texts == nullptr) {
    texts = std::make_shared<const ListedTexts>(build());
    memory_bytes_ += texts->automaton().memory_bytes();
    budget_.spend(texts->automaton().num_states());
  }
  auto [found, is_new] =
      languages_by_name_.try_emplace(name + " " + std::to_string(which), uint32_t(languages_.size()));
  if (is_new) languages_.push_back({kind, {texts, &texts->automaton()}, nullptr, nullptr, texts, which});
  return atom_of(found->second, 0, 0);
}

bool Texts::Language::accepts(uint32_t state) const {
  if (listed == nullptr || which == kAllListed) return automaton->accepts(state);
  uint32_t label = listed->label(state);
  return label != ListedTexts::kNone && (label >> which & 1) != 0;
}

Formula Texts::strings_matching(const std::string& pattern) {
  return language(TextKind::kString, "pattern " + pattern,
                  [&] { return engine::compile_string_content(pattern, budget_.limits); });
}

Formula Texts::exact_strings(std::vector<std::string> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  std::string name = "exact";
  for (const std::string& value : values) name += " " + std::to_string(value.size()) + ":" + value;
  return language(TextKind::kString, name, [&] { return engine::exact_string_contents(values); });
}

Formula Texts::atom_of(uint32_t language, uint32_t state, uint32_t syntax_state) {
  const Language& of = languages_[language];
  if (state >= of.automaton->num_states()) return kNever;
  bool is_everything = of.is_everything != nullptr && of.is_everything->count(pair_of(state, syntax_state)) != 0;
  if (is_everything) return kAlways;
  return formulas_.atom(Op::kText, language, state);
}

Formula Texts::after(Formula formula, uint8_t byte, uint32_t syntax_state, bool ends_character) {
  return formulas_.substitute(formula, [&](Formula atom) {
    FormulaNode node = formulas_[atom];
    if (node.op == Op::kMinLength) return ends_character ? min_length(node.a - 1) : atom;
    return atom_of(node.a, languages_[node.a].automaton->next(node.b, byte), syntax_state);
  });
}

bool Texts::holds_at_end(const TextState& state) const {
  if (!syntax(state.kind).accepts(state.syntax)) return false;
  return formulas_.evaluate(state.formula, [this](Formula atom) {
    const FormulaNode& node = formulas_[atom];
    return node.op == Op::kText && languages_[node.a].accepts(node.b);
  });
}

bool Texts::matches(TextKind kind, Formula formula, const std::string& text) {
  uint32_t state = start(kind, formula);
  for (size_t i = 0; i < text.size() && state != kDead; ++i) {
    const TextState now = states_[state];
    uint32_t syntax_state = syntax(kind).next(now.syntax, uint8_t(text[i]));
    if (syntax_state == kDead) return false;
    bool ends_character = kind == TextKind::kString && syntax_state == kBoundary;
    state = add({kind, syntax_state, after(now.formula, uint8_t(text[i]), syntax_state, ends_character)});
  }
  return state != kDead && accepts(state);
}

uint32_t Texts::add(const TextState& state) {
  uint64_t hash = engine::mix(engine::mix(uint64_t(state.kind), state.syntax), state.formula);
  auto [number, is_new] = state_numbers_.find_or_add(hash, [&](uint32_t other) { return states_[other] == state; });
  if (is_new) {
    states_.push_back(state);
    steps_.emplace_back();
    steps_.back().accepts = holds_at_end(state);
    memory_bytes_ += sizeof(TextState) + sizeof(Steps) + 2 * sizeof(uint64_t);
    budget_.spend(1);
    if (states_.size() > kMaxStates) throw RoomError("schema_text_states", states_.size(), kMaxStates);
  }
  return number;
}

void Texts::expand(uint32_t number) {
  if (steps_[number].is_expanded) return;
  const TextState state = states_[number];
  const Automaton& all = syntax(state.kind);
  // Bytes between two bounds lead to the same state.
  std::vector<bool> is_bound(257);
  for (const Edge* edge = all.begin(state.syntax); edge < all.end(state.syntax); ++edge) {
    is_bound[edge->first] = is_bound[edge->last + 1] = true;
  }
  for (int byte = 1; byte < 256; ++byte) {
    if (allowed_bytes_[byte] != allowed_bytes_[byte - 1]) is_bound[byte] = true;
  }
  std::vector<Formula> atoms;
  formulas_.visit_literals(state.formula, [&atoms](Formula atom, bool) { atoms.push_back(atom); });
  for (Formula atom : atoms) {
    const FormulaNode& node = formulas_[atom];
    if (node.op != Op::kText) continue;
    const Automaton& automaton = *languages_[node.a].automaton;
    for (const Edge* edge = automaton.begin(node.b); edge < automaton.end(node.b); ++edge) {
      is_bound[edge->first] = is_bound[edge->last + 1] = true;
    }
  }
  std::vector<Edge> edges;
  for (const Edge* edge = all.begin(state.syntax); edge < all.end(state.syntax); ++edge) {
    bool ends_character = state.kind == TextKind::kString && edge->target == kBoundary;
    for (int first = edge->first; first <= edge->last;) {
      int last = first;
      while (last < edge->last && !is_bound[last + 1]) ++last;
      if (allowed_bytes_[first]) {
        uint32_t target =
            add({state.kind, edge->target, after(state.formula, uint8_t(first), edge->target, ends_character)});
        if (!edges.empty() && edges.back().target == target && edges.back().last + 1 == first) {
          edges.back().last = uint8_t(last);
        } else {
          edges.push_back({uint8_t(first), uint8_t(last), target});
        }
      }
      first = last + 1;
    }
  }
  edges.shrink_to_fit();
  memory_bytes_ += edges.size() * sizeof(Edge);
  if (memory_bytes_ / sizeof(Edge) > kMaxEdges) throw RoomError("schema_text_edges", edges.size(), kMaxEdges);
  steps_[number].edges = std::move(edges);
  steps_[number].is_expanded = true;
}

uint32_t Texts::next(uint32_t state, uint8_t byte) {
  expand(state);
  for (const Edge& edge : steps_[state].edges) {
    if (byte <= edge.last) return byte >= edge.first ? edge.target : kDead;
  }
  return kDead;
}

uint32_t Texts::num_plain_bytes(uint32_t state) {
  if (!allows_all_bytes_ || !is_between_characters(state) || !is_live(state)) return 0;
  auto split = split_limit(state);
  if (asks_for_length_only(split ? split->first : state)) return split ? split->second - 1 : kUnlimited;
  return allows_plain(state) ? kUnlimited : 0;
}

// Whether a formula without limit asks for nothing but a minimum of the length.
bool Texts::asks_for_length_only(uint32_t state) const {
  Formula formula = states_[state].formula;
  return formula == kAlways || formulas_.op(formula) == Op::kMinLength;
}

// Whether any plain characters may follow, however many. StringTokens tells which are
// plain.
bool Texts::allows_plain(uint32_t start) {
  auto known = allows_plain_.find(start);
  if (known != allows_plain_.end()) return known->second;
  struct Visit {
    uint32_t state;
    uint32_t num_separator_bytes;  // of E2 80 A8 and E2 80 A9 that lead to the state
  };
  std::vector<Visit> seen = {{start, 0}};
  std::unordered_set<uint64_t> is_seen = {start};
  for (size_t i = 0; i < seen.size(); ++i) {
    Visit visit = seen[i];
    expand(visit.state);
    for (const Edge& edge : std::vector<Edge>(steps_[visit.state].edges)) {
      if (edge.first == '\\' && edge.last == '\\') continue;
      if (visit.num_separator_bytes == 2 && edge.first >= 0xA8 && edge.last <= 0xA9) continue;
      if (!is_live(edge.target) || seen.size() > kMaxPlainStates) return allows_plain_[start] = false;
      uint32_t count = visit.num_separator_bytes;
      bool goes_on = count < 2 && edge.first <= kSeparator[count] && kSeparator[count] <= edge.last;
      auto add = [&](uint32_t num_separator_bytes) {
        bool is_new = is_seen.insert(uint64_t(num_separator_bytes) << 32 | edge.target).second;
        if (is_new) seen.push_back({edge.target, num_separator_bytes});
      };
      if (goes_on) add(visit.num_separator_bytes + 1);
      if (!goes_on || edge.first < edge.last) add(0);
    }
  }
  for (const Visit& visit : seen) {
    if (visit.num_separator_bytes == 0) allows_plain_[visit.state] = true;
  }
  return true;
}

uint64_t Texts::repeated_classes(uint32_t state) {
  if (states_[state].kind != TextKind::kString || !is_between_characters(state) || !allows_all_bytes_) return 0;
  auto [found, is_new] = repeated_classes_.try_emplace(state, 0);
  if (!is_new) return found->second;
  expand(state);
  const std::vector<Edge> edges = steps_[state].edges;
  bool has_loop = std::any_of(edges.begin(), edges.end(), [state](const Edge& edge) { return edge.target == state; });
  if (!has_loop) return 0;
  uint64_t others = engine::kOtherCharacters;
  std::map<std::pair<uint32_t, uint32_t>, bool> known;
  for (const Edge& edge : edges) {
    for (int byte = edge.first; byte <= edge.last; ++byte) {
      bool is_ascii = byte < 0x80;
      uint64_t of_byte = is_ascii ? engine::class_of_ascii(uint8_t(byte)) : engine::class_of_character(uint8_t(byte));
      if ((others & of_byte) != 0) continue;
      if (!leads_back(state, edge.target, byte == kSeparator[0] ? 1 : 0, known)) others |= of_byte;
    }
  }
  return found->second = ~others;
}

// Whether all ways to the end of a character lead to `start`. `num_separator_bytes`: those
// of U+2028 and U+2029, which may lead anywhere, that have come.
bool Texts::leads_back(uint32_t start, uint32_t state, uint32_t num_separator_bytes,
                       std::map<std::pair<uint32_t, uint32_t>, bool>& known) {
  if (is_between_characters(state)) return state == start;
  auto [found, is_new] = known.try_emplace({state, num_separator_bytes}, false);
  if (!is_new) return found->second;
  if (!is_live(state)) return false;
  expand(state);
  for (const Edge& edge : std::vector<Edge>(steps_[state].edges)) {
    if (num_separator_bytes == 2 && edge.first >= 0xA8 && edge.last <= 0xA9) continue;
    bool goes_on = num_separator_bytes == 1 && edge.first <= kSeparator[1] && kSeparator[1] <= edge.last;
    if (goes_on && !leads_back(start, edge.target, 2, known)) return false;
    if ((!goes_on || edge.first < edge.last) && !leads_back(start, edge.target, 0, known)) return false;
  }
  return found->second = true;
}

std::optional<std::pair<uint32_t, uint32_t>> Texts::split_limit(uint32_t state) {
  const TextState given = states_[state];
  bool is_conjunction = formulas_.op(given.formula) == Op::kAnd;
  std::vector<Formula> others;
  uint32_t limit = kFar;
  for (Formula literal : is_conjunction ? formulas_.operands(given.formula) : std::vector<Formula>{given.formula}) {
    const FormulaNode& node = formulas_[literal];
    bool is_limit = node.op == Op::kNot && formulas_.op(node.a) == Op::kMinLength;
    if (is_limit) {
      limit = std::min(limit, formulas_[node.a].a);
    } else {
      others.push_back(literal);
    }
  }
  if (limit == kFar) return std::nullopt;
  return std::pair(add({given.kind, given.syntax, formulas_.conjunction(std::move(others))}), limit);
}

uint32_t Texts::distance(uint32_t start) {
  auto known = distances_.find(start);
  if (known != distances_.end()) return known->second;
  uint32_t distance = kFar;
  if (is_live(start)) {
    // All states at one distance, then those that are a character further away.
    std::vector<uint32_t> level = {start}, next_level;
    std::unordered_map<uint32_t, bool> is_seen = {{start, true}};
    for (uint32_t characters = 0; distance == kFar && !level.empty(); ++characters) {
      for (size_t i = 0; i < level.size() && distance == kFar; ++i) {
        uint32_t now = level[i];
        if (steps_[now].accepts) distance = characters;
        expand(now);
        for (size_t edge = 0; edge < steps_[now].edges.size(); ++edge) {
          uint32_t target = steps_[now].edges[edge].target;
          if (!is_live(target) || !is_seen.try_emplace(target, true).second) continue;
          (states_[target].syntax == kBoundary ? next_level : level).push_back(target);
        }
      }
      level.swap(next_level);
      next_level.clear();
    }
  }
  return distances_[start] = distance;
}

uint32_t Texts::largest_distance(uint32_t start) {
  auto known = largest_distances_.find(start);
  if (known != largest_distances_.end()) return known->second;
  std::vector<uint32_t> seen = {start};
  std::unordered_map<uint32_t, bool> is_seen = {{start, true}};
  uint32_t largest = 0;
  for (size_t i = 0; i < seen.size() && largest != kFar; ++i) {
    uint32_t now = seen[i];
    if (is_between_characters(now)) largest = std::max(largest, distance(now));
    if (seen.size() > kMaxSearched) largest = kFar;
    expand(now);
    for (size_t edge = 0; edge < steps_[now].edges.size(); ++edge) {
      uint32_t target = steps_[now].edges[edge].target;
      if (is_live(target) && is_seen.try_emplace(target, true).second) seen.push_back(target);
    }
  }
  for (uint32_t state : seen) largest_distances_.emplace(state, largest);  // an upper bound for those that follow
  return largest;
}

uint32_t Texts::without_far_limit(uint32_t state, uint32_t max_length) {
  auto split = split_limit(state);
  if (!split || split->second <= max_length) return state;
  uint32_t largest = largest_distance(split->first);
  // One character may be incomplete.
  return largest < kFar - 1 && split->second - max_length > largest + 1 ? split->first : state;
}

std::optional<Texts::LengthLimit> Texts::length_limit(uint32_t state) {
  if (states_[state].kind != TextKind::kString || !is_between_characters(state)) return std::nullopt;
  auto split = split_limit(state);
  if (!split) return std::nullopt;
  auto [without, limit] = *split;
  // Where the minimum of the length fits now, it fits after any characters that do.
  uint32_t largest = asks_for_length_only(without) ? 0 : largest_distance(without);
  if (largest >= limit) return std::nullopt;
  return LengthLimit{without, limit - 1 - largest, limit - 1};
}

uint32_t Texts::least_length(uint32_t state) const {
  Formula formula = states_[state].formula;
  uint32_t length = 0;
  auto take = [&](Formula literal) {
    const FormulaNode& node = formulas_[literal];
    if (node.op != Op::kText || languages_[node.a].distances == nullptr) return;
    length = std::max(length, (*languages_[node.a].distances)[node.b]);
  };
  if (formulas_.op(formula) != Op::kAnd) {
    take(formula);
  } else {
    for (Formula literal : formulas_.operands(formula)) take(literal);
  }
  return length;
}

bool Texts::is_live(uint32_t state) {
  if (steps_[state].life != Life::kUnknown) return steps_[state].life == Life::kLive;
  if (auto split = split_limit(state)) {
    bool is_live = distance(split->first) < split->second;
    steps_[state].life = is_live ? Life::kLive : Life::kDead;
    return is_live;
  }
  struct Visit {
    uint32_t state;
    std::vector<uint32_t> targets = {};  // that are left to be visited, the best one last
  };
  // A depth-first search to any text that the formula accepts, which goes where the end is
  // near first: multiples of 86,400 with 17 digits have a million states, and an end five
  // digits away. All states on the way to it are live; if there is none, all visited
  // states are dead.
  std::vector<Visit> path;
  std::vector<uint32_t> visited;
  std::unordered_map<uint32_t, bool> is_visited;
  auto enter = [&](uint32_t entered) {
    is_visited[entered] = true;
    visited.push_back(entered);
    path.push_back({entered});
    if (states_[entered].formula == kNever || steps_[entered].accepts) return;
    expand(entered);
    std::vector<uint32_t>& targets = path.back().targets;
    for (auto edge = steps_[entered].edges.rbegin(); edge != steps_[entered].edges.rend(); ++edge) {
      targets.push_back(edge->target);
    }
    std::stable_sort(targets.begin(), targets.end(),
                     [this](uint32_t a, uint32_t b) { return least_length(a) > least_length(b); });
  };
  enter(state);
  bool found = false;
  while (!path.empty() && !found) {
    Visit& visit = path.back();
    found = steps_[visit.state].accepts;
    if (found) break;
    if (visit.targets.empty()) {
      path.pop_back();
      continue;
    }
    uint32_t target = visit.targets.back();
    visit.targets.pop_back();
    if (steps_[target].life == Life::kLive) {
      found = true;
    } else if (steps_[target].life == Life::kUnknown && is_visited.count(target) == 0) {
      enter(target);
    }
  }
  if (found) {
    for (const Visit& visit : path) steps_[visit.state].life = Life::kLive;
  } else {
    for (uint32_t dead : visited) steps_[dead].life = Life::kDead;
  }
  return found;
}

std::optional<std::vector<std::string>> Texts::all_texts(uint32_t start, size_t max) {
  struct Visit {
    uint32_t state;
    size_t edge;
    int byte;  // the next one of the edge, or -1
  };
  std::vector<std::string> texts;
  if (!is_live(start)) return std::vector<std::string>{};
  if (states_[start].kind == TextKind::kNumber && count(start) > max) return std::nullopt;
  std::vector<Visit> path = {{start, 0, -1}};
  std::string text;
  size_t num_steps = 0;
  while (!path.empty()) {
    Visit& visit = path.back();
    if (visit.edge == 0 && visit.byte < 0) {
      if (accepts(visit.state)) texts.push_back(text);
      // A text of that length comes from a cycle, or from one of many choices.
      if (texts.size() > max || text.size() > kMaxListedLength || ++num_steps > max * kMaxListedLength) {
        return std::nullopt;
      }
      expand(visit.state);
    }
    if (visit.edge == steps_[visit.state].edges.size()) {
      path.pop_back();
      if (!text.empty()) text.pop_back();
      continue;
    }
    const Edge edge = steps_[visit.state].edges[visit.edge];
    if (visit.byte < 0) visit.byte = edge.first;
    if (visit.byte > edge.last || !is_live(edge.target)) {
      ++visit.edge;
      visit.byte = -1;
      continue;
    }
    text.push_back(char(visit.byte++));
    path.push_back({edge.target, 0, -1});
  }
  return texts;
}

std::optional<std::string> Texts::witness(TextKind kind, Formula formula) {
  uint32_t state = start(kind, formula);
  if (!is_live(state)) return std::nullopt;
  // Breadth first, so that the text is a shortest one.
  struct Step {
    uint32_t state, before;
    uint8_t byte;
  };
  std::vector<Step> steps = {{state, 0, 0}};
  std::unordered_map<uint32_t, bool> is_seen = {{state, true}};
  for (uint32_t i = 0; i < steps.size(); ++i) {
    if (accepts(steps[i].state)) {
      std::string text;
      for (uint32_t at = i; at > 0; at = steps[at].before) text.push_back(char(steps[at].byte));
      std::reverse(text.begin(), text.end());
      return text;
    }
    expand(steps[i].state);
    for (size_t edge = 0; edge < steps_[steps[i].state].edges.size(); ++edge) {
      Edge to = steps_[steps[i].state].edges[edge];
      if (is_live(to.target) && is_seen.try_emplace(to.target, true).second) steps.push_back({to.target, i, to.first});
    }
  }
  return std::nullopt;
}

}  // namespace structout::json
