// Unit tests of base/helpers.h: each part is done once, before share() returns.
#include "base/helpers.h"

#include <sys/wait.h>

#include <memory>
#include <random>
#include <set>

#include "expect.h"

using structout::engine::Helpers;

namespace {

// Counts in plain memory: a thread that still worked after share() would be a race.
void share(Helpers& helpers, size_t count, size_t part) {
  std::vector<int> times(count);
  helpers.share(count, part, [&](size_t begin, size_t end) {
    EXPECT(begin < end && (end - begin <= part || end - begin == count));
    for (size_t i = begin; i < end; ++i) ++times[i];
  });
  EXPECT(times == std::vector<int>(count, 1));
}

void test_random_calls() {
  std::mt19937 random(1);
  for (size_t num_threads : {0, 1, 3}) {
    Helpers helpers(num_threads);
    for (int call = 0; call < 2'000; ++call) share(helpers, random() % 40, 1 + random() % 8);
  }
}

void test_helpers_help() {
  Helpers helpers(2);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::condition_variable all_are_there;
  // Each part waits for two others, so that nobody can do them alone.
  helpers.share(3, 1, [&](size_t, size_t) {
    std::unique_lock<std::mutex> lock(mutex);
    threads.insert(std::this_thread::get_id());
    all_are_there.notify_all();
    all_are_there.wait(lock, [&] { return threads.size() == 3; });
  });
  EXPECT(threads.count(std::this_thread::get_id()) == 1);
}

void test_forked_process_works_alone() {
  auto helpers = std::make_unique<Helpers>(2);
  share(*helpers, 30, 1);
  pid_t child = fork();
  if (child == 0) {
    share(*helpers, 30, 1);
    helpers.reset();
    _exit(0);
  }
  int status = -1;
  EXPECT(waitpid(child, &status, 0) == child && status == 0);
  share(*helpers, 30, 1);
}

}  // namespace

// With an argument, also what TSan cannot follow.
int main(int argc, char**) {
  test_random_calls();
  test_helpers_help();
  if (argc > 1) test_forked_process_works_alone();
}
