// What masks and positions ask of states inside strings, keys and numbers.
#include <algorithm>

#include "json/machine.h"
#include "masks/character_classes.h"

namespace structout::json {

uint32_t Machine::num_plain_bytes(State state) {
  if (num_plain_bytes_.size() <= state) num_plain_bytes_.resize(kinds_.size(), kUnknown);
  if (num_plain_bytes_[state] != kUnknown) return num_plain_bytes_[state];
  const std::array<uint32_t, 5>& fields = fields_[state];
  bool is_string = kinds_[state] == Kind::kText && TextKind(fields[0]) == TextKind::kString;
  bool is_free_key = kinds_[state] == Kind::kKey && fields[1] == fields[2] && fields[4] != kNoText;
  uint32_t count = 0;
  if (is_string || is_free_key) count = texts_.num_plain_bytes(lists_[is_string ? fields[1] : fields[4]][0]);
  return num_plain_bytes_[state] = count;
}

uint64_t Machine::repeated_classes(State state) {
  if (repeated_classes_.size() <= state) repeated_classes_.resize(kinds_.size(), kUnknownClasses);
  if (repeated_classes_[state] != kUnknownClasses) return repeated_classes_[state];
  const std::array<uint32_t, 5> fields = fields_[state];
  bool is_string = kinds_[state] == Kind::kText && TextKind(fields[0]) == TextKind::kString;
  bool is_free_key = kinds_[state] == Kind::kKey && fields[1] == fields[2] && fields[4] != kNoText;
  uint64_t classes = 0;
  if (is_string || is_free_key) {
    classes = ~engine::kOtherCharacters;
    for (uint32_t text : lists_[is_string ? fields[1] : fields[4]]) classes &= texts_.repeated_classes(text);
  }
  return repeated_classes_[state] = classes;
}

bool Machine::has_constant_texts(uint32_t texts) const {
  auto is_constant = [this](uint32_t each) {
    return texts_[each].formula == kAlways || texts_[each].formula == kNever;
  };
  const Numbers& states = lists_[texts];
  return texts_[states[0]].formula == kAlways && std::all_of(states.begin(), states.end(), is_constant);
}

bool Machine::is_free_text(State state) const {
  const std::array<uint32_t, 5>& fields = fields_[state];
  bool is_string = kinds_[state] == Kind::kText && TextKind(fields[0]) == TextKind::kString;
  bool is_free_key = kinds_[state] == Kind::kKey && fields[1] == fields[2] && fields[4] != kNoText;
  if ((!is_string && !is_free_key) || !texts_.allows_all_bytes()) return false;
  uint32_t texts = is_string ? fields[1] : fields[4];
  return texts_.is_between_characters(lists_[texts][0]) && has_constant_texts(texts);
}

std::vector<uint8_t> Machine::name_bytes(State state) const {
  const std::array<uint32_t, 5>& fields = fields_[state];
  std::vector<uint8_t> bytes;
  for (uint32_t i = fields[1]; i < fields[2]; ++i) {
    const Order& order = this->order(objects_[fields[0]]);
    const std::string& name = schema_.spelled_name(order.order.names[order.by_spelling[i]]);
    if (name.size() <= fields[3]) continue;
    uint8_t byte = uint8_t(name[fields[3]]);
    if (bytes.empty() || bytes.back() != byte) bytes.push_back(byte);
  }
  return bytes;
}

std::optional<State> Machine::state_without_name(State state) {
  auto [known, is_new] = states_without_name_.try_emplace(state);
  if (!is_new) return known->second;
  const std::array<uint32_t, 5> fields = fields_[state];
  bool may_be_named = kinds_[state] == Kind::kKey && fields[1] < fields[2];
  if (!may_be_named || fields[4] == kNoText) return std::nullopt;
  const Object& object = objects_[fields[0]];
  if (is_guarded(object) && object.max_keys != UINT32_MAX) return std::nullopt;  // a missing name may have to come
  std::vector<uint8_t> names = name_bytes(state);
  auto goes_on = [&names](int byte) {  // with a plain character that is in no name
    return byte != '"' && byte != '\\' && std::find(names.begin(), names.end(), byte) == names.end();
  };
  Numbers after_ascii;
  for (uint32_t text : Numbers(lists_[fields[4]])) {
    if (!texts_.is_between_characters(text)) return std::nullopt;
    uint32_t target = kNoText;
    for (const engine::Edge& edge : texts_.edges(text)) {
      int byte = edge.first;
      while (byte <= edge.last && !goes_on(byte)) ++byte;
      if (byte > edge.last) continue;
      Formula formula = texts_[edge.target].formula;
      if (formula != kAlways && (formula != kNever || after_ascii.empty())) return std::nullopt;
      if (byte >= 0x80) continue;
      if (target != kNoText && target != edge.target) return std::nullopt;
      target = edge.target;
    }
    if (target == kNoText) return std::nullopt;
    after_ascii.push_back(target);
  }
  State found = add(Kind::kKey, {fields[0], 0, 0, 0, lists_.number_of(after_ascii)}, Memory::kInsideKey);
  if (is_free_text(found)) known->second = found;
  return known->second;
}

State Machine::without_far_limits(State state, uint32_t max_length) {
  const std::array<uint32_t, 5> fields = fields_[state];
  if (kinds_[state] != Kind::kText || TextKind(fields[0]) != TextKind::kString) return state;
  Numbers states = lists_[fields[1]];
  for (uint32_t& each : states) each = texts_.without_far_limit(each, max_length);
  return add(Kind::kText, {fields[0], lists_.number_of(states)});
}

std::optional<Machine::LengthLimit> Machine::length_limit(State state) {
  const std::array<uint32_t, 5> fields = fields_[state];
  if (kinds_[state] != Kind::kText || lists_[fields[1]].size() > 1) return std::nullopt;
  auto limit = texts_.length_limit(lists_[fields[1]][0]);
  if (!limit) return std::nullopt;
  State without = add(Kind::kText, {fields[0], lists_.number_of({limit->without})});
  return LengthLimit{without, limit->num_free, limit->num_at_most};
}

bool Machine::ends_free_key(State state) {
  if (kinds_[state] != Kind::kKey) return false;
  Action action = this->action(state, '"');
  return action.kind == Action::kReplace && kinds_[action.state] == Kind::kAfterKey &&
         keys_[fields_[action.state][1]].is_free();
}

bool Machine::may_be_named(State state, const PastKeys& names) {
  const std::array<uint32_t, 5>& fields = fields_[state];
  if (fields[1] == fields[2] || !is_guarded(objects_[fields[0]])) return fields[1] < fields[2];
  return holds({Guard::kKeys, fields[0], fields[1], fields[2], false}, names);
}

}  // namespace structout::json
