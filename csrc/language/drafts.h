// The positions that the draft tokens of a text lead to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace structout::engine {

// Gives each drafted configuration a state number of the matcher: `own` is the present
// configuration, and the numbers above it are the drafts in the order in which they were
// added. The numbers are valid until the text moves. If the accepted tokens are the drafted
// ones, follow() returns their configurations, so that they need not be computed again.
template <typename Configuration>
class Drafts {
 public:
  explicit Drafts(uint32_t own) : own_(own) {}

  const Configuration& config(uint32_t state) const { return drafts_[state - own_ - 1].config; }

  // Adds the configuration that a token leads to from a state, and returns its state.
  uint32_t add(uint32_t before, uint32_t token, Configuration config) {
    if (moved_ != 0) clear();
    drafts_.push_back({before, token, std::move(config)});
    return own_ + uint32_t(drafts_.size());
  }

  // Moves by a token. Returns the configuration after it, or null if it was not drafted;
  // searches the drafts after the last one that was followed.
  const Configuration* follow(uint32_t token) {
    for (size_t i = moved_; i < drafts_.size(); ++i) {
      if (drafts_[i].before != own_ + moved_ || drafts_[i].token != token) continue;
      moved_ = uint32_t(i + 1);
      return &drafts_[i].config;
    }
    return nullptr;
  }

  void clear() {
    drafts_.clear();
    moved_ = 0;
  }

  // Computes the configuration of every draft anew, as after(config before, token). Returns
  // no drafts once the text has moved.
  template <typename After>
  Drafts read_again(const Configuration& present, After after) const {
    Drafts again(own_);
    if (moved_ != 0) return again;
    for (const Draft& draft : drafts_) {
      again.add(draft.before, draft.token,
                after(draft.before == own_ ? present : again.config(draft.before), draft.token));
    }
    return again;
  }

 private:
  struct Draft {
    uint32_t before;  // the state that it follows
    uint32_t token;
    Configuration config;
  };

  uint32_t own_;
  std::vector<Draft> drafts_;
  uint32_t moved_ = 0;  // the number of the draft that the text has moved to
};

}  // namespace structout::engine
