#include "grammar/token_masks/embedded_masks.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace structout::context_free {

using engine::EmbeddedView;

namespace {

bool depends_on_text(const EmbeddedView& view) {
  return view.mask == nullptr || view.entry == EmbeddedView::kNoEntry || !view.own_continuations.empty();
}

}  // namespace

const engine::ByteSet& EmbeddedMasks::followers(GssNode below, engine::Budget& budget) {
  auto known = followers_.find(below);
  if (known != followers_.end()) return known->second;
  Configuration after{reader_.after_embedded(below, budget)};
  engine::ByteSet bytes;
  for (uint32_t byte = 0; byte < 256; ++byte) bytes[byte] = !reader_.after(after, uint8_t(byte), budget).is_dead();
  return followers_.emplace(below, bytes).first->second;
}

std::vector<EmbeddedView> EmbeddedMasks::views(const Configuration& config, engine::Budget& budget) {
  std::vector<EmbeddedView> views;
  for (const EmbeddedParse& parse : config.others->parses) {
    const engine::ByteSet& followers = this->followers(parse.below, budget);
    views.push_back(reader_.embedded().locked(parse.cache).view(*parse.config, followers));
  }
  return views;
}

std::string EmbeddedMasks::key_of(const Configuration& config, const std::vector<EmbeddedView>& views) const {
  std::string key = lexer_key(config);
  for (size_t i = 0; i < views.size(); ++i) {
    append_to_key(key, config.others->parses[i].cache->number());
    append_to_key(key, views[i].entry);
    append_to_key(key, views[i].counting_continuations);
    append_to_key(key, config.others->parses[i].below);
  }
  return key;
}

KnownMask EmbeddedMasks::find(const Configuration& config, engine::Budget& budget) {
  if (config.others->known_mask.mask != nullptr) return config.others->known_mask;
  return find(config, views(config, budget), budget);
}

KnownMask EmbeddedMasks::find(const Configuration& config, const std::vector<EmbeddedView>& views,
                              engine::Budget& budget) {
  if (std::any_of(views.begin(), views.end(), depends_on_text)) return {};
  std::string key = key_of(config, views);
  auto known = found_.find(key);
  KnownMask found = known != found_.end() ? known->second : computed(config, views, budget);
  if (found.mask == nullptr) return found;
  if (known == found_.end()) found_.emplace(std::move(key), found);
  return config.others->known_mask = found;
}

KnownMask EmbeddedMasks::computed(const Configuration& config, const std::vector<EmbeddedView>& views,
                                  engine::Budget& budget) {
  const std::vector<EmbeddedParse>& parses = config.others->parses;
  std::fill(row_.begin(), row_.end(), 0);
  bool has_others = add_others(config, views, row_.data(), budget);
  if (!has_others && parses.size() == 1) return {views[0].mask, true};
  for (size_t i = 0; i < parses.size(); ++i) {
    engine::MaskRow added(added_row_.data(), added_row_.size());
    reader_.embedded().locked(parses[i].cache).expand(*views[i].mask, added);
    for (size_t word = 0; word < row_.size(); ++word) row_[word] |= added_row_[word];
  }
  return {store_.add(row_.data())};
}

bool EmbeddedMasks::add_others(const Configuration& config, const std::vector<EmbeddedView>& views, uint32_t* row,
                               engine::Budget& budget) {
  const std::vector<EmbeddedParse>& parses = config.others->parses;
  std::vector<Masks::Branch> branches;
  if (config.node != Stacks::kDead) branches.push_back(masks_.at(config));
  for (const LexerConfiguration& each : config.others->lexer_configs) branches.push_back(masks_.at(each));
  for (size_t i = 0; i < parses.size(); ++i) {
    views[i].visit_counting([&](const std::vector<uint32_t>& nodes) {
      branches.push_back(masks_.branch_after(nodes, parses[i].below, reader_, budget));
    });
  }
  auto has_end = [this](const LexerConfiguration& next) { return has_end_(Configuration{next}); };
  std::optional<std::vector<uint32_t>> partial_masks = masks_.partial_masks_of(reader_, branches, has_end, budget);
  if (partial_masks) masks_.add_tokens(*partial_masks, row);
  auto is_allowed = [this](const Configuration& next) {
    Configuration with_ends = reader_.with_ends(next);
    return !with_ends.is_dead() && has_end_(with_ends);
  };
  if (!partial_masks) {
    Configuration others{static_cast<const LexerConfiguration&>(config)};
    auto lexer_configs = config.others->lexer_configs;
    others.others =
        lexer_configs.empty()
            ? nullptr
            : std::make_shared<const OtherConfigurations>(OtherConfigurations{std::move(lexer_configs), {}});
    if (!others.is_dead()) masks_.add_by_walk(reader_, others, budget, is_allowed, row);
  }
  for (size_t i = 0; i < parses.size(); ++i) {
    auto add_below = [&](const std::vector<uint32_t>& nodes) {
      if (nodes.empty()) return;
      Configuration after{reader_.after_embedded(parses[i].below, budget)};
      for (uint32_t node : nodes) masks_.add_below(node, reader_, after, budget, is_allowed, row);
    };
    if (!partial_masks) views[i].visit_counting(add_below);
    add_below(views[i].own_continuations);
  }
  return std::any_of(row, row + row_.size(), [](uint32_t word) { return word != 0; });
}

bool EmbeddedMasks::has_mask(const Configuration& config) {
  if (config.others->known_mask.mask != nullptr) return true;
  std::vector<EmbeddedView> views;
  for (const EmbeddedParse& parse : config.others->parses) {
    auto followers = followers_.find(parse.below);
    if (followers == followers_.end()) return false;
    std::optional<EmbeddedView> view =
        reader_.embedded().locked(parse.cache).known_view(*parse.config, followers->second);
    if (!view || depends_on_text(*view)) return false;
    views.push_back(std::move(*view));
  }
  auto known = found_.find(key_of(config, views));
  if (known == found_.end()) return false;
  config.others->known_mask = known->second;
  return true;
}

uint32_t EmbeddedMasks::number_of(const Configuration& config, engine::Budget& budget) {
  return numbers_.try_emplace(key_of(config, views(config, budget)), uint32_t(numbers_.size())).first->second;
}

void EmbeddedMasks::fill(const Configuration& config, engine::MaskRow& row, engine::Budget& budget) {
  KnownMask found = config.others->known_mask;
  std::vector<EmbeddedView> views;
  if (found.mask == nullptr) {
    views = this->views(config, budget);
    found = find(config, views, budget);
  }
  if (found.mask != nullptr && !found.is_of_language) return store_.expand(*found.mask, row);
  if (found.mask != nullptr) return reader_.embedded().locked(config.others->parses[0].cache).expand(*found.mask, row);
  uint32_t* words = row.overwrite();
  std::fill(words, words + row_.size(), 0);
  add_others(config, views, words, budget);
  for (const EmbeddedParse& parse : config.others->parses) {
    reader_.embedded().locked(parse.cache).fill(*parse.config, added_row_.data());
    for (size_t i = 0; i < row_.size(); ++i) words[i] |= added_row_[i];
  }
}

}  // namespace structout::context_free
