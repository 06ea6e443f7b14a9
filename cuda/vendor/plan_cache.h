// Plans that cost milliseconds to seconds to make, made once per key by whichever thread asks first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <map>
#include <mutex>
#include <optional>

namespace ortops::vendor {

// The least recently used plan goes when more than `limit` are kept; who still holds it can go on using it, so Value
// should be a shared pointer or hold one. Keys are arrays of integers.
template <class Key, class Value>
class PlanCache {
 public:
  explicit PlanCache(std::size_t limit) : limit_(limit) {}

  // Waits if another thread is making it.
  std::optional<Value> find(const Key& key) {
    std::shared_future<Value> plan;
    {
      std::lock_guard lock(mutex_);
      const auto entry = entries_.find(key);
      if (entry == entries_.end()) return std::nullopt;
      entry->second.used = ++clock_;
      plan = entry->second.plan;
    }
    return plan.get();
  }

  // The plan of `key`, made by `make()` if there is none. If that throws, so does every thread that waited for it, and
  // the next one tries again.
  template <class Make>
  Value get(const Key& key, Make make) {
    std::promise<Value> promise;
    std::shared_future<Value> plan = promise.get_future().share();
    {
      std::unique_lock lock(mutex_);
      const auto [entry, is_new] = entries_.try_emplace(key, Entry{plan, 0});
      entry->second.used = ++clock_;
      if (!is_new) {
        plan = entry->second.plan;
        lock.unlock();
        return plan.get();
      }
      if (entries_.size() > limit_) drop_oldest();
    }
    try {
      promise.set_value(make());
    } catch (...) {
      promise.set_exception(std::current_exception());
      std::lock_guard lock(mutex_);
      entries_.erase(key);
    }
    return plan.get();
  }

 private:
  struct Entry {
    std::shared_future<Value> plan;
    std::uint64_t used;
  };

  // A linear search: it happens beside the making of a plan, which costs a thousand times more.
  void drop_oldest() {
    auto oldest = entries_.begin();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry)
      if (entry->second.used < oldest->second.used) oldest = entry;
    entries_.erase(oldest);
  }

  const std::size_t limit_;
  std::mutex mutex_;
  std::uint64_t clock_ = 0;
  std::map<Key, Entry> entries_;
};

}  // namespace ortops::vendor
