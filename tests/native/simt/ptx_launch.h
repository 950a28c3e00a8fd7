// Lets the launches of simt/host_simt.h run compiled kernels: the PTX that nvcc made of
// the same source, in the machine of ptx_vm, which is loaded as a library. The
// program itself is compiled by a C++ compiler. A kernel's name in PTX is found from its
// function's name in the program's table of symbols.
//
// Environment, or an argument of simt_use_ptx (tests/support/ptx.py):
//   STRUCTOUT_PTX  "machine.so option=number... file.ptx..."; empty: fibers
// Options: seed, races, undefined, counts, instructions (see PtxOptions), and
// capability, the newest compute capability that the PTX is for. STRUCTOUT_PTX_REPORT
// names a file for the counters of a program.
#pragma once

#include <dlfcn.h>
#include <elf.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "ptx_vm/api.h"
#include "simt/host_simt_block.h"

namespace structout::simt {

// The name of a function of this program, whether or not the linker exports it.
inline std::string symbol_of(const void* function) {
  Dl_info object{};
  if (dladdr(function, &object) == 0) return "";
  std::ifstream file(object.dli_fname, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto& header = *reinterpret_cast<const Elf64_Ehdr*>(bytes.data());
  const uint64_t base = header.e_type == ET_DYN ? reinterpret_cast<uint64_t>(object.dli_fbase) : 0;
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(bytes.data() + header.e_shoff);
  for (int i = 0; i < header.e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const char* names = bytes.data() + sections[sections[i].sh_link].sh_offset;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(bytes.data() + sections[i].sh_offset);
    for (uint64_t k = 0; k < sections[i].sh_size / sizeof(Elf64_Sym); ++k) {
      const bool is_function = ELF64_ST_TYPE(symbols[k].st_info) == STT_FUNC;
      if (is_function && symbols[k].st_value + base == reinterpret_cast<uint64_t>(function))
        return names + symbols[k].st_name;
    }
  }
  return "";
}

class PtxBackend {
 public:
  static PtxBackend& get() {
    static PtxBackend backend;
    return backend;
  }

  bool is_on() const { return !modules_.empty(); }
  bool finds_races() const { return is_on() && options_.finds_races; }
  int max_compute_capability() const { return capability_; }

  // Replaces the modules. The machine stays loaded, and so do modules of files that were
  // loaded before.
  void use(const std::string& configuration) {
    std::istringstream words(configuration);
    modules_.clear();
    options_ = {0, uint64_t{1} << 40, false, false, false, false};
    capability_ = 1000;
    for (std::string word; words >> word;) {
      const size_t equals = word.find('=');
      if (word.size() > 3 && word.compare(word.size() - 3, 3, ".so") == 0) {
        load_machine(word);
      } else if (word.size() > 4 && word.compare(word.size() - 4, 4, ".ptx") == 0) {
        modules_.push_back(module_of(word));
      } else if (equals != word.npos) {
        set_option(word.substr(0, equals), std::strtoull(word.c_str() + equals + 1, nullptr, 10));
      } else {
        fail("unknown word in STRUCTOUT_PTX: %s", word.c_str());
      }
    }
    if (modules_.empty() && !configuration.empty()) fail("STRUCTOUT_PTX names no PTX: %s", configuration.c_str());
  }

  void launch(const void* kernel, dim3 grid, dim3 block, unsigned cluster_blocks, size_t dynamic_shared_bytes,
              const void* const* arguments, int (*find_targets)(uint64_t, uint64_t*)) {
    const std::string name = name_of(kernel);
    const PtxLaunch launch{name.c_str(),
                           {grid.x, grid.y, grid.z},
                           {block.x, block.y, block.z},
                           cluster_blocks,
                           static_cast<uint32_t>(dynamic_shared_bytes),
                           arguments,
                           find_targets};
    std::string problem;
    for (void* module : modules_) {
      const char* answer = launch_(module, &launch, &options_);
      if (answer == nullptr) return;
      problem = answer;
      if (problem.find("no kernel ") == problem.npos) break;
    }
    fail("%s", problem.c_str());
  }

  void watch(const void* begin, size_t bytes) {
    if (is_on()) watch_(reinterpret_cast<uint64_t>(begin), reinterpret_cast<uint64_t>(begin) + bytes);
  }
  void watch_nothing() {
    if (is_on()) watch_nothing_();
  }

  void write_report(const std::string& path) {
    std::ofstream file(path);
    file << "[";
    for (size_t i = 0; i < modules_.size(); ++i) file << (i == 0 ? "" : ",") << report_(modules_[i]);
    file << "]";
  }

 private:
  PtxBackend() {
    if (const char* configuration = std::getenv("STRUCTOUT_PTX")) use(configuration);
  }
  ~PtxBackend() {
    const char* path = std::getenv("STRUCTOUT_PTX_REPORT");
    if (path != nullptr && is_on()) write_report(path);
    for (const auto& [file, module] : module_of_file_) unload_(module);
  }

  template <class Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(machine_, name));
    if (function == nullptr) fail("the machine has no %s", name);
  }

  void load_machine(const std::string& path) {
    if (machine_ != nullptr) return;
    machine_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (machine_ == nullptr) fail("%s", dlerror());
    find(load_, "ptx_vm_load");
    find(unload_, "ptx_vm_unload");
    find(launch_, "ptx_vm_launch");
    find(error_, "ptx_vm_error");
    find(watch_, "ptx_vm_watch");
    find(watch_nothing_, "ptx_vm_watch_nothing");
    find(report_, "ptx_vm_report");
  }

  void* module_of(const std::string& path) {
    void*& module = module_of_file_[path];
    if (module != nullptr) return module;
    std::ifstream file(path);
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    module = load_(text.c_str());
    if (module == nullptr) fail("%s: %s", path.c_str(), error_());
    return module;
  }

  void set_option(const std::string& name, uint64_t value) {
    if (name == "seed")
      options_.seed = value;
    else if (name == "races")
      options_.finds_races = value != 0;
    else if (name == "undefined")
      options_.finds_undefined = value != 0;
    else if (name == "counts")
      options_.counts_memory = value != 0;
    else if (name == "instructions")
      options_.max_instructions = value;
    else if (name == "capability")
      capability_ = static_cast<int>(value);
    else
      fail("unknown option %s", name.c_str());
  }

  std::string name_of(const void* kernel) {
    const std::lock_guard<std::mutex> lock(names_lock_);
    std::string& name = names_[kernel];
    if (name.empty()) name = symbol_of(kernel);
    return name;
  }

  void* machine_ = nullptr;
  std::vector<void*> modules_;
  std::map<std::string, void*> module_of_file_;
  std::mutex names_lock_;
  std::map<const void*, std::string> names_;
  PtxOptions options_{};
  int capability_ = 1000;
  decltype(ptx_vm_load)* load_ = nullptr;
  decltype(ptx_vm_unload)* unload_ = nullptr;
  decltype(ptx_vm_launch)* launch_ = nullptr;
  decltype(ptx_vm_error)* error_ = nullptr;
  decltype(ptx_vm_watch)* watch_ = nullptr;
  decltype(ptx_vm_watch_nothing)* watch_nothing_ = nullptr;
  decltype(ptx_vm_report)* report_ = nullptr;
};

}  // namespace structout::simt

// For tests in Python, which use one library with both backends.
extern "C" inline __attribute__((used)) void simt_use_ptx(const char* configuration) {
  structout::simt::PtxBackend::get().use(configuration);
}
extern "C" inline __attribute__((used)) void simt_write_report(const char* path) {
  structout::simt::PtxBackend::get().write_report(path);
}
