#include "json/token_masks/least_endings.h"

#include <algorithm>
#include <optional>

namespace structout::json {

bool LeastEndings::find(const std::vector<std::pair<State, Keys>>& stack, State state, size_t frame,
                        const engine::Ending*& ending) {
  of_stack_.clear();
  while (true) {
    const Rest* rest = state == kNoState ? nullptr : this->rest(state, stack[frame].second);
    if (rest == nullptr) return false;
    of_stack_.push_back(rest);
    if (++frame == stack.size()) break;
    state = automaton_.resume(stack[frame].first, rest->truth_values);
  }
  ending = nullptr;
  for (auto rest = of_stack_.rbegin(); rest != of_stack_.rend(); ++rest) ending = endings_.add((*rest)->bytes, ending);
  return true;
}

// States that wait for a value are none of those on top: their rest is part of that of the
// state before the value.
uint32_t LeastEndings::most_bytes() {
  for (; num_bounded_ < automaton_.num_states(); ++num_bounded_) {
    State state = num_bounded_;
    if (automaton_.at<WaitingForMember>(state) != nullptr || automaton_.at<WaitingForItem>(state) != nullptr) continue;
    for (bool has_free : {false, true}) {
      if (has_free && automaton_.register_kind(state) == RegisterKind::kNone) break;
      const Rest* rest = this->rest(state, {{}, has_free});
      most_bytes_ = std::max(most_bytes_, rest == nullptr ? kManyBytes : uint32_t(rest->bytes.size()));
    }
  }
  return most_bytes_;
}

const LeastEndings::Rest* LeastEndings::rest(State state, const Keys& keys) {
  std::string key(reinterpret_cast<const char*>(&state), sizeof state);
  key.push_back(keys.has_free ? 'f' : ' ');
  for (bool has_come : keys.seen) key.push_back(has_come ? '1' : '0');
  Entry& entry = rests_[key];
  if (entry.is_known) return entry.rest.get();
  // A path that leads back to a state is no shortest one. What was found without it is not
  // kept, unless the search began here.
  if (entry.depth != 0 || depth_ == kMaxDepth) {
    lowest_assumed_ = std::min(lowest_assumed_, entry.depth);
    return nullptr;
  }
  std::unique_ptr<const Rest> found;
  try {
    entry.depth = ++depth_;
    automaton_.schema().budget().spend(1);
    found = computed(state, keys);
  } catch (...) {  // StepBudgetExceeded, or a limit
    --depth_;
    entry.depth = 0;
    lowest_assumed_ = SIZE_MAX;
    throw;
  }
  --depth_;
  entry.depth = 0;
  entry.is_known = found != nullptr || lowest_assumed_ > depth_;
  if (lowest_assumed_ > depth_ || depth_ == 0) lowest_assumed_ = SIZE_MAX;
  entry.rest = std::move(found);
  return entry.rest.get();
}

std::unique_ptr<const LeastEndings::Rest> LeastEndings::computed(State state, const Keys& keys) {
  if (automaton_.is_end(state)) return std::make_unique<const Rest>();
  if (std::optional<uint32_t> truth_values = automaton_.truth_values_at_end(state)) {
    return std::make_unique<const Rest>(Rest{"", *truth_values});
  }
  std::unique_ptr<const Rest> best;
  for (auto [byte, least] : candidates(state, keys)) {
    size_t max_bytes = best == nullptr ? kMaxBytes : best->bytes.size() - 1;
    if (least > max_bytes || !may_read(state, keys.seen, byte)) continue;
    std::unique_ptr<const Rest> next = with_byte(state, keys, byte, max_bytes);
    if (next != nullptr) best = std::move(next);
  }
  return best;
}

// The rest that begins with a byte. Null if it is not known, or has more bytes.
std::unique_ptr<const LeastEndings::Rest> LeastEndings::with_byte(State state, const Keys& keys, uint8_t byte,
                                                                  size_t max_bytes) {
  Action action = automaton_.action(state, byte);
  if (action.kind == Action::kPop) return std::make_unique<const Rest>(Rest{std::string(1, char(byte)), action.state});
  if (action.kind == Action::kPopBefore) return nullptr;
  bool is_push = action.kind == Action::kPush;
  Keys keys_after = keys;
  if (std::optional<uint32_t> name = is_push ? std::nullopt : automaton_.completed_name(state, action.state)) {
    keys_after.seen.resize(std::max<size_t>(keys_after.seen.size(), *name + 1));
    keys_after.seen[*name] = true;
  }
  if (!is_push && byte == '"' && automaton_.ends_free_key(state)) {
    if (keys.has_free) return nullptr;
    keys_after.has_free = true;
  }
  const Rest* value = rest(action.state, is_push ? Keys() : keys_after);
  if (value == nullptr || 1 + value->bytes.size() > max_bytes) return nullptr;
  Rest result{char(byte) + value->bytes, value->truth_values};
  if (is_push) {
    if (automaton_.register_kind(state) == RegisterKind::kItems) return nullptr;  // the item may have to differ
    State resumed = automaton_.resume(action.below, value->truth_values);
    const Rest* around = resumed == kNoState ? nullptr : rest(resumed, keys_after);
    if (around == nullptr || result.bytes.size() + around->bytes.size() > max_bytes) return nullptr;
    result.bytes += around->bytes;
    result.truth_values = around->truth_values;
  }
  return std::make_unique<const Rest>(std::move(result));
}

// Bytes that may begin the shortest rest.
LeastEndings::Candidates LeastEndings::candidates(State state, const Keys& keys) {
  static constexpr std::pair<uint8_t, size_t> kValues[] = {{'0', 1}, {'1', 1}, {'2', 1}, {'3', 1}, {'4', 1}, {'5', 1},
                                                           {'6', 1}, {'7', 1}, {'8', 1}, {'9', 1}, {'-', 2}, {'"', 2},
                                                           {'[', 2}, {'{', 2}, {'n', 4}, {'t', 4}, {'f', 5}};
  Candidates found;
  Texts& texts = automaton_.schema().texts();
  auto add_text = [&](uint32_t list) {
    if (std::optional<uint8_t> byte = texts.next_byte(automaton_.lists()[list][0])) found.emplace_back(*byte, 1);
  };
  auto add_first = [&](std::string_view bytes) {
    for (char byte : bytes) {
      if (found.empty() && may_read(state, keys.seen, uint8_t(byte))) found.emplace_back(uint8_t(byte), 1);
    }
  };
  const StateContents contents = automaton_.contents(state);
  if (const auto* literal = std::get_if<InLiteral>(&contents)) {
    found.emplace_back(uint8_t(SchemaAutomaton::kLiterals[literal->literal][literal->position]), 1);
  } else if (const auto* string = std::get_if<InString>(&contents)) {
    if (texts.accepts(automaton_.lists()[string->texts][0])) found.emplace_back('"', 1);
    if (found.empty()) add_text(string->texts);
  } else if (const auto* number = std::get_if<InNumber>(&contents)) {
    add_text(number->texts);
  } else if (const auto* key = std::get_if<InKey>(&contents)) {
    add_key_bytes(*key, keys, found);
  } else if (std::holds_alternative<BeforeKey>(contents) || std::holds_alternative<AfterKey>(contents)) {
    add_first("\": ");
  } else if (!std::holds_alternative<BeforeValue>(contents) && !std::holds_alternative<ArrayStart>(contents)) {
    add_first("}],\" ");  // at the start of an object, after a member or an item
  } else {
    add_first("]");
    if (found.empty()) found.assign(std::begin(kValues), std::end(kValues));
    auto may_begin = [&](const auto& each) { return may_read(state, keys.seen, each.first); };
    if (std::none_of(found.begin(), found.end(), may_begin)) found = {{' ', 2}};
  }
  return found;
}

// The next byte of the first required name that has not come; else those of all keys.
void LeastEndings::add_key_bytes(const InKey& key, const Keys& keys, Candidates& found) {
  const Object& object = automaton_.objects()[key.object];
  const Objects::Order& order = automaton_.objects().order(object);
  auto may_come = [&](uint32_t i) {
    uint32_t index = order.by_spelling[i];
    return object.allows_spelling(i) && !(index < keys.seen.size() && keys.seen[index]);
  };
  std::optional<uint32_t> missing;
  for (uint32_t i = key.begin; i < key.end && object.is_kept; ++i) {
    bool is_missing = may_come(i) && automaton_.objects().is_required(object, order.by_spelling[i]);
    if (is_missing && (!missing || order.by_spelling[i] < order.by_spelling[*missing])) missing = i;
  }
  for (uint32_t i = key.begin; i < key.end; ++i) {
    if (!may_come(i) || (missing && i != *missing)) continue;
    const std::string& spelled = automaton_.schema().spelled_name(order.order.names[order.by_spelling[i]]);
    uint8_t byte = spelled.size() == key.length ? uint8_t('"') : uint8_t(spelled[key.length]);
    if (found.empty() || found.back().first != byte) found.emplace_back(byte, 1);
  }
  if (missing || !key.may_be_free() || keys.has_free) return;
  uint32_t free = automaton_.lists()[key.free][0];
  std::optional<uint8_t> byte = '"';
  if (!automaton_.schema().texts().accepts(free)) byte = automaton_.schema().texts().next_byte(free);
  if (byte) found.emplace_back(*byte, 1);
}

}  // namespace structout::json
