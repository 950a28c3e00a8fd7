#include "json/constants.h"

#include <algorithm>

#include "base/sorted_set.h"
#include "json/decimal.h"

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
  auto [found, is_new] = numbers_.try_emplace(std::move(text), uint32_t(constants_.size()));
  if (is_new) {
    memory_bytes_ += 2 * sizeof(Constant) + found->first.size() + constant.parts.size() * sizeof(Part);
    constants_.push_back(std::move(constant));
  }
  return found->second;
}

uint32_t Constants::set_of(std::vector<uint32_t> constants) {
  engine::make_set(constants);
  std::string text(reinterpret_cast<const char*>(constants.data()), constants.size() * sizeof(uint32_t));
  auto [found, is_new] = set_numbers_.try_emplace(std::move(text), uint32_t(sets_.size()));
  if (is_new) {
    memory_bytes_ += 2 * found->first.size() + 2 * sizeof(std::string);
    sets_.push_back(std::move(constants));
  }
  return found->second;
}

const Constants::WithValue& Constants::with_key(uint32_t set, uint32_t key) {
  auto [found, is_new] = by_key_.try_emplace(set);
  if (is_new) {
    for (uint32_t constant : sets_[set]) {
      for (const Part& part : constants_[constant].parts) found->second[part.key].emplace_back(part.value, constant);
    }
    for (auto& [name, members] : found->second) {
      std::sort(members.begin(), members.end());
      memory_bytes_ += sizeof(WithValue) + members.capacity() * sizeof(members[0]);
    }
  }
  return found->second[key];
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
