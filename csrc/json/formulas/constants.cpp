#include "json/formulas/constants.h"

#include <algorithm>

#include "base/sorted_set.h"
#include "json/document/decimal.h"

namespace structout::json {

namespace {

void append(std::string& text, uint32_t number) { text.append(reinterpret_cast<const char*>(&number), sizeof number); }

}  // namespace

uint32_t Constants::number_of(const Value& value) {
  Constant constant = {&value, {}};
  std::string text(1, char('0' + int(value.kind)));
  if (value.is_number()) {
    text += Decimal(value.text).text();
  } else if (value.is_string()) {
    text += value.text;
  } else {
    for (size_t i = 0; i < value.items.size(); ++i) {
      uint32_t key = value.is_object() ? number_of_name_(value.names[i]) : uint32_t(i);
      constant.parts.push_back({key, number_of(value.items[i])});
    }
    std::sort(constant.parts.begin(), constant.parts.end(), [](const Part& a, const Part& b) { return a.key < b.key; });
    for (const Part& part : constant.parts) {
      append(text, part.key);
      append(text, part.value);
    }
  }
  auto known = numbers_.find(text);
  if (known != numbers_.end()) return known->second;
  memory_bytes_ += 2 * sizeof(Constant) + text.size() + constant.parts.size() * sizeof(Part);
  constants_.push_back(std::move(constant));
  return numbers_.emplace(std::move(text), uint32_t(constants_.size() - 1)).first->second;
}

uint32_t Constants::set_of(std::vector<uint32_t> constants) {
  engine::make_set(constants);
  std::string text(reinterpret_cast<const char*>(constants.data()), constants.size() * sizeof(uint32_t));
  auto known = set_numbers_.find(text);
  if (known != set_numbers_.end()) return known->second;
  memory_bytes_ += 2 * text.size() + 2 * sizeof(std::string);
  sets_.push_back(std::move(constants));
  return set_numbers_.emplace(std::move(text), uint32_t(sets_.size() - 1)).first->second;
}

const Constants::WithValue& Constants::with_key(uint32_t set, uint32_t key) {
  auto known = by_key_.find(set);
  if (known == by_key_.end()) {
    decltype(by_key_)::mapped_type of_keys;
    for (uint32_t constant : sets_[set]) {
      for (const Part& part : constants_[constant].parts) of_keys[part.key].emplace_back(part.value, constant);
    }
    for (auto& [name, members] : of_keys) {
      std::sort(members.begin(), members.end());
      memory_bytes_ += sizeof(WithValue) + members.capacity() * sizeof(members[0]);
    }
    known = by_key_.emplace(set, std::move(of_keys)).first;
  }
  return known->second[key];
}

std::vector<uint32_t> Constants::keys(uint32_t set) const {
  std::vector<uint32_t> keys;
  for (uint32_t constant : sets_[set]) {
    for (const Part& part : constants_[constant].parts) keys.push_back(part.key);
  }
  engine::make_set(keys);
  return keys;
}

}  // namespace structout::json
