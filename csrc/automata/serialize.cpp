#include "automata/automaton.h"
#include "base/byte_stream.h"

namespace structout::engine {

namespace {

const std::string kMagic = "structout automaton\n";
constexpr uint32_t kVersion = 1;
constexpr size_t kStateBytes = 3, kEdgeBytes = 6;

}  // namespace

std::string Automaton::serialize() const {
  ByteWriter writer;
  writer.write(kMagic);
  writer.write(kVersion, 4);
  writer.write(num_states(), 4);
  writer.write(num_edges(), 4);
  for (uint32_t state = 0; state < num_states(); ++state) {
    writer.write(is_accepting_[state], 1);
    writer.write(uint64_t(end(state) - begin(state)), 2);
    for (const Edge* edge = begin(state); edge < end(state); ++edge) {
      writer.write(edge->first, 1);
      writer.write(edge->last, 1);
      writer.write(edge->target, 4);
    }
  }
  return writer.finished();
}

Automaton Automaton::deserialize(const std::string& bytes) {
  ByteReader reader(bytes, "a serialized automaton");
  reader.check_header(kMagic, kVersion);
  uint64_t num_states = reader.read(4), num_edges = reader.read(4);
  if (reader.num_left() != num_states * kStateBytes + num_edges * kEdgeBytes) reader.fail("has another length");
  Automaton automaton;
  for (uint64_t state = 0; state < num_states; ++state) {
    uint64_t is_accepting = reader.read(1), count = reader.read(2);
    if (is_accepting > 1) reader.fail("is inconsistent");
    automaton.is_accepting_.push_back(uint8_t(is_accepting));
    int last = -1;
    for (uint64_t i = 0; i < count; ++i) {
      Edge edge{uint8_t(reader.read(1)), uint8_t(reader.read(1)), uint32_t(reader.read(4))};
      if (edge.first <= last || edge.first > edge.last || edge.target >= num_states) reader.fail("is inconsistent");
      last = edge.last;
      automaton.edges_.push_back(edge);
    }
    automaton.edge_begin_.push_back(uint32_t(automaton.edges_.size()));
  }
  if (automaton.edges_.size() != num_edges) reader.fail("is inconsistent");
  AutomatonBuilder builder;
  for (uint32_t state = 0; state < num_states; ++state) {
    builder.add_state(automaton.accepts(state), std::vector<Edge>(automaton.begin(state), automaton.end(state)));
  }
  Limits limits;
  limits.seconds = 60;  // trusted as far as time is concerned: the states are already there
  Budget budget(limits);
  if (num_states > 0 && !(builder.minimal(0, budget) == automaton)) reader.fail("is not minimal");
  return automaton;
}

}  // namespace structout::engine
