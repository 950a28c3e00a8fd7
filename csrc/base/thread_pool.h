// Threads that share a loop with their caller.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace structout::engine {

// The threads start with the first call that is worth sharing, and sleep between calls. A
// forked process has none of them, and its caller does the work alone.
class ThreadPool {
 public:
  using Work = std::function<void(size_t begin, size_t end)>;

  // `count` threads beside that of the caller.
  explicit ThreadPool(size_t count) : count_(count) {}

  ~ThreadPool() {
    if (is_forked()) team_.release();  // its threads have stayed behind, and nobody can wait for them
  }

  // Calls work(begin, end) for ranges of 0 ... count, each of `grain_size` or fewer, on
  // several threads at a time, as at::parallel_for does. Returns when all of it is done.
  // `work` must not throw. One call at a time.
  void parallel_for(size_t count, size_t grain_size, const Work& work) {
    if (count == 0) return;
    if (count <= grain_size || is_forked()) return work(0, count);
    if (team_ == nullptr) {
      team_ = std::make_unique<Team>(count_);
      process_ = getpid();
    }
    team_->parallel_for(count, grain_size, work);
  }

 private:
  class Team {
   public:
    explicit Team(size_t count) {
      threads_.reserve(count);
      try {
        while (threads_.size() < count) threads_.emplace_back([this] { help(); });
      } catch (const std::exception&) {  // no more threads, or no memory: those that there are help
      }
    }

    ~Team() {
      {
        std::lock_guard<std::mutex> lock(mutex_);
        is_over_ = true;
      }
      begins_.notify_all();
      for (std::thread& thread : threads_) thread.join();
    }

    void parallel_for(size_t count, size_t grain_size, const Work& work) {
      {
        std::lock_guard<std::mutex> lock(mutex_);
        work_ = &work;
        size_ = count;
        grain_size_ = grain_size;
        next_ = 0;
        ++turn_;
        is_open_ = true;
      }
      begins_.notify_all();
      do_ranges();
      std::unique_lock<std::mutex> lock(mutex_);
      is_open_ = false;  // threads that wake up from now on are too late
      ends_.wait(lock, [this] { return num_busy_ == 0; });
    }

   private:
    void help() {
      std::unique_lock<std::mutex> lock(mutex_);
      for (size_t last_turn = 0;;) {
        begins_.wait(lock, [&] { return is_over_ || (is_open_ && turn_ != last_turn); });
        if (is_over_) return;
        last_turn = turn_;
        ++num_busy_;
        lock.unlock();
        do_ranges();
        lock.lock();
        if (--num_busy_ == 0) ends_.notify_one();
      }
    }

    void do_ranges() {
      for (size_t begin; (begin = next_.fetch_add(grain_size_)) < size_;)
        (*work_)(begin, std::min(begin + grain_size_, size_));
    }

    std::vector<std::thread> threads_;
    std::mutex mutex_;  // guards what follows
    std::condition_variable begins_, ends_;
    bool is_over_ = false;
    bool is_open_ = false;  // true while threads may join the present call
    size_t turn_ = 0;       // the number of that call
    size_t num_busy_ = 0;   // threads that are at it, but for the caller's
    // Set when a call opens. Its threads read them until the last of them is done.
    const Work* work_ = nullptr;
    size_t size_ = 0, grain_size_ = 1;
    std::atomic<size_t> next_{0};
  };

  bool is_forked() const { return team_ != nullptr && getpid() != process_; }

  const size_t count_;
  std::unique_ptr<Team> team_;  // null before the first call that is shared
  pid_t process_ = 0;           // that its threads belong to
};

}  // namespace structout::engine
