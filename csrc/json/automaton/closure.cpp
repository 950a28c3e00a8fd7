#include "json/automaton/closure.h"

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "json/automaton/configuration.h"

namespace structout::json {

namespace {

constexpr size_t kMaxStackDepth = 64;  // deeper stacks count as recursion

// A key of the configuration: the states of the stack and the seen keys.
// Configurations with equal keys have the same continuations. None if keys or items must
// differ from earlier ones, or if the stack is too deep.
std::optional<std::string> name_of(const Configuration& config) {
  std::string name;
  auto add = [&](State state, const Registers* registers) {
    RegisterKind kind = config.automaton().register_kind(state);
    if (kind != RegisterKind::kNone && kind != RegisterKind::kKeys) return false;
    name.append(reinterpret_cast<const char*>(&state), sizeof state);
    for (size_t i = 0; registers != nullptr && i < registers->seen_keys.size(); ++i) {
      if (registers->seen_keys[i]) name += std::to_string(i) + ',';
    }
    name += ';';
    return registers == nullptr || registers->used == nullptr;
  };
  if (!add(config.state(), config.registers())) return std::nullopt;
  size_t depth = 1;
  for (const Frame* frame = config.below(); frame != nullptr; frame = frame->below.get()) {
    if (++depth > kMaxStackDepth || !add(frame->state, frame->registers.get())) return std::nullopt;
  }
  return name;
}

}  // namespace

std::optional<engine::Automaton> closure(SchemaAutomaton& automaton, engine::Budget& budget) {
  std::unordered_map<std::string, uint32_t> numbers;
  std::vector<Configuration> configs;
  auto number_of = [&](const Configuration& config) -> std::optional<uint32_t> {
    std::optional<std::string> name = name_of(config);
    if (!name) return std::nullopt;
    auto [found, is_new] = numbers.try_emplace(std::move(*name), uint32_t(configs.size()));
    if (is_new) configs.push_back(config);
    return found->second;
  };
  if (!number_of(Configuration(automaton))) return std::nullopt;
  engine::AutomatonBuilder builder;
  for (size_t i = 0; i < configs.size(); ++i) {
    if (configs.size() > budget.limits.states) return std::nullopt;
    budget.spend(1);
    const Configuration config = configs[i];
    const bool is_scalar = automaton.is_scalar(config.state());
    std::vector<engine::Edge> edges;
    Action before;
    for (int byte = 0; byte < 256; ++byte) {
      const Action action = automaton.action(config.state(), uint8_t(byte));
      bool is_same = is_scalar && action.kind == Action::kReplace && action == before;
      before = action;
      if (action.kind == Action::kFail) continue;
      if (is_same) {  // of a string or number only the state changes
        edges.back().last = uint8_t(byte);
        continue;
      }
      Configuration next = config;
      if (!next.read(uint8_t(byte))) continue;
      std::optional<uint32_t> target = number_of(next);
      if (!target) return std::nullopt;
      if (!edges.empty() && edges.back().target == *target && edges.back().last + 1 == byte) {
        edges.back().last = uint8_t(byte);
      } else {
        edges.push_back({uint8_t(byte), uint8_t(byte), *target});
      }
    }
    builder.add_state(config.is_complete(), edges);
  }
  return builder.minimal(0, budget);
}

}  // namespace structout::json
