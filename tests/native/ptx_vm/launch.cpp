// Launches: finds the kernel, sets up its blocks, and runs them one cluster after
// another, or with a seed several at a time in a random order. Devices, which are threads
// of the program, take turns at one lock.
#include <algorithm>
#include <cstdarg>
#include <ctime>
#include <mutex>
#include <numeric>
#include <thread>

#include "ptx_vm/api.h"
#include "ptx_vm/definedness.h"
#include "ptx_vm/opcodes.h"
#include "ptx_vm/parser.h"
#include "ptx_vm/races.h"
#include "ptx_vm/schedule.h"

namespace structout::ptx_vm {

std::string text_of(const char* format, ...) {
  std::va_list arguments;
  char text[2000];
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return text;
}

void fail(const Warp& warp, int lane, const std::string& problem) {
  const PtxSize& block = warp.block->index;
  throw Fault(text_of("%s: line %d `%s`, block (%u, %u, %u), thread %u of kernel %s", problem.c_str(),
                      warp.current->line, warp.current->text.c_str(), block.x, block.y, block.z,
                      warp.id * kLanes + static_cast<unsigned>(lane), warp.kernel->name.c_str()));
}

namespace {

using Module = std::map<std::string, Kernel>;

constexpr uint32_t kMaxSharedBytes = 227 * 1024, kMaxClusterBlocks = 8, kMaxBlockThreads = 1024;
constexpr size_t kBlocksAtATime = 8;  // in random order
constexpr unsigned char kUnwritten = 0xCB;

std::mutex machine;
RaceDetector races;
thread_local std::string last_problem;
std::string last_report;  // not of a thread: a program may ask for it when it ends

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void pause() {
  machine.unlock();
  std::this_thread::yield();
  machine.lock();
}

// The name without its unnamed namespaces, which every compiler names in its own way.
std::string common_name(std::string name) {
  for (size_t at; (at = name.find("_GLOBAL__N_")) != name.npos;) {
    const size_t digits = name.find_last_not_of("0123456789", at - 1) + 1;
    name.erase(digits, at - digits + std::stoul(name.substr(digits, at - digits)));
  }
  return name;
}

const Kernel& find_kernel(const Module& module, const char* name) {
  if (const auto found = module.find(name); found != module.end()) return found->second;
  for (const auto& [other, kernel] : module) {
    if (common_name(other) == common_name(name)) return kernel;
  }
  throw Fault(std::string("no kernel ") + name);
}

uint64_t count_of(const PtxSize& size) { return uint64_t{size.x} * size.y * size.z; }

PtxSize index_in(const PtxSize& size, uint64_t number) {
  return {static_cast<uint32_t>(number % size.x), static_cast<uint32_t>(number / size.x % size.y),
          static_cast<uint32_t>(number / size.x / size.y)};
}

uint32_t special_value(const std::string& name, const Block& block, const Launch& launch, uint32_t thread) {
  const PtxLaunch& asked = launch.asked;
  const auto part = [&](const PtxSize& of) { return name.back() == 'x' ? of.x : name.back() == 'y' ? of.y : of.z; };
  if (name.starts_with("%tid")) return part(index_in(asked.block, thread));
  if (name.starts_with("%ntid")) return part(asked.block);
  if (name.starts_with("%ctaid")) return part(block.index);
  if (name.starts_with("%nctaid")) return part(asked.grid);
  if (name == "%cluster_ctarank") return block.rank;
  return name == "%laneid" ? thread % kLanes : asked.cluster_blocks;
}

void start_warp(Warp& warp, Block& block, uint32_t id, char* registers) {
  const Launch& launch = block.cluster->launch;
  const auto threads = static_cast<uint32_t>(count_of(launch.asked.block));
  warp.block = &block;
  warp.cluster = block.cluster;
  warp.kernel = &launch.kernel;
  warp.id = id;
  warp.lanes = threads - id * kLanes >= kLanes ? kAllLanes : (Mask{1} << (threads - id * kLanes)) - 1;
  warp.in_state = {};
  warp.set_state(warp.lanes, LaneState::kRuns);
  std::fill(warp.pc, warp.pc + kLanes, 0);
  warp.registers = registers;
  warp.predicates.assign(launch.kernel.num_predicates + 1, 0);
  if (launch.options.finds_undefined) mark_undefined(warp);
  for (const auto& [name, slot] : launch.kernel.special_registers) {
    auto* lanes = reinterpret_cast<uint32_t*>(registers + slot);
    for (uint32_t lane = 0; lane < kLanes; ++lane) lanes[lane] = special_value(name, block, launch, id * kLanes + lane);
  }
}

void start_cluster(Cluster& cluster, uint64_t number, char* registers) {
  const Launch& launch = cluster.launch;
  const auto threads = static_cast<uint32_t>(count_of(launch.asked.block)), warps = (threads + kLanes - 1) / kLanes;
  const uint32_t num_blocks = launch.asked.cluster_blocks;
  cluster.blocks.resize(num_blocks);
  cluster.live = threads * num_blocks;
  cluster.shared_stride = (launch.shared_bytes() + 2047) & ~1023u;  // a gap, so that an overrun finds no neighbour
  cluster.shared_memory.assign(size_t{cluster.shared_stride} * num_blocks + 1024, static_cast<char>(kUnwritten));
  cluster.shared_begin =
      reinterpret_cast<char*>((reinterpret_cast<uint64_t>(cluster.shared_memory.data()) + 1023) & ~uint64_t{1023});
  for (uint32_t rank = 0; rank < num_blocks; ++rank) {
    Block& block = cluster.blocks[rank];
    block.cluster = &cluster;
    block.rank = rank;
    block.index = index_in(launch.asked.grid, number * num_blocks + rank);
    block.shared = cluster.shared_begin + size_t{rank} * cluster.shared_stride;
    block.live = threads;
    if (launch.options.finds_undefined) mark_undefined(block, launch.shared_bytes());
    block.warps.resize(warps);
    for (uint32_t id = 0; id < warps; ++id) {
      start_warp(block.warps[id], block, id, registers + size_t{launch.kernel.register_bytes} * (rank * warps + id));
      const uint64_t number_in_grid = (number * num_blocks + rank) * warps + id;
      if (launch.options.finds_races) launch.races.begin_warp(block.warps[id], number_in_grid);
    }
  }
}

void check_launch(const Launch& launch) {
  const PtxSize& grid = launch.asked.grid;
  const uint64_t threads = count_of(launch.asked.block);
  if (count_of(grid) == 0 || threads == 0 || threads > kMaxBlockThreads || grid.y > 65535 || grid.z > 65535) {
    throw Fault("CUDA refuses a grid or a block of this size");
  }
  if (threads > launch.kernel.max_threads)
    throw Fault(text_of("%llu threads, but the kernel is compiled for %u", static_cast<unsigned long long>(threads),
                        launch.kernel.max_threads));
  if (launch.shared_bytes() > kMaxSharedBytes) throw Fault(text_of("%u bytes of shared memory", launch.shared_bytes()));
  if (launch.asked.cluster_blocks > kMaxClusterBlocks || grid.x % launch.asked.cluster_blocks != 0) {
    throw Fault("CUDA refuses a cluster of this size");
  }
}

void run(Launch& launch) {
  check_launch(launch);
  const uint32_t cluster_blocks = launch.asked.cluster_blocks;
  const uint64_t num_clusters = count_of(launch.asked.grid) / cluster_blocks;
  const size_t warps = (count_of(launch.asked.block) + kLanes - 1) / kLanes * cluster_blocks;
  const size_t at_a_time =
      launch.options.seed == 0 ? 1 : std::min(num_clusters, std::max<uint64_t>(1, kBlocksAtATime / cluster_blocks));
  // Not zeroed: what a kernel does not write costs nothing.
  const auto registers = std::make_unique_for_overwrite<char[]>(launch.kernel.register_bytes * warps * at_a_time);
  if (launch.options.finds_races) launch.races.begin_launch(static_cast<uint32_t>(num_clusters * warps));
  std::vector<uint64_t> order(num_clusters);
  std::iota(order.begin(), order.end(), 0);
  if (launch.options.seed != 0) std::shuffle(order.begin(), order.end(), launch.random);
  for (uint64_t first = 0; first < num_clusters; first += at_a_time) {
    std::deque<Cluster> clusters;
    std::vector<Cluster*> all;
    for (uint64_t i = first; i < std::min(first + at_a_time, num_clusters); ++i) {
      all.push_back(&clusters.emplace_back(launch));
      start_cluster(clusters.back(), order[i], registers.get() + launch.kernel.register_bytes * warps * (i - first));
    }
    run_clusters(all, pause);
    if (!launch.options.finds_races) continue;
    for (Cluster& cluster : clusters) {
      for (Block& block : cluster.blocks) {
        for (Warp& warp : block.warps) launch.races.end_warp(warp);
      }
    }
  }
}

void add_report(std::string& text, const Kernel& kernel) {
  const Counters& c = kernel.counters;
  uint64_t instructions = 0;
  std::string executions;
  for (const Instruction& instruction : kernel.code) {
    instructions += instruction.executions;
    if (instruction.line == 0) continue;
    executions += text_of("%s[%d,%llu]", executions.empty() ? "" : ",", instruction.line,
                          static_cast<unsigned long long>(instruction.executions));
  }
  text += (text.size() > 1 ? ",\n\"" : "\n\"") + kernel.name + "\":{";
  const std::pair<const char*, uint64_t> fields[] = {{"launches", c.launches},
                                                     {"instructions", instructions},
                                                     {"divergences", c.divergences},
                                                     {"barriers", c.barriers},
                                                     {"cluster_barriers", c.cluster_barriers},
                                                     {"global_loads", c.global_loads},
                                                     {"load_sectors", c.load_sectors},
                                                     {"global_stores", c.global_stores},
                                                     {"store_sectors", c.store_sectors},
                                                     {"shared_accesses", c.shared_accesses},
                                                     {"shared_wavefronts", c.shared_wavefronts}};
  for (const auto& [name, value] : fields)
    text += text_of("\"%s\":%llu,", name, static_cast<unsigned long long>(value));
  text += text_of("\"seconds\":%.6f,\"executions\":[", c.seconds) + executions + "]}";
}

}  // namespace
}  // namespace structout::ptx_vm

using namespace structout::ptx_vm;

void* ptx_vm_load(const char* text) try { return new Module(parse(text)); } catch (const std::exception& problem) {
  last_problem = problem.what();
  return nullptr;
}

void ptx_vm_unload(void* module) { delete static_cast<Module*>(module); }
const char* ptx_vm_error() { return last_problem.c_str(); }

const char* ptx_vm_launch(void* module, const PtxLaunch* asked, const PtxOptions* options) {
  const std::lock_guard<std::mutex> lock(machine);
  const double begin = thread_seconds();
  bool has_begun = false;
  try {
    const Kernel& kernel = find_kernel(*static_cast<Module*>(module), asked->kernel);
    std::vector<uint64_t> parameters(kernel.parameter_bytes / 8 + 1);
    for (size_t i = 0; i < kernel.parameters.size(); ++i) {
      std::memcpy(reinterpret_cast<char*>(parameters.data()) + kernel.parameters[i].offset, asked->arguments[i],
                  kernel.parameters[i].size);
    }
    Launch launch{*asked,
                  *options,
                  kernel,
                  races,
                  reinterpret_cast<char*>(parameters.data()),
                  std::mt19937_64(options->seed + kernel.counters.launches)};
    ++kernel.counters.launches;
    has_begun = options->finds_races;
    run(launch);
    if (has_begun) races.end_launch();
    kernel.counters.seconds += thread_seconds() - begin;
    return nullptr;
  } catch (const std::exception& problem) {
    if (has_begun) races.end_launch();
    last_problem = std::string("ptx_vm: ") + problem.what();
    return last_problem.c_str();
  }
}

void ptx_vm_watch(uint64_t begin, uint64_t end) {
  const std::lock_guard<std::mutex> lock(machine);
  races.watch(begin, end);
}

void ptx_vm_watch_nothing() {
  const std::lock_guard<std::mutex> lock(machine);
  races.watch_nothing();
}

const char* ptx_vm_report(void* module) {
  last_report = "{";
  for (const auto& [name, kernel] : *static_cast<Module*>(module)) {
    if (kernel.counters.launches > 0) add_report(last_report, kernel);
  }
  last_report += "\n}\n";
  return last_report.c_str();
}

const char* ptx_vm_forms() {
  last_report.clear();
  for (const std::string& name : form_names()) last_report += name + "\n";
  return last_report.c_str();
}
