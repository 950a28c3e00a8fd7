#include "json/configuration.h"

#include <algorithm>

#include "json/canonical.h"
#include "json/value.h"
#include "json/value_search.h"

namespace structout::json {

namespace {

constexpr uint32_t kMaxKeyDepth = 512;  // in frames: a key is as long as the stack

std::shared_ptr<const Memory> with_used(const std::shared_ptr<const Memory>& memory, UsedValues used) {
  return std::make_shared<const Memory>(Memory{std::make_shared<const UsedValues>(std::move(used)), 0, memory->names});
}

std::shared_ptr<const Memory> with_name(const std::shared_ptr<const Memory>& memory, uint32_t index) {
  PastKeys names = memory->names;
  if (names.size() <= index) names.resize(index + 1);
  names[index] = true;
  return std::make_shared<const Memory>(Memory{memory->used, 0, std::move(names)});
}

// True if two memories are one, or hold the same names and no texts.
bool are_equal(const Memory* a, const Memory* b) {
  if (a == b) return true;
  if (a == nullptr || b == nullptr) return false;
  return a->used == nullptr && b->used == nullptr && a->begin == b->begin && a->is_outer_new == b->is_outer_new &&
         a->names == b->names;
}

}  // namespace

bool Configuration::equals(const Configuration& other) const {
  if (machine_ != other.machine_ || state_ != other.state_) return false;
  if (is_new_ != other.is_new_ || has_free_key_ != other.has_free_key_) return false;
  if (remembers_text() || other.remembers_text() || !are_equal(memory_.get(), other.memory_.get())) return false;
  const Frame *frame = below_.get(), *other_frame = other.below_.get();
  while (frame != other_frame) {
    if (frame == nullptr || other_frame == nullptr || frame->state != other_frame->state) return false;
    if (!are_equal(frame->memory.get(), other_frame->memory.get())) return false;
    frame = frame->below.get();
    other_frame = other_frame->below.get();
  }
  return true;
}

std::string Configuration::text_since(size_t begin) const {
  std::string text;
  for (const TextNode* node = text_.get(); node != nullptr && node->length > begin; node = node->before.get()) {
    text.push_back(node->byte);
  }
  std::reverse(text.begin(), text.end());
  return text;
}

bool Configuration::read(uint8_t byte) {
  Action action = machine_->action(state_, byte);
  // A byte after a number ends it, then acts on the value around it.
  while (action.kind == Action::kPopBefore) {
    if (!apply(action, byte)) return false;
    action = machine_->action(state_, byte);
  }
  if (!apply(action, byte)) return false;
  bool is_inside = machine_->memory(state_) == MemoryKind::kInsideKey || (below_ != nullptr && below_->item != nullptr);
  if (is_inside) {
    text_ = std::make_shared<TextNode>(char(byte), length() + 1, text_);
  } else if (text_ != nullptr) {
    text_ = nullptr;
  }
  return true;
}

bool Configuration::apply(const Action& action, uint8_t byte) {
  if (action.kind == Action::kFail) return false;
  if (!machine_->holds(machine_->guard(state_, byte, action), names())) return false;
  switch (action.kind) {
    case Action::kFail:
      return false;
    case Action::kReplace: {
      MemoryKind now = machine_->memory(state_), next = machine_->memory(action.state);
      if (next == MemoryKind::kNone) {
        memory_ = nullptr;
      } else if (memory_ == nullptr) {
        memory_ = std::make_shared<const Memory>();
      }
      if (now != MemoryKind::kInsideKey && next == MemoryKind::kInsideKey) {
        memory_ = std::make_shared<const Memory>(Memory{memory_->used, length() + 1, memory_->names});
        used_begin_ = memory_->used == nullptr ? TextSet::Cursor() : memory_->used->values.begin();
      } else if (now == MemoryKind::kInsideKey && byte == '"' && machine_->ends_free_key(state_)) {
        std::string key = text_since(memory_->begin);
        UsedValues used = memory_->used == nullptr ? UsedValues() : *memory_->used;
        if (used.values.contains(key)) return false;
        used.values = used.values.with(key);
        memory_ = with_used(memory_, std::move(used));
        has_free_key_ = has_free_key_ || (below_ != nullptr && below_->item != nullptr);
      } else if (std::optional<uint32_t> name = machine_->completed_name(state_, action.state)) {
        memory_ = with_name(memory_, *name);
      } else if (next == MemoryKind::kInsideKey) {
        used_begin_.read(byte);
      } else if (below_ != nullptr && below_->item != nullptr) {
        follow_string(action.state, byte);
      }
      state_ = action.state;
      return true;
    }
    case Action::kPush: {
      MemoryKind kind = machine_->memory(action.below);
      bool is_item = kind == MemoryKind::kInsideItem;
      if (kind == MemoryKind::kNone) {
        memory_ = nullptr;
      } else if (memory_ == nullptr) {
        memory_ = std::make_shared<const Memory>();
      }
      if (is_item) {
        // A first item begins with this byte, another one after the comma.
        size_t begin = length() + (machine_->memory(state_) == MemoryKind::kItems ? 1 : 0);
        memory_ = std::make_shared<const Memory>(Memory{memory_->used, begin, {}, is_new_});
        is_new_ = false;
      }
      below_ = std::make_shared<Frame>(action.below, is_item, std::move(below_), std::move(memory_));
      if (below_->item != nullptr) follow_string(action.state, byte);
      state_ = action.state;
      return true;
    }
    case Action::kPop:
    case Action::kPopBefore: {
      std::shared_ptr<const Frame> waiting = std::move(below_);
      State state = machine_->resume(waiting == nullptr ? kNoState : waiting->state, action.state);
      if (state == kNoState) return false;
      if (machine_->is_in_string(state_) && waiting != nullptr && waiting->item != nullptr) {
        used_begin_.read('"');
        is_new_ = is_new_ || !used_begin_.is_whole();
      }
      state_ = state;
      memory_ = nullptr;
      if (waiting == nullptr) return true;
      below_ = waiting->below;
      if (machine_->memory(state) != MemoryKind::kNone) memory_ = waiting->memory;
      bool is_item = waiting->memory != nullptr && machine_->memory(waiting->state) == MemoryKind::kInsideItem;
      if (is_item) {
        auto is_done = [&waiting](const auto& entry) { return entry.first == waiting->memory; };
        rivals_.erase(std::remove_if(rivals_.begin(), rivals_.end(), is_done), rivals_.end());
        std::string item = text_since(waiting->memory->begin);
        if (action.kind == Action::kPop) item.push_back(char(byte));
        if (!complete_item(*waiting, std::move(item))) return false;
      } else if (machine_->memory(state) != MemoryKind::kNone && memory_ == nullptr) {
        memory_ = std::make_shared<const Memory>();
      }
      return true;
    }
  }
  return false;
}

bool Configuration::is_complete() const {
  if (below_ != nullptr) return false;
  return machine_->is_end(state_) || machine_->verdicts_at_end(state_).has_value();
}

// Moves used_begin_ along with a step to a state in a string of an item; a new string
// starts it anew.
void Configuration::follow_string(State next, uint8_t byte) {
  if (!machine_->is_in_string(next)) return;
  if (!machine_->is_in_string(state_)) {
    const Frame* item = below_->item;
    const UsedValues* used = item->memory->used.get();
    used_begin_ = used == nullptr ? TextSet::Cursor() : (item == below_.get() ? used->values : used->strings).begin();
  }
  used_begin_.read(byte);
}

// Parses a complete item and adds its canonical form to the used ones. False if it repeats
// one, or if the array cannot go on.
bool Configuration::complete_item(const Frame& waiting, std::string text) {
  Value value;
  try {
    value = parse_value(text);
  } catch (const SchemaError&) {  // it is a JSON text, so it is nested too deep
    throw engine::LimitError("item_nesting", kMaxNestedValues + 1, kMaxNestedValues);
  }
  std::string item = canonical(value);
  UsedValues used = waiting.memory->used == nullptr ? UsedValues() : *waiting.memory->used;
  if (used.values.contains(item)) return false;
  is_new_ = waiting.memory->is_outer_new;
  if (machine_->memory(state_) == MemoryKind::kNone) return true;
  used.values = used.values.with(item);
  Value used_value = with_canonical_texts(value);
  uint32_t children = machine_->item_children(waiting.state);
  used.are_alike = used.last == nullptr || (used.are_alike && used.last->children == children);
  used.are_written_once = used.are_written_once && !machine_->allows_any_order() && !has_free_key_;
  used.written = used.are_written_once ? used.written.with(written(used_value)) : TextSet();
  used.last = std::make_shared<const UsedItem>(std::move(used_value), children, used.last);
  if (waiting.below == nullptr || waiting.below->item == nullptr) has_free_key_ = false;
  if (is_compound(item)) {
    visit_strings(value, [&used](const std::string& each) {
      if (!used.strings.contains(each)) used.strings = used.strings.with(each);
    });
  }
  if (machine_->counts().is_tight(waiting.state) && !machine_->counts().stays_live(state_, used.values)) return false;
  memory_ = with_used(waiting.memory, std::move(used));
  return true;
}

const Rivals& Configuration::rivals_of(const Frame& item) const {
  auto known =
      std::find_if(rivals_.begin(), rivals_.end(), [&](const auto& entry) { return entry.first == item.memory; });
  if (known != rivals_.end() && known->second->length() == length()) return *known->second;
  if (known == rivals_.end()) known = rivals_.insert(known, {item.memory, nullptr});
  auto rivals = std::make_shared<Rivals>(known->second != nullptr ? *known->second
                                                                  : Rivals(item.memory->used, item.memory->begin));
  rivals->read(text_since(rivals->length()));
  machine_->schema().budget().spend(rivals->take_work());
  known->second = std::move(rivals);
  return *known->second;
}

void Configuration::prepare_rivals() const {
  for (const Frame* item = below_ == nullptr ? nullptr : below_->item; item != nullptr;) {
    if (item->memory->used != nullptr) rivals_of(*item);
    item = item->below == nullptr ? nullptr : item->below->item;
  }
}

// Multiplies the least numbers of values that each part can still become, from the
// innermost value outwards. If these are more than the rivals (earlier items that this one
// could still equal), some continuation is new; if the number is exact and the rivals
// exhaust it, none is.
Configuration::Outlook Configuration::outlook(const Frame& item) const {
  auto num_used = [](const Frame& frame) {
    return frame.memory->used == nullptr ? size_t(0) : frame.memory->used->values.size();
  };
  // The number of items so far, if they all have the formulas of the next one.
  auto num_items = [this](const Memory* memory, State array) {
    const UsedValues* used = memory == nullptr ? nullptr : memory->used.get();
    if (used == nullptr) return size_t(0);
    bool are_alike = used->are_alike && used->last->children == machine_->item_children(array);
    return are_alike ? used->values.size() : ValueCounts::kUnknownItems;
  };
  bool is_in_array = machine_->memory(state_) == MemoryKind::kItems;
  ValueCounts::Count count = machine_->counts().values(
      state_, names(), is_in_array ? num_items(memory_.get(), state_) : ValueCounts::kUnknownItems);
  for (const Frame* frame = below_.get(); frame != &item; frame = frame->below.get()) {
    if (machine_->memory(frame->state) == MemoryKind::kInsideItem) {
      // In an inner array, the items that have come cannot come again.
      bool is_tight = machine_->counts().is_tight(frame->state);
      if (is_tight && (!count.are_many() || machine_->counts().depends_on_verdicts(frame->state)))
        return Outlook::kUnknown;
      if (num_used(*frame) > 0 && !count.are_many()) {
        const Rivals& rivals = rivals_of(*frame);
        size_t num_past = rivals.size();
        size_t num_alike = rivals.num_alike(machine_->item_children(frame->state), machine_->allows_any_order());
        count = {count.least > num_past ? uint32_t(count.least - num_past) : 0,
                 count.is_exact && num_alike == num_past};
      }
    }
    bool is_in_array = machine_->memory(frame->state) == MemoryKind::kInsideItem;
    size_t num_past = is_in_array ? num_items(frame->memory.get(), frame->state) : ValueCounts::kUnknownItems;
    if (num_past != ValueCounts::kUnknownItems) ++num_past;
    ValueCounts::Count after = machine_->counts().values_after(frame->state, names_of(frame->memory.get()), num_past);
    uint64_t all = uint64_t(count.least) * after.least;
    count = {uint32_t(std::min<uint64_t>(all, ValueCounts::kMany)), count.is_exact && after.is_exact};
  }
  if (machine_->counts().is_tight(item.state)) {
    bool are_alike = count.are_many() && !machine_->counts().depends_on_verdicts(item.state);
    return are_alike ? Outlook::kLive : Outlook::kUnknown;
  }
  if (count.least > num_used(item)) return Outlook::kLive;
  const Rivals& rivals = rivals_of(item);
  if (count.least > rivals.size()) return Outlook::kLive;
  bool is_dead = count.is_exact &&
                 count.least <= rivals.num_alike(machine_->item_children(item.state), machine_->allows_any_order());
  return is_dead ? Outlook::kDead : Outlook::kUnknown;
}

bool Configuration::has_unused() const {
  MemoryKind kind = machine_->memory(state_);
  bool is_at_key = kind == MemoryKind::kInsideKey || kind == MemoryKind::kKeys;
  if (is_at_key && memory_ != nullptr && memory_->used != nullptr) {
    if (!machine_->counts().has_unused_key(state_, memory_->used->values, used_begin_, names())) return false;
  }
  const Frame* outermost = nullptr;
  bool is_new = is_new_;
  for (const Frame* item = below_ == nullptr ? nullptr : below_->item; item != nullptr;) {
    bool is_tight = machine_->counts().is_tight(item->state);
    bool is_used = item->memory->used != nullptr && !is_new;
    if (!is_tight && is_used && item == below_.get() && machine_->is_scalar(state_)) {
      TextSet::Cursor begin = used_begin_;
      if (!machine_->is_in_string(state_)) {
        begin = item->memory->used->values.begin();
        for (char byte : text_since(item->memory->begin)) {
          if (!is_space(uint8_t(byte))) begin.read(uint8_t(byte));
        }
      }
      if (!machine_->counts().has_unused_scalar(state_, begin)) return false;
    } else if (is_used || is_tight) {
      Outlook outlook = this->outlook(*item);
      if (outlook == Outlook::kDead) return false;
      if (outlook == Outlook::kUnknown) outermost = item;
    }
    is_new = item->memory->is_outer_new;
    item = item->below == nullptr ? nullptr : item->below->item;
  }
  return outermost == nullptr || can_complete(*this, outermost);
}

std::string Configuration::key_within(const Frame& item) const {
  std::string key;
  auto append = [&key](uint64_t number) { key.append(reinterpret_cast<const char*>(&number), sizeof number); };
  auto append_names = [&](const Memory* memory) {
    for (bool has_come : names_of(memory)) key.push_back(has_come ? '1' : '0');
  };
  append(state_);
  append_names(memory_.get());
  bool depends_on_text = memory_ != nullptr && memory_->used != nullptr;
  for (const Frame* frame = below_.get(); frame != item.below.get(); frame = frame->below.get()) {
    append(frame->state);
    append_names(frame->memory.get());
    bool has_used = frame->memory != nullptr && frame->memory->used != nullptr;
    bool is_item = machine_->memory(frame->state) == MemoryKind::kInsideItem;
    depends_on_text = depends_on_text || (has_used && (!is_item || rivals_of(*frame).size() > 0));
  }
  std::string text = text_since(item.memory->begin);
  text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), is_space));  // known values have none in front
  if (!depends_on_text) depends_on_text = machine_->counts().may_be_scarce(item.state, text);
  return depends_on_text ? key + text : key;
}

std::optional<std::string> Configuration::key() const {
  if (remembers_text() || (below_ != nullptr && below_->depth > kMaxKeyDepth)) return std::nullopt;
  std::string key;
  auto append = [&key](uint32_t number) { key.append(reinterpret_cast<const char*>(&number), sizeof number); };
  auto append_names = [&](const Memory* memory) {
    append(memory == nullptr ? UINT32_MAX : uint32_t(memory->names.size()));
    for (bool has_come : names_of(memory)) key.push_back(has_come ? '1' : '0');
  };
  append(state_);
  append(uint32_t(is_new_) << 1 | uint32_t(has_free_key_));
  append_names(memory_.get());
  for (const Frame* frame = below_.get(); frame != nullptr; frame = frame->below.get()) {
    append(frame->state);
    append_names(frame->memory.get());
  }
  return key;
}

std::string Configuration::forced() const {
  std::string bytes;
  Configuration config = *this;
  while (!config.is_complete()) {
    std::vector<uint8_t> possible;
    for (int byte = 0; byte < 256; ++byte) {
      if (machine_->action(config.state_, uint8_t(byte)).kind != Action::kFail) possible.push_back(uint8_t(byte));
    }
    if (possible.size() > 1 && config.has_memory()) {
      auto is_used = [&config](uint8_t byte) {
        Configuration next = config;
        return !next.read(byte) || !next.has_unused();
      };
      possible.erase(std::remove_if(possible.begin(), possible.end(), is_used), possible.end());
    }
    if (possible.size() != 1 || !config.read(possible[0])) break;
    bytes.push_back(char(possible[0]));
  }
  return bytes;
}

}  // namespace structout::json
