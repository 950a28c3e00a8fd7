#include "json/uniqueness/used_values.h"

#include <algorithm>

namespace structout::json {

namespace {

template <typename Links>
auto find_child(Links& children, uint8_t byte) {
  return std::lower_bound(children.begin(), children.end(), byte,
                          [](const auto& child, uint8_t byte) { return uint8_t(child->label[0]) < byte; });
}

}  // namespace

// In a loop: destructors that call each other would run out of stack.
UsedItem::~UsedItem() {
  std::shared_ptr<const UsedItem> item = std::move(before);
  while (item != nullptr && item.use_count() == 1) item = std::move(const_cast<UsedItem&>(*item).before);
}

void TextSet::Cursor::read(uint8_t byte) {
  if (node_ == nullptr) return;
  if (offset_ < node_->label.size()) {
    if (uint8_t(node_->label[offset_++]) != byte) node_ = nullptr;
    return;
  }
  auto child = find_child(node_->children, byte);
  bool is_found = child != node_->children.end() && uint8_t((*child)->label[0]) == byte;
  node_ = is_found ? child->get() : nullptr;
  offset_ = 1;
}

bool TextSet::contains(const std::string& text) const {
  Cursor cursor = begin();
  for (size_t i = 0; i < text.size() && !cursor.is_dead(); ++i) cursor.read(uint8_t(text[i]));
  return cursor.is_whole();
}

TextSet TextSet::with(const std::string& text) const {
  TextSet set;
  set.root_ = with(root_ == nullptr ? std::make_shared<const Node>() : root_, text, 0);
  return set;
}

TextSet::Link TextSet::with(const Link& node, const std::string& text, size_t begin) {
  auto copy = std::make_shared<Node>(*node);
  ++copy->count;
  size_t common = 0;
  while (common < copy->label.size() && begin + common < text.size() && copy->label[common] == text[begin + common]) {
    ++common;
  }
  if (common < copy->label.size()) {  // the rest of the label becomes a child
    auto rest = std::make_shared<Node>(*node);
    rest->label.erase(0, common);
    copy->label.resize(common);
    copy->is_end = false;
    copy->children = {std::move(rest)};
  }
  begin += common;
  if (begin == text.size()) {
    copy->is_end = true;
    return copy;
  }
  auto child = find_child(copy->children, uint8_t(text[begin]));
  if (child != copy->children.end() && (*child)->label[0] == text[begin]) {
    *child = with(*child, text, begin);
  } else {
    auto leaf = std::make_shared<Node>();
    leaf->label = text.substr(begin);
    leaf->is_end = true;
    leaf->count = 1;
    copy->children.insert(child, std::move(leaf));
  }
  return copy;
}

}  // namespace structout::json
