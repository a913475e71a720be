// Scratch memory that outlives a call. A fresh allocation of some megabytes costs the kernel's page faults,
// about as long as the convolution that needs it; here the pages stay.
#ifndef OVERLAP_TRAIN_CONV_SCRATCH_POOL_H_
#define OVERLAP_TRAIN_CONV_SCRATCH_POOL_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <map>
#include <mutex>

namespace overlap_train::conv {

// Thread-safe; one for the process. Idle buffers beyond kIdleBytes are freed, the largest first.
class ScratchPool {
 public:
  static ScratchPool& Get() {
    // Never destroyed: an operation may still run while the process exits.
    static ScratchPool* const pool = new ScratchPool;
    return *pool;
  }

  void* Acquire(std::size_t bytes) {
    bytes = RoundedSize(bytes);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto found = idle_.lower_bound(bytes);
      // A buffer of more than twice the size is left for a call that needs it.
      if (found != idle_.end() && found->first <= 2 * bytes) {
        void* const memory = found->second;
        in_use_.emplace(memory, found->first);
        idle_bytes_ -= found->first;
        idle_.erase(found);
        return memory;
      }
    }
    void* const memory = std::aligned_alloc(kHugePage, bytes);
    if (memory == nullptr) return nullptr;
#ifdef MADV_HUGEPAGE
    madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    std::lock_guard<std::mutex> lock(mutex_);
    in_use_.emplace(memory, bytes);
    return memory;
  }

  void Release(void* memory) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = in_use_.find(memory);
    idle_.emplace(found->second, memory);
    idle_bytes_ += found->second;
    in_use_.erase(found);
    while (idle_bytes_ > kIdleBytes) {
      const auto largest = std::prev(idle_.end());
      idle_bytes_ -= largest->first;
      std::free(largest->second);
      idle_.erase(largest);
    }
  }

 private:
  static constexpr std::size_t kHugePage = std::size_t(2) << 20;
  static constexpr std::size_t kIdleBytes = std::size_t(512) << 20;

  static std::size_t RoundedSize(std::size_t bytes) {
    return (bytes + kHugePage - 1) / kHugePage * kHugePage;
  }

  std::mutex mutex_;
  std::multimap<std::size_t, void*> idle_;
  std::map<void*, std::size_t> in_use_;
  std::size_t idle_bytes_ = 0;
};

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_SCRATCH_POOL_H_
