// A mutex for what the whole process shares.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <vector>

namespace structout::engine {

// A fork waits until no thread holds the mutex. So in the forked process, which has none
// of the other threads, the mutex is free and its data are consistent.
class ProcessMutex {
 public:
  ProcessMutex() {
    static const int registered = pthread_atfork(lock_all, unlock_all, unlock_all);
    if (registered != 0) throw std::bad_alloc();
    std::lock_guard<std::mutex> lock(list_mutex());
    all().push_back(this);
  }
  ~ProcessMutex() {
    std::lock_guard<std::mutex> lock(list_mutex());
    all().erase(std::find(all().begin(), all().end(), this));
  }
  ProcessMutex(const ProcessMutex&) = delete;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  static std::mutex& list_mutex() {
    static auto* const mutex = new std::mutex;
    return *mutex;
  }
  static std::vector<ProcessMutex*>& all() {
    static auto* const mutexes = new std::vector<ProcessMutex*>;
    return *mutexes;
  }
  static void lock_all() {
    list_mutex().lock();
    for (ProcessMutex* each : all()) each->lock();
  }
  static void unlock_all() {
    for (ProcessMutex* each : all()) each->unlock();
    list_mutex().unlock();
  }

  std::mutex mutex_;
};

}  // namespace structout::engine
