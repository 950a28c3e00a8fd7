#include "json/closure.h"

#include <map>
#include <utility>
#include <vector>

namespace structout::json {

namespace {

constexpr size_t kMaxStackDepth = 64;  // deeper ones are taken for recursion

using Stack = std::vector<State>;

// What a byte makes of a stack. False if it is not allowed.
bool read(Machine& machine, Stack& stack, uint8_t byte) {
  for (;;) {
    Action action = machine.action(stack.back(), byte);
    switch (action.kind) {
      case Action::kFail:
        return false;
      case Action::kReplace:
        stack.back() = action.state;
        return true;
      case Action::kPush:
        stack.back() = action.below;
        stack.push_back(action.state);
        return true;
      case Action::kPop:
      case Action::kPopBefore: {
        stack.pop_back();
        State state = machine.resume(stack.empty() ? kNoState : stack.back(), action.state);
        if (state == kNoState) return false;
        if (!stack.empty()) stack.pop_back();
        stack.push_back(state);
        if (action.kind == Action::kPop) return true;
      }
    }
  }
}

}  // namespace

std::optional<fsm::Automaton> closure(Machine& machine, fsm::Budget& budget) {
  std::map<Stack, uint32_t> numbers;
  std::vector<const Stack*> stacks;
  auto number_of = [&](const Stack& stack) {
    auto [found, is_new] = numbers.try_emplace(stack, uint32_t(stacks.size()));
    if (is_new) stacks.push_back(&found->first);
    return found->second;
  };
  number_of({machine.start()});
  fsm::AutomatonBuilder builder;
  for (size_t i = 0; i < stacks.size(); ++i) {
    if (stacks.size() > budget.limits.states) return std::nullopt;
    budget.spend(1);
    const Stack& stack = *stacks[i];
    if (stack.size() > kMaxStackDepth || machine.memory(stack.back()) != Machine::Memory::kNone) return std::nullopt;
    std::vector<fsm::Edge> edges;
    for (int byte = 0; byte < 256; ++byte) {
      Stack next = stack;
      if (!read(machine, next, uint8_t(byte))) continue;
      uint32_t target = number_of(next);
      if (!edges.empty() && edges.back().target == target && edges.back().last + 1 == byte) {
        edges.back().last = uint8_t(byte);
      } else {
        edges.push_back({uint8_t(byte), uint8_t(byte), target});
      }
    }
    bool is_complete = stack.size() == 1 && (machine.is_end(stack[0]) || machine.verdicts_at_end(stack[0]));
    builder.add_state(is_complete, edges);
  }
  return builder.minimal(0, budget);
}

}  // namespace structout::json
