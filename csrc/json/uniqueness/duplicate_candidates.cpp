#include "json/uniqueness/duplicate_candidates.h"

#include <algorithm>

#include "json/automaton/whitespace.h"
#include "json/document/decimal.h"

namespace structout::json {

namespace {

constexpr uint64_t kItemsPerStep = 32;  // of a budget: one item takes a few nanoseconds

bool is_of_number(uint8_t byte) {
  return (byte >= '0' && byte <= '9') || byte == '-' || byte == '+' || byte == '.' || byte == 'e' || byte == 'E';
}

bool begins_so(const std::string& text, const std::string& begin) { return text.compare(0, begin.size(), begin) == 0; }

}  // namespace

DuplicateCandidates::DuplicateCandidates(std::shared_ptr<const UsedValues> used, size_t length)
    : used_(std::move(used)), is_written_once_(used_ == nullptr || used_->are_written_once), length_(length) {
  if (used_ == nullptr) return;
  begin_ = used_->written.begin();
  if (is_written_once_) return;
  for (const UsedItem* item = used_->last.get(); item != nullptr; item = item->before.get()) {
    items_.push_back(item);
    values_.push_back(&item->value);
  }
  work_ = items_.size() / kItemsPerStep;
}

template <typename Predicate>
void DuplicateCandidates::keep(Predicate&& predicate) {
  work_ += items_.size() / kItemsPerStep;
  size_t count = 0;
  for (size_t i = 0; i < items_.size(); ++i) {
    if (!predicate(row(i))) continue;
    items_[count] = items_[i];
    std::copy(row(i), row(i) + width_, values_.begin() + ptrdiff_t(count * width_));
    ++count;
  }
  items_.resize(count);
  values_.resize(count * width_);
}

template <typename Child>
void DuplicateCandidates::descend(Child&& child) {
  work_ += items_.size() / kItemsPerStep;
  std::vector<const UsedItem*> items;
  std::vector<const Value*> values;
  for (size_t i = 0; i < items_.size(); ++i) {
    const Value* found = child(*row(i)[width_ - 1]);
    if (found == nullptr) continue;
    items.push_back(items_[i]);
    values.insert(values.end(), row(i), row(i) + width_);
    values.push_back(found);
  }
  items_ = std::move(items);
  values_ = std::move(values);
  ++width_;
}

const Value* DuplicateCandidates::member(const Value& object, const std::string& name) const {
  size_t next = open_.back().count;  // most often the order is the same
  if (next < object.names.size() && object.names[next] == name) return &object.items[next];
  auto found = std::find(object.names.begin(), object.names.end(), name);
  return found == object.names.end() ? nullptr : &object.items[size_t(found - object.names.begin())];
}

bool DuplicateCandidates::has_member_that_begins(const Value& object) const {
  const std::vector<std::string>& come = open_.back().names;
  return std::any_of(object.names.begin(), object.names.end(), [&](const std::string& name) {
    return begins_so(name, text_) && std::find(come.begin(), come.end(), name) == come.end();
  });
}

void DuplicateCandidates::begin_value(uint8_t byte) {
  if (!open_.empty() && !open_.back().is_object) {
    size_t index = open_.back().count;
    descend([index](const Value& array) { return index < array.items.size() ? &array.items[index] : nullptr; });
  }
  auto keep_kind = [this](ValueKind kind) {
    keep([this, kind](const Value* const* values) { return values[width_ - 1]->kind == kind; });
  };
  offset_ = 1;
  is_escaped_ = false;
  text_.clear();
  switch (byte) {
    case '{':
      keep_kind(ValueKind::kObject);
      open_.push_back({true});
      mode_ = Mode::kBeforeKey;
      return;
    case '[':
      keep_kind(ValueKind::kArray);
      open_.push_back({false});
      mode_ = Mode::kValue;
      return;
    case '"':
      keep_kind(ValueKind::kString);
      mode_ = Mode::kString;
      return;
    case 'n':
      keep_kind(ValueKind::kNull);
      break;
    case 't':
      keep_kind(ValueKind::kTrue);
      break;
    case 'f':
      keep_kind(ValueKind::kFalse);
      break;
    default:
      keep_kind(ValueKind::kNumber);
      text_ = char(byte);
      mode_ = Mode::kNumber;
      return;
  }
  mode_ = Mode::kLiteral;
  text_ = byte == 'f' ? "false" : "true";  // or null, which is as long
}

void DuplicateCandidates::complete() {
  if (open_.empty()) {
    mode_ = Mode::kDone;
    return;
  }
  std::vector<const Value*> around;
  for (size_t i = 0; i < items_.size(); ++i) around.insert(around.end(), row(i), row(i) + width_ - 1);
  values_ = std::move(around);
  --width_;
  ++open_.back().count;
  mode_ = Mode::kAfterValue;
}

void DuplicateCandidates::close() {
  size_t count = open_.back().count;
  keep([this, count](const Value* const* values) { return values[width_ - 1]->items.size() == count; });
  open_.pop_back();
  complete();
}

void DuplicateCandidates::read(const std::string& text) {
  length_ += text.size();
  work_ += text.size() / kItemsPerStep + 1;
  for (char byte : text) {
    if (is_written_once_) {
      read_written(uint8_t(byte));
    } else if (!items_.empty()) {
      read(uint8_t(byte));
    }
  }
  if (!is_written_once_ && !text_.empty() && !items_.empty()) compare_begin();
}

void DuplicateCandidates::read_written(uint8_t byte) {
  bool is_in_text = mode_ == Mode::kString;
  bool is_number = !is_in_text && is_of_number(byte) && (mode_ == Mode::kNumber || byte == '-' || byte <= '9');
  if (mode_ == Mode::kNumber && !is_number) {
    for (char digit : Decimal(text_).text()) begin_.read(uint8_t(digit));
    mode_ = Mode::kAfterValue;
  }
  if (is_number) {
    if (mode_ != Mode::kNumber) text_.clear();
    mode_ = Mode::kNumber;
    text_.push_back(char(byte));
    return;
  }
  if (!is_in_text && is_space(byte)) return;
  if (byte == '"' && !is_escaped_) mode_ = is_in_text ? Mode::kAfterValue : Mode::kString;
  is_escaped_ = is_in_text && byte == '\\' && !is_escaped_;
  begin_.read(byte);
}

void DuplicateCandidates::compare_begin() {
  if (mode_ == Mode::kKey) {
    keep([this](const Value* const* values) { return has_member_that_begins(*values[width_ - 1]); });
  } else if (mode_ == Mode::kString) {
    keep([this](const Value* const* values) { return begins_so(values[width_ - 1]->text, text_); });
  }
}

void DuplicateCandidates::read(uint8_t byte) {
  if (mode_ == Mode::kNumber) {
    if (is_of_number(byte)) {
      text_.push_back(char(byte));
      return;
    }
    std::string number = Decimal(text_).text();
    keep([this, &number](const Value* const* values) { return values[width_ - 1]->text == number; });
    complete();
  }
  bool is_in_text = mode_ == Mode::kString || mode_ == Mode::kKey;
  if (!is_in_text && is_space(byte)) return;
  bool ends_text = is_in_text && byte == '"' && !is_escaped_;
  is_escaped_ = is_in_text && byte == '\\' && !is_escaped_;
  switch (mode_) {
    case Mode::kValue:
      return byte == ']' ? close() : begin_value(byte);
    case Mode::kString:
      if (ends_text) {
        keep([this](const Value* const* values) { return values[width_ - 1]->text == text_; });
        return complete();
      }
      text_.push_back(char(byte));
      return;
    case Mode::kLiteral:
      if (++offset_ == text_.size()) complete();
      return;
    case Mode::kAfterValue: {
      if (byte != ',') return close();
      bool is_object = open_.back().is_object;
      size_t count = open_.back().count;
      keep([this, count](const Value* const* values) { return values[width_ - 1]->items.size() > count; });
      mode_ = is_object ? Mode::kBeforeKey : Mode::kValue;
      return;
    }
    case Mode::kBeforeKey:
      if (byte == '}') return close();
      text_.clear();
      keep([this](const Value* const* values) { return has_member_that_begins(*values[width_ - 1]); });
      mode_ = Mode::kKey;
      return;
    case Mode::kKey:
      if (ends_text) {
        descend([this](const Value& object) { return member(object, text_); });
        open_.back().names.push_back(text_);
        mode_ = Mode::kColon;
        return;
      }
      text_.push_back(char(byte));
      return;
    case Mode::kColon:
      mode_ = Mode::kValue;
      return;
    default:
      return;
  }
}

size_t DuplicateCandidates::num_with_same_formulas(uint32_t value_formulas, bool is_order_free) const {
  if (is_written_once_) {
    bool have_same_formulas =
        used_ != nullptr && used_->have_same_formulas && used_->last->value_formulas == value_formulas;
    return have_same_formulas ? size() : 0;
  }
  size_t count = 0;
  for (size_t i = 0; i < items_.size(); ++i) {
    bool is_counted = items_[i]->value_formulas == value_formulas;
    for (size_t depth = 0; depth < open_.size() && is_counted && !is_order_free; ++depth) {
      const std::vector<std::string>&names = row(i)[depth]->names, &come = open_[depth].names;
      is_counted = !open_[depth].is_object || std::equal(come.begin(), come.end(), names.begin());
      bool is_in_key = mode_ == Mode::kKey && depth + 1 == open_.size();
      if (is_counted && is_in_key) is_counted = come.size() < names.size() && begins_so(names[come.size()], text_);
    }
    count += is_counted;
  }
  return count;
}

}  // namespace structout::json
