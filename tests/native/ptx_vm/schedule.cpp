// The choice of the lanes that run next. The lanes of a warp that are at one instruction run it together.
// In a fixed order those furthest behind in the text go first, which brings diverged
// lanes together again as early as compilers intend; with a seed, any lanes may, for a
// random number of instructions, and warps take random turns. (PTX ISA 9.0, 3.1: lanes
// may diverge and meet again at any time.)
//
// Warp-wide instructions wait for the lanes that their mask names, barriers for all
// threads that have not exited.
#include "ptx_vm/schedule.h"

#include <algorithm>

#include "ptx_vm/definedness.h"
#include "ptx_vm/races.h"

namespace structout::ptx_vm {
namespace {

constexpr uint64_t kTurn = 1 << 20, kMaxRandomTurn = 200, kMaxRandomGroup = 40;  // instructions

class WarpRunner {
 public:
  explicit WarpRunner(Warp& warp) : warp_(warp), launch_(warp.cluster->launch), options_(launch_.options) {}

  bool slept = false;

  // Runs until all lanes wait or have exited, or the turn ends. Returns whether any
  // instruction ran.
  bool run(uint64_t turn) {
    left_ = turn;
    runnable_ = warp_.lanes_in(LaneState::kRuns);
    const bool can_run = runnable_ != 0;
    while (runnable_ != 0 && left_ > 0 && !slept) {
      choose_group();
      run_group();
    }
    launch_.num_instructions += turn - left_;
    if (launch_.num_instructions > options_.max_instructions) fail(warp_, 0, "too many instructions");
    return can_run;
  }

 private:
  void choose_group() {
    pc_ = ~0u;
    if (options_.seed == 0) {
      for_each_lane(runnable_, [&](int lane) { pc_ = std::min(pc_, warp_.pc[lane]); });
    } else {
      auto skipped = static_cast<int>(launch_.random() % static_cast<unsigned>(std::popcount(runnable_)));
      for_each_lane(runnable_, [&](int lane) {
        if (skipped-- == 0) pc_ = warp_.pc[lane];
      });
    }
    group_ = 0;
    next_group_ = ~0u;
    for_each_lane(runnable_, [&](int lane) {
      if (warp_.pc[lane] == pc_) {
        group_ |= Mask{1} << lane;
      } else if (warp_.pc[lane] > pc_) {
        next_group_ = std::min(next_group_, warp_.pc[lane]);
      }
    });
    group_left_ = options_.seed != 0 && group_ != runnable_ ? 1 + launch_.random() % kMaxRandomGroup : left_;
  }

  // Runs the group until it splits, waits, meets other lanes or has had its share.
  void run_group() {
    const Instruction* code = warp_.kernel->code.data();
    is_split_ = false;
    while (!is_split_ && left_ > 0 && group_left_ > 0) {
      const Instruction& instruction = code[pc_];
      warp_.current = &instruction;
      ++instruction.executions;
      --left_;
      --group_left_;
      Mask lanes = group_;
      if (instruction.guard >= 0) {
        if (options_.finds_undefined) check_guard(warp_, instruction, group_);
        const Mask guard = warp_.predicates[static_cast<size_t>(instruction.guard)];
        lanes &= instruction.guard_is_negated ? ~guard : guard;
      }
      if (instruction.flow == Flow::kNext) {
        if (lanes != 0) execute(instruction, lanes);
        ++pc_;
      } else {
        follow(instruction, lanes);
      }
      if (pc_ >= next_group_) break;
    }
    if (!is_split_) set_pc(group_, pc_);
  }

  void execute(const Instruction& instruction, Mask lanes) {
    const bool is_access = instruction.access.reads || instruction.access.writes;
    if (options_.finds_undefined && !is_access) propagate(warp_, instruction, lanes);
    instruction.execute(warp_, instruction, lanes);
  }

  void follow(const Instruction& instruction, Mask lanes) {
    const uint32_t next = pc_ + 1;
    switch (instruction.flow) {
      case Flow::kBranch:
        if (lanes == group_) {
          pc_ = instruction.target;
        } else if (lanes == 0) {
          pc_ = next;
        } else {
          ++warp_.kernel->counters.divergences;
          set_pc(lanes, instruction.target);
          split(lanes, next);
        }
        return;
      case Flow::kWarpWide:
        if (lanes == 0) {
          pc_ = next;
        } else {
          meet_lanes(instruction, lanes);
        }
        return;
      case Flow::kSleep:
        pc_ = next;
        slept = true;
        split(0, next);
        return;
      case Flow::kExit:
        for_each_lane(lanes, [&](int lane) { exit(lane); });
        warp_.set_state(warp_.lanes_in(LaneState::kWaitsForLanes),
                        LaneState::kRuns);  // nobody waits for those that exit
        return split(lanes, next);
      case Flow::kBlockBarrier:
        warp_.set_state(lanes, LaneState::kWaitsForBlock);
        warp_.block->arrived += static_cast<uint32_t>(std::popcount(lanes));
        return split(lanes, next, pc_);
      case Flow::kClusterArrive:
        if ((warp_.has_arrived & lanes) != 0) fail(warp_, std::countr_zero(warp_.has_arrived & lanes), "arrives twice");
        warp_.has_arrived |= lanes;
        warp_.cluster->arrived += static_cast<uint32_t>(std::popcount(lanes));
        if (options_.finds_races && lanes != 0) launch_.races.arrive(warp_);
        pc_ = next;
        return;
      case Flow::kClusterWait:
        warp_.set_state(lanes, LaneState::kWaitsForCluster);
        return split(lanes, next, pc_);
      case Flow::kNext:
        return;
    }
  }

  // Ends the group: `apart` have got their places, the others continue at `next`.
  void split(Mask apart, uint32_t next) {
    set_pc(group_ & ~apart, next);
    runnable_ = warp_.lanes_in(LaneState::kRuns);
    is_split_ = true;
  }
  void split(Mask apart, uint32_t next, uint32_t place) {
    set_pc(apart, place);
    split(apart, next);
  }

  void set_pc(Mask lanes, uint32_t pc) {
    for_each_lane(lanes, [&](int lane) { warp_.pc[lane] = pc; });
  }

  // 9.7.13: every lane's mask names the same lanes, itself among them. The instruction
  // runs once all of them that have not exited are here.
  void meet_lanes(const Instruction& instruction, Mask lanes) {
    const Operand& mask = instruction.operands.back();
    const auto wanted = static_cast<Mask>(value_of(warp_, mask, std::countr_zero(lanes)));
    for_each_lane(lanes, [&](int lane) {
      const auto other = static_cast<Mask>(value_of(warp_, mask, lane));
      if (other != wanted) fail(warp_, lane, text_of("masks 0x%08x and 0x%08x in one warp-wide call", wanted, other));
      if ((wanted >> lane & 1u) == 0) fail(warp_, lane, text_of("is not in its mask 0x%08x", wanted));
    });
    Mask waiting = 0;
    for_each_lane(warp_.lanes_in(LaneState::kWaitsForLanes),
                  [&](int lane) { waiting |= Mask{warp_.pc[lane] == pc_} << lane; });
    const Mask here = (lanes | waiting) & wanted;
    if ((wanted & warp_.live() & ~here) != 0) {
      warp_.set_state(lanes, LaneState::kWaitsForLanes);
      return split(lanes, pc_ + 1, pc_);
    }
    execute(instruction, here);
    ++pc_;
    if (waiting == 0) return;
    warp_.set_state(waiting, LaneState::kRuns);
    set_pc(waiting, pc_);
    split(0, pc_);
  }

  void exit(int lane) {
    if (warp_.has_arrived >> lane & 1u) --warp_.cluster->arrived;
    warp_.set_state(Mask{1} << lane, LaneState::kExited);
    --warp_.cluster->live;
    if (--warp_.block->live == 0 && options_.finds_races) launch_.races.end_block(*warp_.block);
  }

  Warp& warp_;
  Launch& launch_;
  const PtxOptions& options_;
  Mask runnable_ = 0, group_ = 0;
  uint32_t pc_ = 0, next_group_ = 0;
  uint64_t left_ = 0, group_left_ = 0;
  bool is_split_ = false;
};

void release(Block& block) {
  for (Warp& warp : block.warps) {
    const Mask waiting = warp.lanes_in(LaneState::kWaitsForBlock);
    for_each_lane(waiting, [&](int lane) {
      // 9.7.13.1: bar.sync is aligned, so all lanes of a warp are at the same one.
      if (warp.pc[lane] != warp.pc[std::countr_zero(waiting)])
        fail(warp, lane, "lanes of a warp wait at different barriers");
    });
    for_each_lane(waiting, [&](int lane) { ++warp.pc[lane]; });
    warp.set_state(waiting, LaneState::kRuns);
  }
  block.arrived = 0;
  Launch& launch = block.cluster->launch;
  ++launch.kernel.counters.barriers;
  if (launch.options.finds_races) launch.races.meet(block);
}

void release(Cluster& cluster) {
  for (Block& block : cluster.blocks) {
    for (Warp& warp : block.warps) {
      for_each_lane(warp.live(), [&](int lane) { ++warp.pc[lane]; });
      warp.set_state(warp.live(), LaneState::kRuns);
      warp.has_arrived = 0;
    }
  }
  cluster.arrived = 0;
  ++cluster.launch.kernel.counters.cluster_barriers;
  if (cluster.launch.options.finds_races) cluster.launch.races.leave(cluster);
}

// The barrier completes once all threads wait: those that have arrived go on to their
// wait by themselves.
bool is_waiting(const Cluster& cluster) {
  for (const Block& block : cluster.blocks) {
    for (const Warp& warp : block.warps) {
      if (warp.live() != warp.lanes_in(LaneState::kWaitsForCluster)) return false;
    }
  }
  return true;
}

const char* state_of(const Warp& warp, int lane) {
  if (warp.lanes_in(LaneState::kWaitsForLanes) >> lane & 1u) return "waits for lanes of its warp";
  return warp.lanes_in(LaneState::kWaitsForBlock) >> lane & 1u ? "waits for its block" : "waits for its cluster";
}

[[noreturn]] void report_deadlock(const Cluster& cluster) {
  std::string all;
  for (const Block& block : cluster.blocks) {
    for (const Warp& warp : block.warps) {
      for_each_lane(warp.live(), [&](int lane) {
        if (all.size() > 600) return;
        const Instruction& at = warp.kernel->code[warp.pc[lane]];
        all += text_of("; block %u thread %u %s at line %d `%s`", block.index.x,
                       warp.id * kLanes + static_cast<unsigned>(lane), state_of(warp, lane), at.line, at.text.c_str());
      });
    }
  }
  throw Fault("deadlock in kernel " + cluster.launch.kernel.name + all);
}

}  // namespace

void run_clusters(std::vector<Cluster*> clusters, void (*pause)()) {
  Launch& launch = clusters.front()->launch;
  std::vector<Warp*> warps;
  for (Cluster* cluster : clusters) {
    for (Block& block : cluster->blocks) {
      for (Warp& warp : block.warps) warps.push_back(&warp);
    }
  }
  const auto is_live = [](const Cluster* cluster) { return cluster->live > 0; };
  while (std::any_of(clusters.begin(), clusters.end(), is_live)) {
    bool has_progressed = false;
    if (launch.options.seed != 0) std::shuffle(warps.begin(), warps.end(), launch.random);
    for (Warp* warp : warps) {
      WarpRunner runner(*warp);
      has_progressed |= runner.run(launch.options.seed != 0 ? 1 + launch.random() % kMaxRandomTurn : kTurn);
    }
    for (Cluster* cluster : clusters) {
      for (Block& block : cluster->blocks) {
        if (block.live == 0 || block.arrived != block.live) continue;
        release(block);
        has_progressed = true;
      }
      if (cluster->live > 0 && cluster->arrived == cluster->live && is_waiting(*cluster)) {
        release(*cluster);
        has_progressed = true;
      }
      if (cluster->live > 0 && !has_progressed) report_deadlock(*cluster);
    }
    pause();
  }
}

}  // namespace structout::ptx_vm
