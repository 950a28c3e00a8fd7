#include "json/position.h"

#include <algorithm>

#include "json/item_values.h"

namespace structout::json {

namespace {

using MemoryKind = Machine::Memory;

bool contains(const std::shared_ptr<const UsedText>& used, const std::string& text) {
  for (const UsedText* each = used.get(); each != nullptr; each = each->before.get()) {
    if (each->text == text) return true;
  }
  return false;
}

std::shared_ptr<const Memory> with_used(const std::shared_ptr<const Memory>& memory, std::string text) {
  auto used = std::make_shared<UsedText>(std::move(text), memory->used);
  return std::make_shared<const Memory>(Memory{std::move(used), 0, memory->names});
}

std::shared_ptr<const Memory> with_name(const std::shared_ptr<const Memory>& memory, uint32_t position) {
  PastKeys names = memory->names;
  if (names.size() <= position) names.resize(position + 1);
  names[position] = true;
  return std::make_shared<const Memory>(Memory{memory->used, 0, std::move(names)});
}

bool starts_with(const std::string& text, const std::string& begin) {
  return text.compare(0, begin.size(), begin) == 0;
}

// Whether a value that is not used yet begins so.
bool is_any_unused(const std::vector<ItemValue>& values, const std::shared_ptr<const UsedText>& used,
                   const std::string& begin) {
  return std::any_of(values.begin(), values.end(), [&](const ItemValue& value) {
    return starts_with(value.text, begin) && !contains(used, value.canonical);
  });
}

}  // namespace

std::string Position::text_since(size_t begin) const {
  std::string text;
  for (const TextNode* node = text_.get(); node != nullptr && node->length > begin; node = node->before.get()) {
    text.push_back(node->byte);
  }
  std::reverse(text.begin(), text.end());
  return text;
}

bool Position::read(uint8_t byte) {
  Action action = machine_->action(state_, byte);
  while (action.kind == Action::kPopBefore) {
    if (!apply(action, byte)) return false;
    action = machine_->action(state_, byte);
  }
  if (!apply(action, byte)) return false;
  bool is_inside = machine_->memory(state_) == MemoryKind::kInsideKey || (below_ != nullptr && below_->has_item);
  if (is_inside) {
    text_ = std::make_shared<TextNode>(char(byte), length() + 1, text_);
  } else if (text_ != nullptr) {
    text_ = nullptr;
  }
  return true;
}

bool Position::apply(const Action& action, uint8_t byte) {
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
      } else if (now == MemoryKind::kInsideKey && byte == '"' && machine_->ends_free_key(state_)) {
        std::string key = text_since(memory_->begin);
        if (contains(memory_->used, key)) return false;
        memory_ = with_used(memory_, std::move(key));
      } else if (std::optional<uint32_t> name = machine_->completed_name(state_, action.state)) {
        memory_ = with_name(memory_, *name);
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
        if (memory_->used != nullptr) {
          ItemValues values = machine_->item_values(action.below);
          if (values != nullptr && !is_any_unused(*values, memory_->used, "")) return false;
        }
        // A first item begins with this byte, another one behind the comma.
        size_t begin = length() + (machine_->memory(state_) == MemoryKind::kItems ? 1 : 0);
        memory_ = std::make_shared<const Memory>(Memory{memory_->used, begin, {}});
      }
      below_ = std::make_shared<Frame>(action.below, is_item, std::move(below_), std::move(memory_));
      state_ = action.state;
      return true;
    }
    case Action::kPop:
    case Action::kPopBefore: {
      std::shared_ptr<const Frame> waiting = std::move(below_);
      State state = machine_->resume(waiting == nullptr ? kNoState : waiting->state, action.state);
      if (state == kNoState) return false;
      state_ = state;
      memory_ = nullptr;
      if (waiting == nullptr) return true;
      below_ = waiting->below;
      if (machine_->memory(state) != MemoryKind::kNone) memory_ = waiting->memory;
      bool is_item = waiting->memory != nullptr && machine_->memory(waiting->state) == MemoryKind::kInsideItem;
      if (is_item) {
        std::string item = text_since(waiting->memory->begin);
        if (action.kind == Action::kPop) item.push_back(char(byte));
        item = canonical(item);
        if (contains(waiting->memory->used, item)) return false;
        if (machine_->memory(state) != MemoryKind::kNone) memory_ = with_used(waiting->memory, std::move(item));
      } else if (machine_->memory(state) != MemoryKind::kNone && memory_ == nullptr) {
        memory_ = std::make_shared<const Memory>();
      }
      return true;
    }
  }
  return false;
}

bool Position::is_complete() const {
  if (below_ != nullptr) return false;
  return machine_->is_end(state_) || machine_->verdicts_at_end(state_).has_value();
}

std::vector<std::string> Position::used_ends() const {
  std::vector<std::string> ends;
  bool is_key = machine_->memory(state_) == MemoryKind::kInsideKey;
  bool is_item = !is_key && below_ != nullptr && machine_->memory(below_->state) == MemoryKind::kInsideItem;
  const Memory* memory = is_key ? memory_.get() : is_item ? below_->memory.get() : nullptr;
  if (memory == nullptr || memory->used == nullptr) return ends;
  std::string begin = text_since(memory->begin);
  if (is_item) begin = without_spaces(begin);  // of a scalar, these can only be in front
  for (const UsedText* used = memory->used.get(); used != nullptr; used = used->before.get()) {
    if (starts_with(used->text, begin)) ends.push_back(used->text.substr(begin.size()) + (is_key ? "\"" : ""));
  }
  return ends;
}

bool Position::has_unused() const {
  std::vector<std::string> ends = used_ends();
  if (!ends.empty() && !machine_->has_other_end(state_, ends, names())) return false;
  for (const Frame* frame = below_.get(); frame != nullptr && frame->has_used; frame = frame->below.get()) {
    if (frame->memory == nullptr || frame->memory->used == nullptr) continue;
    if (machine_->memory(frame->state) != MemoryKind::kInsideItem) continue;
    ItemValues values = machine_->item_values(frame->state);
    if (values == nullptr) continue;
    if (!is_any_unused(*values, frame->memory->used, without_spaces(text_since(frame->memory->begin)))) return false;
  }
  return true;
}

bool Position::is_among_few_values() const {
  auto has_few_values = [this](State state, const std::shared_ptr<const Memory>& memory) {
    if (memory == nullptr || memory->used == nullptr) return false;
    MemoryKind kind = machine_->memory(state);
    bool is_array = kind == MemoryKind::kInsideItem || kind == MemoryKind::kItems;
    return is_array && machine_->item_values(state) != nullptr;
  };
  if (has_few_values(state_, memory_)) return true;
  for (const Frame* frame = below_.get(); frame != nullptr && frame->has_used; frame = frame->below.get()) {
    if (has_few_values(frame->state, frame->memory)) return true;
  }
  return false;
}

std::string Position::forced() const {
  std::string bytes;
  Position position = *this;
  while (!position.is_complete()) {
    std::vector<uint8_t> possible;
    for (int byte = 0; byte < 256; ++byte) {
      if (machine_->action(position.state_, uint8_t(byte)).kind != Action::kFail) possible.push_back(uint8_t(byte));
    }
    if (possible.size() > 1 && position.has_memory()) {
      auto is_used = [&position](uint8_t byte) {
        Position next = position;
        return !next.read(byte) || !next.has_unused();
      };
      possible.erase(std::remove_if(possible.begin(), possible.end(), is_used), possible.end());
    }
    if (possible.size() != 1 || !position.read(possible[0])) break;
    bytes.push_back(char(possible[0]));
  }
  return bytes;
}

}  // namespace structout::json
