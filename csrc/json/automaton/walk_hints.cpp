#include "json/automaton/walk_hints.h"

#include <algorithm>

#include "json/automaton/schema_automaton.h"
#include "token_masks/character_classes.h"

namespace structout::json {

namespace {

constexpr uint32_t kUnknown = UINT32_MAX;
constexpr uint64_t kUnknownClasses = UINT64_MAX;

}  // namespace

WalkHints::WalkHints(SchemaAutomaton& automaton)
    : automaton_(automaton), texts_(automaton.schema().texts()), lists_(automaton.lists()) {}

std::optional<uint32_t> WalkHints::texts_of_characters(State state) const {
  if (const auto* string = automaton_.at<InString>(state)) return string->texts;
  const auto* key = automaton_.at<InKey>(state);
  bool is_free = key != nullptr && !key->may_be_named() && key->may_be_free();
  return is_free ? std::optional(key->free) : std::nullopt;
}

uint32_t WalkHints::num_plain_bytes(State state) {
  if (num_plain_bytes_.size() <= state) num_plain_bytes_.resize(automaton_.num_states(), kUnknown);
  if (num_plain_bytes_[state] != kUnknown) return num_plain_bytes_[state];
  std::optional<uint32_t> texts = texts_of_characters(state);
  return num_plain_bytes_[state] = texts ? texts_.num_plain_bytes(lists_[*texts][0]) : 0;
}

uint64_t WalkHints::repeated_classes(State state) {
  if (repeated_classes_.size() <= state) repeated_classes_.resize(automaton_.num_states(), kUnknownClasses);
  if (repeated_classes_[state] != kUnknownClasses) return repeated_classes_[state];
  uint64_t classes = 0;
  if (std::optional<uint32_t> texts = texts_of_characters(state)) {
    classes = ~engine::kOtherCharacters;
    for (uint32_t text : lists_[*texts]) classes &= texts_.repeated_classes(text);
  } else if (!automaton_.is_scalar(state) && !automaton_.is_key(state)) {
    classes = repeated_whitespace(state);
  }
  return repeated_classes_[state] = classes;
}

uint64_t WalkHints::repeated_whitespace(State state) const {
  uint64_t repeated = 0, others = 0;
  for (uint8_t byte : {' ', '\t', '\n', '\r'}) {
    Action action = automaton_.action(state, byte);
    bool is_repeated = action.kind == Action::kReplace && action.state == state &&
                       automaton_.guard(state, byte, action).kind == Guard::kNone;
    (is_repeated ? repeated : others) |= engine::class_of_ascii(byte);
  }
  return repeated & ~others;
}

bool WalkHints::has_constant_texts(uint32_t texts) const {
  auto is_constant = [this](uint32_t each) {
    return texts_[each].formula == kAlways || texts_[each].formula == kNever;
  };
  const Numbers& states = lists_[texts];
  return texts_[states[0]].formula == kAlways && std::all_of(states.begin(), states.end(), is_constant);
}

bool WalkHints::is_free_text(State state) const {
  std::optional<uint32_t> texts = texts_of_characters(state);
  if (!texts || !texts_.allows_all_bytes()) return false;
  return texts_.is_between_characters(lists_[*texts][0]) && has_constant_texts(*texts);
}

bool WalkHints::is_in_any_spelling(State state) const {
  std::optional<uint32_t> texts = texts_of_characters(state);
  return texts && texts_.is_in_any_spelling(lists_[*texts][0]);
}

std::vector<uint8_t> WalkHints::name_bytes(State state) const {
  const auto* key = automaton_.at<InKey>(state);
  std::vector<uint8_t> bytes;
  if (key == nullptr) return bytes;
  const Objects::Order& order = automaton_.objects().order(automaton_.objects()[key->object]);
  for (uint32_t i = key->begin; i < key->end; ++i) {
    const std::string& name = automaton_.schema().spelled_name(order.order.names[order.by_spelling[i]]);
    if (name.size() <= key->length) continue;
    uint8_t byte = uint8_t(name[key->length]);
    if (bytes.empty() || bytes.back() != byte) bytes.push_back(byte);
  }
  return bytes;
}

std::optional<State> WalkHints::state_without_name(State state) {
  auto [known, is_new] = states_without_name_.try_emplace(state);
  if (!is_new) return known->second;
  if (automaton_.at<InKey>(state) == nullptr) return std::nullopt;
  const InKey key = *automaton_.at<InKey>(state);
  if (!key.may_be_named() || !key.may_be_free()) return std::nullopt;
  const Object& object = automaton_.objects()[key.object];
  if (automaton_.objects().is_guarded(object) && object.max_keys != UINT32_MAX)
    return std::nullopt;  // a missing name may have to come
  std::vector<uint8_t> names = name_bytes(state);
  auto continues = [&names](int byte) {  // with a plain character that is in no name
    return byte != '"' && byte != '\\' && std::find(names.begin(), names.end(), byte) == names.end();
  };
  Numbers after_ascii;
  for (uint32_t text : Numbers(lists_[key.free])) {
    if (!texts_.is_between_characters(text)) return std::nullopt;
    std::optional<uint32_t> target;
    for (const engine::Edge& edge : texts_.edges(text)) {
      int byte = edge.first;
      while (byte <= edge.last && !continues(byte)) ++byte;
      if (byte > edge.last) continue;
      Formula formula = texts_[edge.target].formula;
      if (formula != kAlways && (formula != kNever || after_ascii.empty())) return std::nullopt;
      if (byte >= 0x80) continue;
      if (target && *target != edge.target) return std::nullopt;
      target = edge.target;
    }
    if (!target) return std::nullopt;
    after_ascii.push_back(*target);
  }
  State found = automaton_.add(InKey{key.object, 0, 0, 0, lists_.number_of(after_ascii)}, RegisterKind::kInsideKey);
  if (is_free_text(found)) known->second = found;
  return known->second;
}

State WalkHints::without_far_limits(State state, uint32_t max_length) {
  const auto* string = automaton_.at<InString>(state);
  if (string == nullptr) return state;
  Numbers texts = lists_[string->texts];
  for (uint32_t& each : texts) each = texts_.without_far_limit(each, max_length);
  return automaton_.add(InString{lists_.number_of(texts)});
}

std::optional<WalkHints::LengthLimit> WalkHints::length_limit(State state) {
  const auto* string = automaton_.at<InString>(state);
  if (string == nullptr || lists_[string->texts].size() > 1) return std::nullopt;
  auto limit = texts_.length_limit(lists_[string->texts][0]);
  if (!limit) return std::nullopt;
  return LengthLimit{automaton_.add(InString{lists_.number_of({limit->without})}), limit->num_free, limit->num_at_most};
}

}  // namespace structout::json
