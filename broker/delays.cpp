// SPDX-License-Identifier: Apache-2.0
#include "broker/delays.h"

#include <algorithm>
#include <cmath>

namespace broker {
namespace {

struct Length {
  uint64_t bucket_ns;
  uint64_t buckets;  // the last one is under way
};
constexpr Length kLengths[Delays::kWindows] = {{1'000'000'000, 2}, {10'000'000'000, 7}};

uint64_t scaled(uint64_t ns, double part) {
  return part == 1 ? ns : static_cast<uint64_t>(std::llround(static_cast<double>(ns) * part));
}

uint64_t less(uint64_t from, uint64_t what) { return from - std::min(from, what); }

bool overlap(const Delays::Slice& a, const Delays::Slice& b) {
  return a.key != b.key && (a.standing.gpu_mask & b.standing.gpu_mask) != 0;
}

}  // namespace

void Delays::Sum::add(const Sum& other, double part) {
  open_ns += scaled(other.open_ns, part);
  wanted_ns += scaled(other.wanted_ns, part);
  received_ns += scaled(other.received_ns, part);
  capped_ns += scaled(other.capped_ns, part);
  handover_ns += scaled(other.handover_ns, part);
  for (const auto& [key, from] : other.neighbours) {
    Neighbour& to = neighbours[key];
    to.waited_ns += scaled(from.waited_ns, part);
    to.late_ns += scaled(from.late_ns, part);
    to.beside_ns += scaled(from.beside_ns, part);
    to.late_turns += from.late_turns;
    to.longest_late_ns = std::max(to.longest_late_ns, from.longest_late_ns);
  }
}

// The time since the last step is everybody's as they stood after it. What they were found to have done in it
// is known only now: until when a holder had work, and how much was received and wanted.
void Delays::advance(const std::vector<Slice>& slices, uint64_t now_ns) {
  const bool forward = now_ns > now_ns_;
  if (forward) {
    busy_until_ns_.clear();
    for (const Slice& slice : slices) {
      if (slice.standing.idle_since_ns < now_ns) busy_until_ns_[slice.key] = slice.standing.idle_since_ns;
    }
  }
  for (const Slice& slice : slices) {
    const auto [at, added] = accounts_.try_emplace(slice.key, Account{slice, now_ns, 0, {}, {}});
    Account& account = at->second;
    if (!added && forward) {
      Sum sum;
      sum.received_ns = less(slice.received_ns, account.last.received_ns);
      sum.wanted_ns = less(slice.wanted_ns, account.last.wanted_ns);
      put_down(account, now_ns, &sum);
      keep(account, sum, now_ns);
    }
    // What came without time passing is of the next interval.
    if (added || forward) {
      account.last = slice;
    } else {
      account.last.standing = slice.standing;
    }
  }
  present_.clear();
  std::copy_if(slices.begin(), slices.end(), std::back_inserter(present_),
               [](const Slice& slice) { return slice.standing.on_gpu; });
  now_ns_ = now_ns;
}

void Delays::put_down(Account& account, uint64_t now_ns, Sum* sum) {
  const Slice& slice = account.last;
  const uint64_t elapsed_ns = now_ns - std::max(now_ns_, account.since_ns);
  if (slice.standing.open) sum->open_ns = elapsed_ns;
  if (slice.standing.capped) sum->capped_ns = elapsed_ns;
  const bool waits = slice.standing.waits && !slice.standing.capped;
  const bool works = slice.standing.on_gpu && slice.standing.idle_since_ns == UINT64_MAX;
  if (!waits && !works) return;

  std::vector<const Slice*> others;
  for (const Slice& other : present_) {
    if (overlap(slice, other)) others.push_back(&other);
  }
  if (works) {
    for (const Slice* other : others) {
      if (other->standing.idle_since_ns == UINT64_MAX)
        sum->neighbours[other->key].beside_ns += elapsed_ns / (others.size() + 1);
    }
    return;
  }
  // In the order in which they became idle: whoever is still there shares the blame for the time until then.
  std::vector<std::pair<uint64_t, const Slice*>> until;
  for (const Slice* other : others) {
    const auto busy = busy_until_ns_.find(other->key);
    until.emplace_back(busy == busy_until_ns_.end() ? now_ns : busy->second, other);
  }
  std::sort(until.begin(), until.end());
  uint64_t from_ns = now_ns - elapsed_ns;
  for (size_t first = 0; first < until.size(); ++first) {
    const uint64_t until_ns = until[first].first;
    if (until_ns <= from_ns) continue;
    const uint64_t part_ns = (until_ns - from_ns) / (until.size() - first);
    for (size_t i = first; i < until.size(); ++i) {
      // Of time that several share, each has the last part: what is late is at its end.
      wait_for(account, *until[i].second, until_ns - part_ns, until_ns, sum);
    }
    from_ns = until_ns;
  }
  sum->handover_ns = now_ns - from_ns;
  account.handover_ns += sum->handover_ns;
}

void Delays::wait_for(Account& account, const Slice& holder, uint64_t from_ns, uint64_t until_ns,
                      Sum* sum) const {
  Neighbour& neighbour = sum->neighbours[holder.key];
  neighbour.waited_ns += until_ns - from_ns;
  const uint64_t deadline_ns = holder.standing.deadline_ns;
  if (deadline_ns >= until_ns) return;
  const uint64_t late_ns = until_ns - std::max(from_ns, deadline_ns);
  Late& late = account.late[holder.key];
  if (late.deadline_ns != deadline_ns) late = {deadline_ns, 0};
  if (late.late_ns <= late_from_ns_ && late.late_ns + late_ns > late_from_ns_) neighbour.late_turns++;
  late.late_ns += late_ns;
  neighbour.late_ns += late_ns;
  neighbour.longest_late_ns = std::max(neighbour.longest_late_ns, late.late_ns);
}

// Into the buckets that the time since the last step lies in, evenly.
void Delays::keep(Account& account, const Sum& sum, uint64_t now_ns) const {
  const uint64_t begin_ns = std::max(now_ns_, account.since_ns);
  for (int i = 0; i < kWindows; ++i) {
    const Length& length = kLengths[i];
    std::deque<Bucket>& buckets = account.buckets[i];
    const uint64_t last = now_ns / length.bucket_ns;
    uint64_t number = std::max(begin_ns / length.bucket_ns, less(last + 1, length.buckets));
    for (; number <= last; ++number) {
      const uint64_t from_ns = std::max(begin_ns, number * length.bucket_ns);
      const uint64_t until_ns = std::min(now_ns, (number + 1) * length.bucket_ns);
      if (from_ns >= until_ns) continue;
      if (buckets.empty() || buckets.back().number != number) buckets.push_back({number, {}});
      const bool whole = from_ns == begin_ns && until_ns == now_ns;
      buckets.back().sum.add(
          sum, whole ? 1 : static_cast<double>(until_ns - from_ns) / static_cast<double>(now_ns - begin_ns));
    }
    while (!buckets.empty() && buckets.front().number + length.buckets <= last) buckets.pop_front();
  }
}

std::vector<Delays::Window> Delays::windows(limiter::SliceKey slice) const {
  std::vector<Window> windows;
  const auto found = accounts_.find(slice);
  if (found == accounts_.end()) return windows;
  const Account& account = found->second;
  for (int i = 0; i < kWindows; ++i) {
    const Length& length = kLengths[i];
    Sum sum;
    for (const Bucket& bucket : account.buckets[i]) sum.add(bucket.sum, 1);
    const uint64_t first = less(now_ns_ / length.bucket_ns + 1, length.buckets);
    windows.push_back(explain(sum, now_ns_ - std::max(account.since_ns, first * length.bucket_ns)));
  }
  return windows;
}

// Sums that were taken at different moments are made parts of one whole.
Delays::Window Delays::explain(const Sum& sum, uint64_t span_ns) {
  Window window;
  window.span_ns = span_ns;
  uint64_t left_ns = span_ns;
  const auto take = [&left_ns](uint64_t ns) {
    const uint64_t taken_ns = std::min(ns, left_ns);
    left_ns -= taken_ns;
    return taken_ns;
  };
  window.open_ns = take(sum.open_ns);
  window.capped_ns = take(sum.capped_ns);
  window.handover_ns = take(sum.handover_ns);
  uint64_t waited_ns = sum.capped_ns + sum.handover_ns;
  uint64_t beside_ns = 0;
  for (const auto& [key, neighbour] : sum.neighbours) {
    Neighbour& copy = window.neighbours[key] = neighbour;
    copy.waited_ns = take(neighbour.waited_ns);
    copy.late_ns = std::min(copy.late_ns, copy.waited_ns);
    waited_ns += neighbour.waited_ns;
    beside_ns += neighbour.beside_ns;
  }
  window.received_ns = take(sum.received_ns);
  // Under way, and not received: the others' as far as they were there.
  uint64_t under_way_ns = take(less(less(sum.wanted_ns, waited_ns), window.received_ns));
  const uint64_t others_ns = std::min(under_way_ns, beside_ns);
  for (auto& [key, neighbour] : window.neighbours) {
    if (beside_ns == 0) break;
    neighbour.beside_ns =
        scaled(neighbour.beside_ns, static_cast<double>(others_ns) / static_cast<double>(beside_ns));
    neighbour.beside_ns = std::min(neighbour.beside_ns, under_way_ns);
    under_way_ns -= neighbour.beside_ns;
  }
  window.gaps_ns = under_way_ns;
  window.idle_ns = left_ns;
  return window;
}

uint64_t Delays::handover_ns(limiter::SliceKey slice) const {
  const auto found = accounts_.find(slice);
  return found == accounts_.end() ? 0 : found->second.handover_ns;
}

}  // namespace broker
