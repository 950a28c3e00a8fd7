// Unit tests of base/thread_pool.h: each range is done once, before parallel_for() returns.
#include "base/thread_pool.h"

#include <sys/wait.h>

#include <memory>
#include <random>
#include <set>

#include "expect.h"

using structout::engine::ThreadPool;

namespace {

// Counts in plain memory: a thread that still worked after the call would be a race.
void loop_over(ThreadPool& pool, size_t count, size_t grain_size) {
  std::vector<int> times(count);
  pool.parallel_for(count, grain_size, [&](size_t begin, size_t end) {
    EXPECT(begin < end && (end - begin <= grain_size || end - begin == count));
    for (size_t i = begin; i < end; ++i) ++times[i];
  });
  EXPECT(times == std::vector<int>(count, 1));
}

void test_random_calls() {
  std::mt19937 random(1);
  for (size_t num_threads : {0, 1, 3}) {
    ThreadPool pool(num_threads);
    for (int call = 0; call < 2'000; ++call) loop_over(pool, random() % 40, 1 + random() % 8);
  }
}

void test_threads_work_at_the_same_time() {
  ThreadPool pool(2);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::condition_variable all_are_there;
  // Each range waits for two others, so that no thread can do them alone.
  pool.parallel_for(3, 1, [&](size_t, size_t) {
    std::unique_lock<std::mutex> lock(mutex);
    threads.insert(std::this_thread::get_id());
    all_are_there.notify_all();
    all_are_there.wait(lock, [&] { return threads.size() == 3; });
  });
  EXPECT(threads.count(std::this_thread::get_id()) == 1);
}

void test_forked_process_works_alone() {
  auto pool = std::make_unique<ThreadPool>(2);
  loop_over(*pool, 30, 1);
  pid_t child = fork();
  if (child == 0) {
    loop_over(*pool, 30, 1);
    pool.reset();
    _exit(0);
  }
  int status = -1;
  EXPECT(waitpid(child, &status, 0) == child && status == 0);
  loop_over(*pool, 30, 1);
}

}  // namespace

// With an argument, also what TSan cannot follow.
int main(int argc, char**) {
  test_random_calls();
  test_threads_work_at_the_same_time();
  if (argc > 1) test_forked_process_works_alone();
}
