// Access to the states of embedded languages, for the texts of a grammar.
#pragma once

#include <memory>
#include <vector>

#include "context_free/network.h"
#include "masks/embedded.h"

namespace structout::context_free {

// Finds and holds (locks) the states of embedded languages. It holds those of one language
// at a time, so threads never wait for each other in a circle.
class EmbeddedUse {
 public:
  // `has_own`: true if the texts get new states, which they share with no others.
  EmbeddedUse(const Network& network, bool has_own) : network_(network), has_own_(has_own) {
    for (const auto& language : network.embedded()) {
      current_.push_back(has_own ? language->new_embedded_states() : language->embedded_states());
    }
  }
  ~EmbeddedUse() { release(); }
  EmbeddedUse(const EmbeddedUse&) = delete;

  // Returns the states for new texts of a language. Unless they are own ones, the language
  // may have replaced them since the last call.
  const std::shared_ptr<engine::EmbeddedStates>& current(uint32_t language) {
    if (!has_own_) {
      std::shared_ptr<engine::EmbeddedStates> states = network_.embedded()[language]->embedded_states();
      if (states != current_[language]) current_[language] = std::move(states);
    }
    return current_[language];
  }

  // Holds the states until release(), or until the next call with other states.
  engine::EmbeddedStates& held(const std::shared_ptr<engine::EmbeddedStates>& states) {
    if (held_ != states) {
      release();
      states->hold();
      held_ = states;
    }
    return *states;
  }

  void release() noexcept {
    if (held_ != nullptr) held_->release();
    held_ = nullptr;
  }

 private:
  const Network& network_;
  const bool has_own_;
  std::vector<std::shared_ptr<engine::EmbeddedStates>> current_;  // by language
  std::shared_ptr<engine::EmbeddedStates> held_;
};

}  // namespace structout::context_free
