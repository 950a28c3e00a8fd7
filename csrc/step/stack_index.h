// An automaton over tokens as a language of stack tables: one without a stack.
#pragma once

#include <memory>
#include <utility>

#include "masks/token_index.h"
#include "step/stack_language.h"

namespace structout::engine {

class StackIndex final : public StackLanguage {
 public:
  explicit StackIndex(std::shared_ptr<const TokenIndex> index) : index_(std::move(index)) {}

  const VocabularyTrie& vocabulary() const override { return index_->vocabulary(); }
  uint32_t start() override { return 0; }
  bool has_stack() const override { return false; }
  bool accepts(uint32_t state) override { return index_->accepts(state); }
  bool is_below_bottom(uint32_t) override { return false; }
  bool keeps_names(uint32_t) override { return false; }
  bool is_live(uint32_t state) override { return index_->is_live(state); }

  void list_actions(uint32_t state, StackAction* actions) override {
    for (int byte = 0; byte < 256; ++byte) {
      uint32_t next = index_->automaton().next(state, uint8_t(byte));
      actions[byte] = next == kDead ? StackAction{} : StackAction{StackAction::kReplace, next};
    }
  }

  int64_t resume(uint32_t, uint32_t) override { return kRefused; }

  StackMask fill(const StackPlace& place, uint32_t* row) override {
    StackMask mask;
    mask.state = place.frames.back().state;
    index_->fill(mask.state, row);
    return mask;
  }

  std::unique_ptr<Text> text() override { return std::make_unique<IndexText>(index_); }

 private:
  class IndexText final : public Text {
   public:
    explicit IndexText(std::shared_ptr<const TokenIndex> index) : index_(std::move(index)) {}
    std::unique_ptr<Text> copy() const override { return std::make_unique<IndexText>(*this); }
    bool read(uint32_t token) override {
      uint32_t next = index_->next(state_, token);
      if (next == kDead) return false;
      state_ = next;
      return true;
    }
    bool is_complete() override { return index_->accepts(state_); }
    void fill(uint32_t* row) override { index_->fill(state_, row); }
    bool find_place(StackPlace& place) override {
      place.frames = {{state_, 0}};
      return true;
    }

   private:
    std::shared_ptr<const TokenIndex> index_;
    uint32_t state_ = 0;
  };

  std::shared_ptr<const TokenIndex> index_;
};

}  // namespace structout::engine
