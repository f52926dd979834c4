// SPDX-License-Identifier: Apache-2.0
#include "interpose/watcher.h"

#include <linux/prctl.h>
#include <pthread.h>
#include <signal.h>

#include "interpose/loader.h"
#include "interpose/syscalls.h"

namespace gate {
namespace {

using hook::real;
namespace fn = hook::fn;

// While launches are inside the driver's function, they can't be covered: look again soon.
constexpr uint64_t kInCallNs = 200'000;
constexpr uint64_t kIdleNs = 3600'000'000'000;
constexpr uint64_t kLongestMeasuredNs = 3600'000'000'000;

// 0 if the driver can't say.
uint64_t elapsed_ns(CUevent from, CUevent to) {
  float milliseconds = 0;
  if (from == nullptr || real<fn::cuEventElapsedTime>(&milliseconds, from, to) != CUDA_SUCCESS) return 0;
  if (!(milliseconds > 0)) return 0;
  float ns = milliseconds * 1e6f;
  return ns < static_cast<float>(kLongestMeasuredNs) ? static_cast<uint64_t>(ns) : kLongestMeasuredNs;
}

// Waits for the oldest batch, whose context is pinned if it has one, and takes it off. false: the driver has
// ended. `paced`: without a broker, so that nobody says whether others run at the same time.
bool end_oldest(SliceGate& gate, const Batch& batch, bool paced) {
  uint64_t occupied_ns = 0;
  if (Context* context = batch.context; context != nullptr) {
    real<fn::cuCtxSetCurrent>(context->handle);
    CUresult result = real<fn::cuEventSynchronize>(batch.end);
    if (result == CUDA_ERROR_DEINITIALIZED) return false;
    if (result == CUDA_SUCCESS) {
      uint64_t own_ns = elapsed_ns(batch.begin, batch.end);
      if (batch.key != 0 && own_ns > 0) {
        // As it is now; when the batch began it was another way at most for the first after a change.
        if (paced) {
          estimates.sample_unarbitrated(batch.key, own_ns);
        } else if (gate.line().others.load(std::memory_order_relaxed) & shm::kOthersRun) {
          estimates.sample_beside_others(batch.key, own_ns);
        } else {
          estimates.sample(batch.key, own_ns);
        }
      }
      occupied_ns = batch.first ? own_ns : elapsed_ns(context->last_end, batch.end);
      // The GPU may have been idle before a late end.
      if (batch.late && occupied_ns > batch.estimate_ns) occupied_ns = batch.estimate_ns;
    }
  }
  bool wake_launches, tell;
  {
    Books books;
    uint64_t now_ns = hook::now_ns();
    shm::Work& work = gate.work();
    work.occupied_ns.store(work.occupied_ns.load(std::memory_order_relaxed) + occupied_ns,
                           std::memory_order_relaxed);
    if (Context* context = batch.context; context != nullptr) {
      give_event(books, *context, batch.begin);
      // Work of several streams may end out of order: the account goes on from the latest end.
      if (occupied_ns > 0 || context->last_end == nullptr) {
        give_event(books, *context, context->last_end);
        context->last_end = batch.end;
      } else {
        give_event(books, *context, batch.end);
      }
      unpin(books, *context);
    }
    end_batch(books, gate, now_ns);
    gate.ends.fetch_add(1, std::memory_order_release);
    wake_launches = gate.end_waiters > 0;
    tell = settle(books, gate, now_ns);
  }
  if (wake_launches) hook::futex_wake(&gate.ends, INT32_MAX, false);
  if (tell) ring(gate);
  return true;
}

enum class Errand : uint8_t { kEndOldest, kCover, kLookAgain, kSleep, kSleepOpen };

// What to do next, and what it is to be done with.
struct Plan {
  Errand errand;
  Batch batch = {};
  bool paced = false;
  PinnedStream pinned = {};
  uint32_t sleep_word = 0;  // the futex word's value when there was nothing to do
  bool tell = false;
};

Plan plan(SliceGate& gate) {
  uint32_t grant = gate.line().grant.load(std::memory_order_acquire);
  bool open = gate.line().gate.load(std::memory_order_acquire) & shm::kGateOpen;
  Books books;
  uint64_t now_ns = hook::now_ns();
  if (gate.dirty && !open) adopt_dirty_streams(books, gate, now_ns);
  if (gate.batch_count > 0) {
    Plan plan = {.errand = Errand::kEndOldest,
                 .batch = gate.batches[gate.first_batch],
                 .paced = gate.silent && gate.silent_grant == grant};
    if (plan.batch.context != nullptr) ++plan.batch.context->pins;
    return plan;
  }
  if (PinnedStream pinned = pin_uncovered(books, gate); pinned.stream != nullptr) {
    return {.errand = Errand::kCover, .pinned = pinned};
  }
  uint32_t errands = gate.errands.load(std::memory_order_relaxed);
  if (gate.backlog.kernels > 0) return {.errand = Errand::kLookAgain, .sleep_word = errands};
  bool tell = settle(books, gate, now_ns);
  // With an open gate nobody calls; that it was shut is seen by `grant`.
  if (open) return {.errand = Errand::kSleepOpen, .sleep_word = grant, .tell = tell};
  gate.watcher_sleeps = true;
  return {.errand = Errand::kSleep, .sleep_word = errands, .tell = tell};
}

void* watch(void* argument) {
  SliceGate& gate = *static_cast<SliceGate*>(argument);
  hook::system_call(SYS_prctl, PR_SET_NAME, hook::as_long("cuslice-watch"));
  inside = 1;
  for (;;) {
    Plan next = plan(gate);
    if (next.tell) ring(gate);
    switch (next.errand) {
      case Errand::kEndOldest:
        if (!end_oldest(gate, next.batch, next.paced)) return nullptr;
        break;
      case Errand::kCover:
        cover_pinned(gate, next.pinned);
        break;
      case Errand::kLookAgain:
        hook::futex_wait(&gate.errands, next.sleep_word, kInCallNs, false);
        break;
      case Errand::kSleep:
        hook::futex_wait(&gate.errands, next.sleep_word, kIdleNs, false);
        break;
      case Errand::kSleepOpen:
        hook::futex_wait(&gate.line().grant, next.sleep_word, kIdleNs, true);
        break;
    }
  }
}

using PthreadCreate = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);

}  // namespace

bool start_watcher(SliceGate& gate) {
  auto* create = reinterpret_cast<PthreadCreate*>(hook::find_in_c_library("pthread_create"));
  if (create == nullptr) return false;
  // The program's signals are for its own threads; 32 and 33 are the C library's.
  uint64_t all = ~(uint64_t{1} << 31 | uint64_t{1} << 32), before = 0;
  hook::system_call(SYS_rt_sigprocmask, SIG_SETMASK, hook::as_long(&all), hook::as_long(&before), sizeof all);
  pthread_t thread;
  int error = create(&thread, nullptr, watch, &gate);
  hook::system_call(SYS_rt_sigprocmask, SIG_SETMASK, hook::as_long(&before), 0, sizeof before);
  return error == 0;
}

}  // namespace gate
