// structout._fsm: the automata of csrc/fsm for Python. Work that may take long releases
// Python's global lock; lookups keep it, because getting it back may take milliseconds.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "fsm/compile.h"
#include "fsm/lazy_product.h"
#include "fsm/matcher.h"
#include "fsm/regex.h"
#include "fsm/rules.h"
#include "fsm/token_index.h"

namespace py = pybind11;
using namespace structout::fsm;

namespace {

constexpr int64_t kNoToken = -2;  // -1 has a meaning among drafts

// A token id as Python code may give it. Whatever is no integer is no token.
int64_t token_of(py::handle given) {
  PyObject* object = given.ptr();
  if (PyBool_Check(object)) return kNoToken;
  py::object index;
  if (!PyLong_CheckExact(object)) {
    index = py::reinterpret_steal<py::object>(PyNumber_Index(object));
    if (!index) {
      PyErr_Clear();
      return kNoToken;
    }
    object = index.ptr();
  }
  int overflow = 0;
  long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow != 0 ? kNoToken : value;
}

std::vector<int64_t> tokens_of(const py::sequence& given) {
  std::vector<int64_t> tokens;
  tokens.reserve(given.size());
  for (py::handle token : given) tokens.push_back(token_of(token));
  return tokens;
}

int64_t state_or_minus_one(uint32_t state) { return state == kDead ? -1 : int64_t(state); }

template <typename States>
uint32_t checked_state(States& of, int64_t state) {
  if (state < 0 || state >= of.num_states()) {
    throw py::index_error("a state must be in [0, " + std::to_string(of.num_states()) + "), got " +
                          std::to_string(state));
  }
  return uint32_t(state);
}

uint32_t* row_at(uintptr_t address, int64_t row, int64_t row_bytes) {
  return reinterpret_cast<uint32_t*>(address + uintptr_t(row * row_bytes));
}

// Runs `work`, without Python's global lock if it is long.
template <typename Work>
auto run(bool is_long, Work work) {
  if (!is_long) return work();
  py::gil_scoped_release released;
  return work();
}

// Appends the tokens of any iterable. Returns false for what is none.
bool append_tokens(py::handle given, std::vector<int64_t>& tokens) {
  PyObject* sequence = PySequence_Fast(given.ptr(), "");
  if (sequence == nullptr) {
    PyErr_Clear();
    return false;
  }
  py::object owner = py::reinterpret_steal<py::object>(sequence);
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence); ++i) {
    tokens.push_back(token_of(PySequence_Fast_GET_ITEM(sequence, i)));
  }
  return true;
}

// The matcher of a Python object. A batch converts thousands of them, so it does without
// pybind11's search for the type.
Matcher& matcher_of(PyObject* object) {
  static PyTypeObject* const type = reinterpret_cast<PyTypeObject*>(py::type::of<Matcher>().ptr());
  if (Py_TYPE(object) != type) throw py::type_error("expected a Matcher");
  return *static_cast<Matcher*>(reinterpret_cast<py::detail::instance*>(object)->get_value_and_holder().value_ptr());
}

// Whether each matcher has accepted all of its tokens. One that has not does not move.
py::list accept_batch(const py::list& matchers, const py::list& tokens_of_each) {
  size_t count = matchers.size();
  if (tokens_of_each.size() != count) throw std::invalid_argument("expected tokens for each matcher");
  py::list are_accepted(count);
  std::vector<int64_t> tokens;
  for (size_t i = 0; i < count; ++i) {
    tokens.clear();
    Matcher& matcher = matcher_of(PyList_GET_ITEM(matchers.ptr(), Py_ssize_t(i)));
    bool is_accepted = append_tokens(PyList_GET_ITEM(tokens_of_each.ptr(), Py_ssize_t(i)), tokens) &&
                       matcher.accept(tokens.data(), tokens.size());
    PyList_SET_ITEM(are_accepted.ptr(), Py_ssize_t(i), py::bool_(is_accepted).release().ptr());
  }
  return are_accepted;
}

// The rows of a step: the matcher and the state of each.
struct Rows {
  std::vector<const Matcher*> matchers;
  std::vector<uint32_t> states;

  void add(const Matcher& matcher) { matchers.resize(states.size(), &matcher); }

  bool has_masks() const {
    for (size_t i = 0; i < states.size(); ++i) {
      if (states[i] != kFreeRow && !matchers[i]->index().has_mask(states[i])) return false;
    }
    return true;
  }

  // Fills a row and returns whether it allows anything.
  bool fill(size_t i, uint32_t* row) const {
    if (states[i] != kFreeRow) return matchers[i]->fill(states[i], row);
    std::fill(row, row + matchers[i]->index().vocabulary().row_words(), UINT32_MAX);
    return true;
  }
};

void fill_batch(const py::list& matchers, uintptr_t address, int64_t row_bytes, const std::vector<int64_t>& row_ids) {
  Rows rows;
  for (py::handle given : matchers) {
    const Matcher& matcher = matcher_of(given.ptr());
    rows.states.push_back(matcher.state());
    rows.add(matcher);
  }
  if (row_ids.size() != rows.states.size()) throw std::invalid_argument("expected a row for each matcher");
  run(!rows.has_masks(), [&] {
    for (size_t i = 0; i < row_ids.size(); ++i) rows.fill(i, row_at(address, row_ids[i], row_bytes));
  });
}

// The rows of a decoding step: for each matcher that has not terminated its next mask,
// and one for each of its drafts. To be used before a matcher moves.
class Step {
 public:
  // `drafts` has a sequence or None for each matcher, or is None.
  Step(py::list matchers, const py::object& drafts)
      : row_indptr{ptrdiff_t(matchers.size() + 1)},
        num_allowed{ptrdiff_t(matchers.size())},
        matchers_(std::move(matchers)) {
    int32_t *ends = row_indptr.mutable_data(), *allowed = num_allowed.mutable_data();
    std::vector<int64_t> tokens;
    ends[0] = 0;
    for (size_t i = 0; i < matchers_.size(); ++i) {
      const Matcher& matcher = matcher_of(PyList_GET_ITEM(matchers_.ptr(), Py_ssize_t(i)));
      tokens.clear();
      if (!drafts.is_none()) {
        py::handle given = PyList_GET_ITEM(drafts.ptr(), Py_ssize_t(i));
        if (!given.is_none() && !append_tokens(given, tokens))
          throw py::type_error("drafts must be sequences of tokens");
      }
      allowed[i] = 0;
      if (!matcher.is_terminated()) {
        allowed[i] = int32_t(matcher.append_draft_states(tokens.data(), tokens.size(), rows_.states));
        rows_.add(matcher);
      }
      ends[i + 1] = int32_t(rows_.states.size());
    }
  }

  size_t num_rows() const { return rows_.states.size(); }

  // The different masks of the rows, as far as Matcher::mask_key tells: the key of each,
  // its first row, and for each row the index of its mask.
  py::tuple distinct_masks() const {
    std::vector<uint64_t> keys;
    std::vector<int64_t> first_rows;
    py::array_t<int64_t> index_of_row{ptrdiff_t(num_rows())};
    int64_t* index = index_of_row.mutable_data();
    int bits = 1;
    while ((size_t(1) << bits) < 2 * num_rows()) ++bits;
    std::vector<int64_t> table(size_t(1) << bits, -1);  // indices of masks, by open addressing
    run(!rows_.has_masks(), [&] {
      for (size_t i = 0; i < num_rows(); ++i) {
        uint64_t key = rows_.states[i] == kFreeRow ? kFreeKey : rows_.matchers[i]->mask_key(rows_.states[i]);
        size_t slot = size_t(key * 0x9E3779B97F4A7C15u >> (64 - bits));
        while (table[slot] >= 0 && keys[size_t(table[slot])] != key) slot = (slot + 1) & (table.size() - 1);
        if (table[slot] < 0 || key == kNoKey) {
          table[slot] = int64_t(keys.size());
          keys.push_back(key);
          first_rows.push_back(int64_t(i));
        }
        index[i] = table[slot];
      }
    });
    return py::make_tuple(py::array_t<uint64_t>(ptrdiff_t(keys.size()), keys.data()),
                          py::array_t<int64_t>(ptrdiff_t(first_rows.size()), first_rows.data()), index_of_row);
  }

  // Writes the masks of all rows, or of the given ones, to consecutive rows of a buffer.
  // Returns the rows of the buffer that allow nothing.
  std::vector<size_t> fill(const std::optional<std::vector<size_t>>& given, uintptr_t address, int64_t row_bytes,
                           size_t buffer_rows) const {
    size_t count = given ? given->size() : num_rows();
    if (count > buffer_rows) throw std::invalid_argument("the buffer has too few rows");
    std::vector<size_t> empty_rows;
    run(!rows_.has_masks(), [&] {
      for (size_t i = 0; i < count; ++i) {
        size_t row = given ? (*given)[i] : i;
        if (row >= num_rows()) throw py::index_error("the step has " + std::to_string(num_rows()) + " rows");
        bool allows_any = rows_.fill(row, row_at(address, int64_t(i), row_bytes));
        if (!allows_any) empty_rows.push_back(i);
      }
    });
    return empty_rows;
  }

  py::array_t<int32_t> row_indptr;   // matcher i owns the rows row_indptr[i] ... row_indptr[i + 1]
  py::array_t<int32_t> num_allowed;  // of each matcher's drafts

 private:
  static constexpr uint64_t kNoKey = 0, kFreeKey = 1;  // below the keys of states

  py::list matchers_;
  Rows rows_;
};

std::vector<size_t> fill_drafts_batch(const py::list& matchers, uintptr_t address, int64_t row_bytes,
                                      const std::vector<int64_t>& first_rows, const std::vector<py::sequence>& drafts) {
  if (first_rows.size() != matchers.size() || drafts.size() != matchers.size()) {
    throw std::invalid_argument("expected a first row and drafts for each matcher");
  }
  Rows rows;
  std::vector<int64_t> row_ids;
  std::vector<size_t> num_allowed;
  for (size_t i = 0; i < matchers.size(); ++i) {
    const Matcher& matcher = matcher_of(PyList_GET_ITEM(matchers.ptr(), Py_ssize_t(i)));
    std::vector<int64_t> tokens = tokens_of(drafts[i]);
    num_allowed.push_back(matcher.append_draft_states(tokens.data(), tokens.size(), rows.states));
    rows.add(matcher);
    for (size_t j = 0; j <= tokens.size(); ++j) row_ids.push_back(first_rows[i] + int64_t(j));
  }
  run(!rows.has_masks(), [&] {
    for (size_t i = 0; i < row_ids.size(); ++i) rows.fill(i, row_at(address, row_ids[i], row_bytes));
  });
  return num_allowed;
}

template <typename Error>
void translate(const Error& error, py::handle type);

template <>
void translate(const LimitError& error, py::handle type) {
  PyErr_SetObject(type.ptr(), py::make_tuple(error.limit, error.got, error.max).ptr());
}

template <>
void translate(const PatternError& error, py::handle type) {
  PyErr_SetObject(type.ptr(), py::make_tuple(error.what(), error.is_malformed).ptr());
}

py::array_t<int32_t> mask_of(const TokenIndex& index, int64_t state) {
  py::array_t<int32_t> row(ptrdiff_t(index.vocabulary().row_words()));
  uint32_t checked = checked_state(index, state);
  uint32_t* words = reinterpret_cast<uint32_t*>(row.mutable_data());
  run(!index.has_mask(checked), [&] { return index.fill(checked, words); });
  return row;
}

py::tuple token_classes_of(const TokenIndex& index, uint64_t max_bytes) {
  TokenClasses classes = run(true, [&] { return index.token_classes(max_bytes); });
  py::array_t<int32_t> class_of_token(ptrdiff_t(classes.class_of_token.size()), classes.class_of_token.data());
  py::array_t<int32_t> next({ptrdiff_t(index.num_states()), ptrdiff_t(classes.num_classes)}, classes.next.data());
  return py::make_tuple(class_of_token, next);
}

// The state after each byte [num_states, 256], and which states accept and are live.
py::tuple byte_tables_of(const TokenIndex& index) {
  ptrdiff_t num_states = index.num_states();
  py::array_t<int32_t> transitions({num_states, ptrdiff_t(256)});
  py::array_t<bool> is_accepting(num_states), is_live(num_states);
  std::fill_n(transitions.mutable_data(), num_states * 256, -1);
  for (uint32_t state = 0; state < index.num_states(); ++state) {
    int32_t* row = transitions.mutable_data(state);
    const Automaton& automaton = index.automaton();
    for (const Edge* edge = automaton.begin(state); edge < automaton.end(state); ++edge) {
      std::fill(row + edge->first, row + edge->last + 1, int32_t(edge->target));
    }
    is_accepting.mutable_at(state) = index.accepts(state);
    is_live.mutable_at(state) = index.is_live(state);
  }
  return py::make_tuple(transitions, is_accepting, is_live);
}

}  // namespace

PYBIND11_MODULE(_fsm, module) {
  static py::handle limit_error = PyErr_NewException("structout._fsm.LimitError", PyExc_ValueError, nullptr);
  static py::handle pattern_error = PyErr_NewException("structout._fsm.PatternError", PyExc_ValueError, nullptr);
  module.attr("LimitError") = limit_error;
  module.attr("PatternError") = pattern_error;
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const LimitError& error) {
      translate(error, limit_error);
    } catch (const PatternError& error) {
      translate(error, pattern_error);
    }
  });

  py::class_<Limits>(module, "Limits")
      .def(py::init<>())
      .def_readwrite("nesting", &Limits::nesting)
      .def_readwrite("nodes", &Limits::nodes)
      .def_readwrite("states", &Limits::states)
      .def_readwrite("seconds", &Limits::seconds);

  py::class_<Automaton>(module, "Automaton")
      .def_property_readonly("num_states", &Automaton::num_states)
      .def_property_readonly("num_edges", &Automaton::num_edges)
      .def_property_readonly("memory_bytes", &Automaton::memory_bytes)
      .def("accepts", [](const Automaton& self, int64_t state) { return self.accepts(checked_state(self, state)); })
      .def("next", [](const Automaton& self, int64_t state,
                      uint8_t byte) { return state_or_minus_one(self.next(checked_state(self, state), byte)); })
      .def("edges",
           [](const Automaton& self, int64_t state) {
             uint32_t checked = checked_state(self, state);
             py::list edges;
             for (const Edge* edge = self.begin(checked); edge < self.end(checked); ++edge) {
               edges.append(py::make_tuple(edge->first, edge->last, edge->target));
             }
             return edges;
           })
      .def("matches", [](const Automaton& self, const py::bytes& text) { return self.matches(text); })
      .def("serialize", [](const Automaton& self) { return py::bytes(self.serialize()); })
      .def_static("deserialize",
                  [](const py::bytes& given) {
                    std::string bytes = given;
                    return run(true, [&] { return Automaton::deserialize(bytes); });
                  })
      .def("__eq__", &Automaton::operator==, py::is_operator())
      .def("__hash__", [](const Automaton& self) { return self.num_states() * 31 + self.num_edges(); });

  auto define_operation = [&module](const char* name,
                                    Automaton (*operation)(const Automaton&, const Automaton&, Budget&)) {
    module.def(name, [operation](const Automaton& a, const Automaton& b, const Limits& limits) {
      return run(true, [&] {
        Budget budget(limits);
        return operation(a, b, budget);
      });
    });
  };
  define_operation("intersection", intersection);
  define_operation("union", union_of);
  define_operation("difference", difference);
  module.def("complement", [](const Automaton& a, const Limits& limits) {
    return run(true, [&] {
      Budget budget(limits);
      return complement(a, budget);
    });
  });
  module.def("compile_regex", [](const py::bytes& given, const Limits& limits) {
    std::string pattern = given;
    return run(true, [&] { return compile_regex(pattern, limits); });
  });
  module.def("check_regex", [](const py::bytes& regex, const Limits& limits) {
    Pattern pattern;
    parse_regex(regex, limits, pattern);
  });
  module.def("compile_json_string", [](const std::vector<py::bytes>& given, uint32_t min_length,
                                       std::optional<uint32_t> max_length, const Limits& limits) {
    std::vector<std::string> patterns(given.begin(), given.end());
    return run(true,
               [&] { return compile_json_string(patterns, min_length, max_length.value_or(kUnbounded), limits); });
  });
  module.def("compile_choices", [](std::vector<std::string> texts) {
    return run(true, [&] { return compile_choices(std::move(texts)); });
  });

  py::class_<Rules>(module, "Rules")
      .def(py::init<>())
      .def("add_text", [](Rules& self, const py::bytes& text) { return self.add_text(text); })
      .def("add_characters",
           [](Rules& self, const std::vector<std::pair<uint32_t, uint32_t>>& ranges, bool is_negated) {
             CodePointSet set;
             for (auto [first, last] : ranges) {
               if (first > last || last > kLastCodePoint) throw std::invalid_argument("no range of code points");
               set.add(first, last);
             }
             return self.add_characters(std::move(set), is_negated);
           })
      .def("add_regex",
           [](Rules& self, const py::bytes& regex, const Limits& limits) { return self.add_regex(regex, limits); })
      .def("add_automaton", &Rules::add_automaton)
      .def("add_sequence", &Rules::add_sequence)
      .def("add_alternatives", &Rules::add_alternatives)
      .def("add_repetition",
           [](Rules& self, uint32_t part, uint32_t min, std::optional<uint32_t> max) {
             return self.add_repetition(part, min, max.value_or(kUnbounded));
           })
      .def("add_intersection", &Rules::add_intersection)
      .def("add_complement", &Rules::add_complement)
      .def("add_separator", &Rules::add_separator)
      .def("add_rule", &Rules::add_rule)
      .def("define", &Rules::define)
      .def("check_recursion", &Rules::check_recursion)
      .def("compile", &Rules::compile, py::call_guard<py::gil_scoped_release>());

  py::class_<LazyProduct, std::shared_ptr<LazyProduct>>(module, "LazyProduct")
      .def(py::init([](const std::vector<std::variant<py::bytes, Automaton>>& given, const Limits& limits) {
        std::vector<LazyProduct::Component> components;
        for (const auto& component : given) {
          if (const py::bytes* regex = std::get_if<py::bytes>(&component)) {
            components.emplace_back(std::string(*regex));
          } else {
            components.emplace_back(std::get<Automaton>(component));
          }
        }
        return run(true, [&] { return std::make_shared<LazyProduct>(components, limits); });
      }))
      .def_property_readonly("num_states", &LazyProduct::num_states)
      .def_property_readonly("is_busy", &LazyProduct::is_busy)
      .def("next",
           [](LazyProduct& self, int64_t state, uint8_t byte) {
             uint32_t checked = checked_state(self, state);
             return state_or_minus_one(run(self.is_busy(), [&] { return self.next(checked, byte); }));
           })
      .def("verdict",
           [](LazyProduct& self, int64_t state) {
             uint32_t checked = checked_state(self, state);
             return run(self.is_busy(), [&] { return self.verdict(checked); });
           })
      .def("live",
           [](LazyProduct& self, int64_t state) {
             uint32_t checked = checked_state(self, state);
             return run(self.is_busy(), [&] { return self.live(checked); });
           })
      .def("find",
           [](LazyProduct& self, int64_t state, const Condition& condition,
              uint64_t max_states) -> std::optional<py::bytes> {
             uint32_t checked = checked_state(self, state);
             auto text = run(true, [&] { return self.find(checked, condition, max_states); });
             if (!text) return std::nullopt;
             return py::bytes(*text);
           });

  py::class_<VocabularyTrie, std::shared_ptr<VocabularyTrie>>(module, "VocabularyTrie")
      .def(py::init([](const std::vector<std::string>& token_bytes) {
        return run(true, [&] { return std::make_shared<VocabularyTrie>(token_bytes); });
      }))
      .def_property_readonly("size", &VocabularyTrie::size)
      .def_property_readonly("num_nodes", [](const VocabularyTrie& self) { return self.nodes().size(); })
      .def_property_readonly("fingerprint", &VocabularyTrie::fingerprint)
      .def_property_readonly("memory_bytes", &VocabularyTrie::memory_bytes);

  py::class_<TokenIndex, std::shared_ptr<TokenIndex>>(module, "TokenIndex")
      .def(py::init([](const Automaton& automaton, const std::shared_ptr<VocabularyTrie>& vocabulary) {
        return run(true, [&] { return std::make_shared<TokenIndex>(automaton, vocabulary); });
      }))
      .def_property_readonly("automaton", &TokenIndex::automaton, py::return_value_policy::reference_internal)
      .def_property_readonly("num_states", &TokenIndex::num_states)
      .def_property_readonly("num_masks", &TokenIndex::num_masks)
      .def_property_readonly("vocabulary_fingerprint",
                             [](const TokenIndex& self) { return self.vocabulary().fingerprint(); })
      .def_property_readonly("memory_bytes", &TokenIndex::memory_bytes)
      .def("accepts", [](const TokenIndex& self, int64_t state) { return self.accepts(checked_state(self, state)); })
      .def("is_live", [](const TokenIndex& self, int64_t state) { return self.is_live(checked_state(self, state)); })
      .def("next",
           [](const TokenIndex& self, int64_t state, py::handle token) {
             return state_or_minus_one(self.next(checked_state(self, state), token_of(token)));
           })
      .def("mask", mask_of)
      .def("mask_slot",
           [](const TokenIndex& self, int64_t state) {
             uint32_t checked = checked_state(self, state);
             return state_or_minus_one(run(!self.has_mask(checked), [&] { return self.mask_slot(checked); }));
           })
      .def("forced",
           [](const TokenIndex& self, int64_t state) { return py::bytes(self.forced(checked_state(self, state))); })
      .def("compute_masks", &TokenIndex::compute_masks, py::call_guard<py::gil_scoped_release>())
      .def("token_classes", token_classes_of)
      .def("byte_tables", byte_tables_of)
      .def("serialize", [](const TokenIndex& self) { return py::bytes(self.serialize()); })
      .def_static("deserialize", [](const py::bytes& given, const std::shared_ptr<VocabularyTrie>& vocabulary) {
        std::string bytes = given;
        return run(true, [&] { return TokenIndex::deserialize(bytes, vocabulary); });
      });

  py::class_<Matcher>(module, "Matcher")
      .def(py::init([](const std::shared_ptr<TokenIndex>& index, const std::vector<uint32_t>& stop_tokens) {
        if (index->num_states() == 0) throw std::invalid_argument("the automaton accepts nothing");
        for (uint32_t stop : stop_tokens) {
          if (stop >= index->vocabulary().size()) throw std::invalid_argument("a stop token is out of range");
        }
        return Matcher(index, stop_tokens);
      }))
      .def("copy", [](const Matcher& self) { return Matcher(self); })
      .def_property_readonly("state", &Matcher::state)
      .def_property_readonly("is_terminated", &Matcher::is_terminated)
      .def_property_readonly("num_tokens", &Matcher::num_tokens)
      .def("accept_prefix",
           [](Matcher& self, const py::sequence& given) {
             std::vector<int64_t> tokens = tokens_of(given);
             return self.accept_prefix(tokens.data(), tokens.size());
           })
      .def("accept",
           [](Matcher& self, const py::sequence& given) {
             std::vector<int64_t> tokens = tokens_of(given);
             return self.accept(tokens.data(), tokens.size());
           })
      .def("recent_tokens", &Matcher::recent_tokens)
      .def("rollback",
           [](Matcher& self, int64_t count) {
             if (count < 0 || uint64_t(count) > self.num_tokens()) {
               throw std::invalid_argument("cannot roll back " + std::to_string(count) + " of " +
                                           std::to_string(self.num_tokens()) + " tokens");
             }
             self.rollback(size_t(count));
           })
      .def("accept_bytes", [](Matcher& self, const py::bytes& bytes) { return self.accept_bytes(bytes); })
      .def("undo_bytes", &Matcher::undo_bytes)
      .def("forced", [](const Matcher& self) { return py::bytes(self.index().forced(self.state())); });

  py::class_<Step>(module, "Step")
      .def(py::init<py::list, py::object>())
      .def_readonly("row_indptr", &Step::row_indptr)
      .def_readonly("num_allowed", &Step::num_allowed)
      .def_property_readonly("num_rows", &Step::num_rows)
      .def("distinct_masks", &Step::distinct_masks)
      .def("fill", &Step::fill);

  module.def("accept_batch", accept_batch);
  module.def("fill_batch", fill_batch);
  module.def("fill_drafts_batch", fill_drafts_batch);
}
