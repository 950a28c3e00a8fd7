#include "regular/lazy_product.h"

#include <algorithm>
#include <stdexcept>

namespace structout::engine {

namespace {

constexpr size_t kWordBits = 64;

void insert(ComponentSet& set, uint32_t component) {
  set[component / kWordBits] |= uint64_t(1) << component % kWordBits;
}

bool contains(const ComponentSet& set, int64_t component) {
  return set[size_t(component) / kWordBits] >> (size_t(component) % kWordBits) & 1;
}

// Three-valued logic for conditions on later texts. kNot mirrors the order, kAnd is the
// minimum, kOr the maximum.
enum class Truth : uint8_t { kFalse, kUnknown, kTrue };

// Evaluates a condition. `truth_of` returns the Truth of a component number.
template <typename TruthOf>
Truth evaluate(const Condition& condition, TruthOf truth_of) {
  std::vector<Truth> operands;
  for (int64_t step : condition) {
    if (step >= 0) {
      operands.push_back(truth_of(step));
    } else if (step == kTrue || step == kFalse) {
      operands.push_back(step == kTrue ? Truth::kTrue : Truth::kFalse);
    } else if (step == kNot) {
      operands.back() = Truth(uint8_t(Truth::kTrue) - uint8_t(operands.back()));
    } else {
      Truth other = operands.back();
      operands.pop_back();
      operands.back() = step == kAnd ? std::min(operands.back(), other) : std::max(operands.back(), other);
    }
  }
  return operands.back();
}

bool holds(const Condition& condition, const ComponentSet& verdict) {
  return evaluate(condition, [&](int64_t component) {
           return contains(verdict, component) ? Truth::kTrue : Truth::kFalse;
         }) == Truth::kTrue;
}

bool may_hold_later(const Condition& condition, const ComponentSet& live) {
  return evaluate(condition, [&](int64_t component) {
           return contains(live, component) ? Truth::kUnknown : Truth::kFalse;
         }) != Truth::kFalse;
}

}  // namespace

LazyProduct::LazyProduct(const std::vector<Component>& components, const Limits& limits)
    : num_components_(uint32_t(components.size())), budget_(limits) {
  Pattern pattern;
  std::vector<uint32_t> parts;
  for (const Component& component : components) {
    if (const std::string* regex = std::get_if<std::string>(&component)) {
      parts.push_back(parse_regex(*regex, limits, pattern));
      continue;
    }
    Part part{PartKind::kAutomaton};
    part.index = uint32_t(pattern.automata.size());
    pattern.automata.push_back(std::get<Automaton>(component));
    pattern.parts.push_back(std::move(part));
    parts.push_back(uint32_t(pattern.parts.size() - 1));
  }
  nfa_ = build_nfa(pattern, parts, Spelling::kUtf8, budget_);
  subsets_ = std::make_unique<SubsetStates>(nfa_, budget_);
  subsets_->add_start(nfa_.start, true);
  num_states_ = subsets_->size();
}

LazyProduct::~LazyProduct() = default;

const SubsetStates::Expansion& LazyProduct::expand(uint32_t state) try {
  const SubsetStates::Expansion& expansion = subsets_->expand(state);
  num_states_ = subsets_->size();
  return expansion;
} catch (const LimitError&) {
  num_states_ = subsets_->size();
  throw;
}

const LazyProduct::State& LazyProduct::expanded(uint32_t number) {
  if (states_.size() <= number) states_.resize(number + 1);
  if (states_[number].is_expanded) return states_[number];
  budget_.check_states(subsets_->size());  // a full product must not grow with each attempt
  const SubsetStates::Expansion& expansion = expand(number);
  State& state = states_[number];
  size_t num_words = (num_components_ + kWordBits - 1) / kWordBits;
  state.verdict.assign(num_words, 0);
  auto component_of = [this](uint32_t node) {
    const std::vector<uint32_t>& ends = nfa_.component_ends;
    return uint32_t(std::upper_bound(ends.begin(), ends.end(), node) - ends.begin());
  };
  for (uint32_t node : expansion.accepting) insert(state.verdict, component_of(node));
  state.live = state.verdict;
  for (uint32_t node : expansion.others) insert(state.live, component_of(node));
  for (const Edge& edge : expansion.edges) {
    if (!subsets_->is_empty(edge.target)) state.edges.push_back(edge);
  }
  state.is_expanded = true;
  return state;
}

uint32_t LazyProduct::next(const State& state, uint8_t byte) {
  auto edge = std::lower_bound(state.edges.begin(), state.edges.end(), byte,
                               [](const Edge& other, uint8_t value) { return other.last < value; });
  return edge != state.edges.end() && edge->first <= byte ? edge->target : kDead;
}

uint32_t LazyProduct::next(uint32_t state, uint8_t byte) {
  std::lock_guard<std::mutex> lock(mutex_);
  budget_.restart();
  return next(expanded(state), byte);
}

ComponentSet LazyProduct::verdict(uint32_t state) {
  std::lock_guard<std::mutex> lock(mutex_);
  budget_.restart();
  return expanded(state).verdict;
}

ComponentSet LazyProduct::live(uint32_t state) {
  std::lock_guard<std::mutex> lock(mutex_);
  budget_.restart();
  return expanded(state).live;
}

void LazyProduct::check(const Condition& condition) const {
  size_t num_operands = 0;
  for (int64_t step : condition) {
    size_t num_taken = step == kNot ? 1 : step == kAnd || step == kOr ? 2 : 0;
    bool is_known = step < 0 ? step >= kFalse : step < int64_t(num_components_);
    if (!is_known || num_operands < num_taken) throw std::invalid_argument("a condition is not well formed");
    num_operands += 1 - num_taken;
  }
  if (num_operands != 1) throw std::invalid_argument("a condition is not well formed");
}

std::optional<std::string> LazyProduct::find(uint32_t start, const Condition& condition, uint64_t max_states) {
  check(condition);
  std::lock_guard<std::mutex> lock(mutex_);
  budget_.restart();
  // Once no component is live, every verdict stays false.
  bool holds_without_components = holds(condition, ComponentSet((num_components_ + kWordBits - 1) / kWordBits));
  struct Step {
    uint32_t state;
    size_t before;  // index of the step that led here
    size_t length;  // of the text that led here
    uint8_t byte;   // the last of that text
  };
  std::vector<Step> steps = {{start, 0, 0, 0}};
  std::vector<uint8_t> is_seen(start + 1);
  is_seen[start] = 1;
  auto text_to = [&steps](size_t step) {
    std::string text;
    for (; step > 0; step = steps[step].before) text.push_back(char(steps[step].byte));
    std::reverse(text.begin(), text.end());
    return text;
  };
  std::optional<std::string> dead_text;  // a shortest text after which no component is live
  for (size_t i = 0; i < steps.size(); ++i) {
    if (dead_text && dead_text->size() <= steps[i].length) return dead_text;
    if (i >= max_states) throw LimitError("product_states", i + 1, max_states);
    const State& state = expanded(steps[i].state);
    budget_.spend(condition.size() + state.edges.size() + 1);
    if (holds(condition, state.verdict)) return text_to(i);
    if (!may_hold_later(condition, state.live)) continue;
    int unused = 0;  // the first byte after which no component is live
    for (const Edge& edge : state.edges) {
      if (unused == edge.first) unused = edge.last + 1;
      if (is_seen.size() <= edge.target) is_seen.resize(edge.target + 1);
      if (is_seen[edge.target]) continue;
      is_seen[edge.target] = 1;
      steps.push_back({edge.target, i, steps[i].length + 1, edge.first});
    }
    if (holds_without_components && !dead_text && unused < 256) dead_text = text_to(i) + char(unused);
  }
  return dead_text;
}

}  // namespace structout::engine
