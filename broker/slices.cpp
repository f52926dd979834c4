// SPDX-License-Identifier: Apache-2.0
#include "broker/slices.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>

#include "broker/bypass.h"
#include "broker/clock.h"
#include "broker/delays_message.h"
#include "broker/wishes.h"

namespace broker {

struct Slices::Slice {
  std::string id;
  limiter::SliceKey key = 0;
  Terms terms;
  std::vector<int> node_gpus;
  v1::SliceRecord record;
  std::unique_ptr<SliceFiles> files;
  std::unique_ptr<Members> members;
  std::unique_ptr<AttachListener> listener;
  std::optional<Process> owner;
  EventLoop::WatchId owner_watch = 0;
  bool draining = false;
  bool damaged = false;          // quarantined for good
  bool blocked = false;          // while a process bypasses it, by policy
  std::vector<Bypass> bypasses;  // that the log has
};

namespace {

bool same_bypass(const Bypass& a, const Bypass& b) {
  return a.pid == b.pid && a.node_gpu == b.node_gpu && a.kind == b.kind;
}

}  // namespace

Slices::Slices(EventLoop& loop, const RunDirectory& run, const Nvml& nvml,
               const Arbitration::Settings& settings)
    : loop_(loop),
      run_(run),
      records_(run),
      nvml_(nvml),
      backstop_([this] { return marks(); },
                [this](uint64_t key) {
                  if (Slice* slice = find(key)) act_on_bypasses(*slice);
                }),
      reconciler_(loop, nvml, backstop_),
      empty_since_ns_(now_ns()),
      // Called from the arbitration's threads.
      arbitration_(
          settings, [this](limiter::SliceKey) { loop_.post([this] { reconciler_.wake(); }); },
          [this](limiter::SliceKey key) {
            loop_.post([this, key] {
              if (Slice* slice = find(key)) quarantine(*slice, "a file of it was cut or overwritten");
            });
          }) {}

Slices::~Slices() = default;

void Slices::take_over() {
  for (const std::string& id : directory_names(run_.slices())) {
    if (Status status = open(id); !status.ok()) {
      spdlog::error("slice {} was left by an earlier broker and cannot be taken over: {}", id, status.text);
    }
  }
  // A record alone is of a slice that was never finished, or removed except for this.
  for (const std::string& id : records_.ids()) {
    if (find(id) == nullptr && access(run_.slice(id).c_str(), F_OK) != 0) records_.remove(id);
  }
}

Status Slices::open(const std::string& id) {
  auto slice = std::make_unique<Slice>();
  slice->id = id;
  if (Status status = SliceFiles::open(run_.slice(id), &slice->files); !status.ok()) return status;
  slice->record = records_.read(id);
  slice->terms = read_terms(slice->files->limits(), &slice->node_gpus);
  slice->draining = (slice->files->limits().header.flags.load() & shm::kDraining) != 0;
  // What bypasses the slice now is found anew.
  const uint32_t flags = slice->files->limits().header.flags.load();
  const bool quarantined = (flags & shm::kQuarantined) != 0 && (flags & shm::kBypassed) == 0;
  if ((flags & shm::kBypassed) != 0)
    slice->files->limits().header.flags.fetch_and(~(shm::kBypassed | shm::kQuarantined));
  charge_unattached(slice->files->limits(), slice->node_gpus, {});

  Slice& taken = *slice;
  if (Status status = start(std::move(slice)); !status.ok()) return status;
  taken.members->adopt(0);
  reconciler_.take_over_orphans(taken.key);
  reconciler_.wake();
  spdlog::info("slice {}: taken over with {} processes", id, taken.members->count());
  if (quarantined) quarantine(taken, "so it was left by an earlier broker");
  // Each may be the end of `taken`.
  if (taken.draining) {
    drain(taken);
  } else {
    watch_owner(taken);
  }
  return {};
}

Status Slices::prepare(const v1::PrepareSliceRequest& request, v1::Slice* description) {
  const std::string& id = request.id();
  if (!is_valid_id(id)) {
    return fail(Failure::kInvalid,
                "bad slice id '" + id + "': 1 to 63 of A-Z a-z 0-9 . _ -, and no dot in front");
  }
  Wish wish;
  if (Status status = read_wish(request, &wish); !status.ok()) return status;
  if (Status status = check_cgroup(request.cgroup()); !status.ok()) return status;

  if (const Slice* there = find(id)) {
    if (there->draining)
      return fail(Failure::kExists, "slice " + id + " was released and waits for its processes to end");
    // The end of an owner is the end of its slice: with a second one, the first to end would take it from the
    // other.
    const uint32_t owner_pid = there->record.wish().owner_pid();
    if (request.owner_pid() != 0 && request.owner_pid() != owner_pid) {
      return fail(Failure::kExists,
                  "slice " + id +
                      (owner_pid != 0 ? " is in use by pid " + std::to_string(owner_pid) : " exists") +
                      "; choose another --name");
    }
    if (!same_wish(there->record.wish(), request)) {
      return fail(
          Failure::kExists,
          "slice " + id + " exists with other terms: release it first, or change it with `cuslicectl set`");
    }
    describe(*there, description);
    return {};
  }

  auto slice = std::make_unique<Slice>();
  slice->id = id;
  if (Status status = admission(nullptr).admit(wish, &slice->terms); !status.ok()) return status;
  *slice->record.mutable_wish() = request;
  if (request.owner_pid() != 0) {
    const uint64_t start_time = process_start_time(static_cast<pid_t>(request.owner_pid()));
    if (start_time == 0)
      return fail(Failure::kInvalid,
                  "the owner, process " + std::to_string(request.owner_pid()) + ", is not there");
    slice->record.set_owner_start_time(start_time);
  }

  std::vector<shm::GpuTerms> gpus;
  for (const Grant& grant : slice->terms.gpus) {
    const NodeGpu& gpu = nvml_.gpus()[grant.gpu];
    shm::GpuTerms terms = {};
    std::copy(gpu.uuid.begin(), gpu.uuid.end(), terms.uuid);
    terms.quota_bytes = grant.quota_bytes;
    terms.device_bytes = gpu.device_bytes;
    terms.context_bytes = reconciler_.context_bytes()[grant.gpu];
    gpus.push_back(terms);
    slice->node_gpus.push_back(grant.gpu);
  }
  const shm::SliceTerms terms = {.id = id.c_str(),
                                 .gpus = gpus.data(),
                                 .gpu_count = static_cast<int>(gpus.size()),
                                 .compute_percent = slice->terms.compute_percent,
                                 .compute_limit_percent = slice->terms.compute_limit_percent,
                                 .priority = slice->terms.priority ? 1u : 0u};
  if (Status status = records_.write(slice->record); !status.ok()) return status;
  if (Status status = SliceFiles::create(run_.slice(id), terms, &slice->files); !status.ok()) {
    if (status.failure != Failure::kExists) records_.remove(id);
    return status;
  }

  slice->files->limits().header.bypass_policy.store(bypass_policy(request.bypass()));
  Slice& made = *slice;
  if (Status status = start(std::move(slice)); !status.ok()) {
    remove_slice_directory(run_.slice(id));
    records_.remove(id);
    return status;
  }
  spdlog::info("slice {}: {} on GPU {}{}, compute {} % (at most {} %)", id,
               format_bytes(made.terms.gpus[0].quota_bytes), made.terms.gpus[0].gpu,
               made.terms.gpus.size() > 1 ? " and others" : "", made.terms.compute_percent,
               made.terms.compute_limit_percent);
  describe(made, description);
  watch_owner(made);
  reconciler_.wake();
  return {};
}

// Brings a slice whose files are there to life.
Status Slices::start(std::unique_ptr<Slice> owned) {
  Slice& slice = *owned;
  slice.key = next_key_++;
  const limiter::SliceKey key = slice.key;
  slice.members = std::make_unique<Members>(
      loop_, *slice.files,
      Members::Events{.joined =
                          [this, key](uint32_t slot) {
                            arbitration_.use_slots(key, slot + 1);
                            reconciler_.wake();
                          },
                      .ended = [this, key](uint32_t slot, pid_t pid) { reconciler_.bury(key, slot, pid); },
                      .reaped =
                          [this, key] {
                            arbitration_.look(key);
                            // Not from here: the members that a slice is removed with are what calls.
                            loop_.post([this, key] {
                              if (Slice* drained = find(key); drained != nullptr && drained->draining)
                                drain(*drained);
                            });
                          }});
  if (Status status = start_listening(slice); !status.ok()) return status;
  slices_[slice.id] = std::move(owned);
  empty_since_ns_ = 0;
  reconciler_.add(key, slice.files.get(), slice.members.get(), slice.node_gpus);
  arbitration_.add(key, arbiter_terms(slice.terms), slice.files.get());
  return {};
}

Status Slices::start_listening(Slice& slice) {
  return AttachListener::open(
      loop_, slice.files->directory(),
      [&slice](Process peer, const shm::AttachRequest& request) {
        if (slice.draining) return shm::kAttachDraining;
        const pid_t pid = peer.pid;
        const shm::AttachStatus status = slice.members->attach(std::move(peer), request);
        spdlog::debug("slice {}: process {} in slot {}: status {}", slice.id, pid, request.slot,
                      static_cast<int>(status));
        return status;
      },
      [this] { reconciler_.wake(); }, &slice.listener);
}

void Slices::watch_owner(Slice& slice) {
  const v1::SliceRecord& record = slice.record;
  // One that was recorded in another pid namespace cannot be told from one that has ended.
  if (record.wish().owner_pid() == 0 || !slice.members->records_are_ours()) return;
  slice.owner = open_process(static_cast<pid_t>(record.wish().owner_pid()), record.owner_start_time());
  if (!slice.owner) {
    spdlog::info("slice {}: its owner is gone", slice.id);
    drain(slice);
    return;
  }
  const limiter::SliceKey key = slice.key;
  slice.owner_watch = loop_.watch(slice.owner->pidfd.get(), [this, key] {
    if (Slice* orphaned = find(key)) {
      spdlog::info("slice {}: its owner has ended", orphaned->id);
      drain(*orphaned);
    }
  });
}

Status Slices::release(const std::string& id, v1::ReleaseSliceResponse* response) {
  Slice* const slice = find(id);
  if (slice == nullptr) {
    // A directory all the same is one that could not be taken over.
    if (is_valid_id(id) && access(run_.slice(id).c_str(), F_OK) == 0) {
      spdlog::warn("slice {}: removed as it was left, whatever its files say", id);
      remove_slice_directory(run_.slice(id));
      records_.remove(id);
    }
    return {};
  }
  for (const uint32_t pid : slice->members->pids()) response->add_draining_pids(pid);
  drain(*slice);
  return {};
}

// No new processes; removed now, or when the last process has ended.
void Slices::drain(Slice& slice) {
  if (slice.owner_watch != 0) {
    loop_.unwatch(slice.owner_watch);
    slice.owner_watch = 0;
  }
  slice.draining = true;
  slice.files->limits().header.flags.fetch_or(shm::kDraining);
  if (slice.members->empty()) {
    remove(slice);
  } else {
    spdlog::info("slice {}: released, waits for {} processes", slice.id, slice.members->count());
  }
}

void Slices::remove(Slice& slice) {
  const std::string id = slice.id;
  arbitration_.remove(slice.key);
  reconciler_.remove(slice.key);
  backstop_.forget_slice(slice.key);
  const std::string directory = slice.files->directory();
  slices_.erase(id);
  remove_slice_directory(directory);
  records_.remove(id);
  spdlog::info("slice {}: removed", id);
  if (!slices_.empty()) return;
  empty_since_ns_ = now_ns();
  emptied_();
}

void Slices::quarantine(Slice& slice, const char* reason) {
  spdlog::error("slice {}: quarantined, {}", slice.id, reason);
  slice.damaged = true;
  slice.files->limits().header.flags.fetch_or(shm::kQuarantined);
  arbitration_.block(slice.key);
}

std::vector<SliceMarks> Slices::marks() const {
  std::vector<SliceMarks> marks;
  for (const auto& [id, slice] : slices_) {
    SliceMarks mark;
    mark.key = slice->key;
    mark.directory = slice->files->directory();
    struct stat limits;
    if (stat((mark.directory + "/limits").c_str(), &limits) == 0) {
      mark.device = limits.st_dev;
      mark.inode = limits.st_ino;
    }
    mark.cgroup = slice->record.wish().cgroup();
    mark.node_gpus = slice->node_gpus;
    if (slice->owner && !slice->draining) mark.owner = slice->owner->pid;
    slice->members->for_each([&](uint32_t, uint32_t, pid_t pid) { mark.pids.push_back(pid); });
    marks.push_back(std::move(mark));
  }
  return marks;
}

void Slices::act_on_bypasses(Slice& slice) {
  const std::vector<Bypass> now = backstop_.bypasses(slice.key);
  shm::LimitsHeader& header = slice.files->limits().header;
  for (const Bypass& bypass : now) {
    const bool known = std::any_of(slice.bypasses.begin(), slice.bypasses.end(),
                                   [&](const Bypass& other) { return same_bypass(bypass, other); });
    if (known) continue;
    header.bypasses.fetch_add(1);
    spdlog::warn("slice {}: bypassed: {}", slice.id, in_words(bypass));
  }
  slice.bypasses = now;
  charge_unattached(slice.files->limits(), slice.node_gpus, now);
  if (now.empty()) {
    header.flags.fetch_and(~shm::kBypassed);
  } else {
    header.flags.fetch_or(shm::kBypassed);
  }

  const auto policy = static_cast<shm::BypassPolicy>(header.bypass_policy.load());
  if (policy == shm::kBypassKill) backstop_.kill(slice.key);
  const bool block = policy == shm::kBypassBlock && !now.empty();
  if (block == slice.blocked || slice.damaged) return;
  slice.blocked = block;
  if (block) {
    spdlog::warn("slice {}: blocked until it is no longer bypassed", slice.id);
    header.flags.fetch_or(shm::kQuarantined);
    arbitration_.block(slice.key);
    return;
  }
  spdlog::info("slice {}: no longer blocked", slice.id);
  header.flags.fetch_and(~shm::kQuarantined);
  arbitration_.remove(slice.key);
  arbitration_.add(slice.key, arbiter_terms(slice.terms), slice.files.get());
  slice.members->for_each(
      [&](uint32_t slot, uint32_t, pid_t) { arbitration_.use_slots(slice.key, slot + 1); });
}

Status Slices::update(const v1::UpdateSliceRequest& request, v1::Slice* description) {
  Slice* const slice = find(request.id());
  if (slice == nullptr) return fail(Failure::kNotFound, "no slice '" + request.id() + "' here");
  std::optional<MemoryAmount> memory;
  if (Status status = check_amount(request.memory(), &memory); !status.ok()) return status;

  Terms terms = slice->terms;
  if (memory) {
    for (Grant& grant : terms.gpus) {
      const uint64_t usable = usable_bytes(nvml_.gpus()[grant.gpu]);
      grant.quota_bytes = memory->bytes != 0
                              ? memory->bytes
                              : static_cast<uint64_t>(static_cast<double>(usable) * memory->percent / 100);
    }
  }
  if (request.compute() != 0) terms.compute_percent = request.compute();
  if (request.compute_limit() != 0) terms.compute_limit_percent = request.compute_limit();
  if (request.has_priority()) terms.priority = request.priority();
  if (Status status = admission(slice).fits(terms); !status.ok()) return status;

  slice->terms = terms;
  shm::Limits& limits = slice->files->limits();
  for (size_t gpu = 0, grant = 0; gpu < slice->node_gpus.size(); ++gpu) {
    if (slice->node_gpus[gpu] >= 0) limits.gpus[gpu].quota_bytes.store(terms.gpus[grant++].quota_bytes);
  }
  limits.share.compute_percent.store(terms.compute_percent);
  limits.share.compute_limit_percent.store(terms.compute_limit_percent);
  limits.share.priority.store(terms.priority ? 1 : 0);
  arbitration_.update(slice->key, arbiter_terms(terms));
  if (request.bypass() != v1::BYPASS_POLICY_UNSPECIFIED) {
    limits.header.bypass_policy.store(bypass_policy(request.bypass()));
    act_on_bypasses(*slice);
  }
  spdlog::info("slice {}: changed", slice->id);
  describe(*slice, description);
  return {};
}

void Slices::list(v1::ListSlicesResponse* response) {
  arbitration_.publish_accounts();
  for (const auto& [id, slice] : slices_) {
    v1::Slice* const description = response->add_slices();
    describe(*slice, description);
    description->set_handover_ns(arbitration_.handover_ns(slice->key));
  }
}

Status Slices::explain_time(const std::string& id, v1::ExplainTimeResponse* response) {
  const Slice* const slice = find(id);
  if (slice == nullptr) return fail(Failure::kNotFound, "no slice '" + id + "' here");
  const auto id_of = [this](limiter::SliceKey key) {
    const Slice* const neighbour = find(key);
    return neighbour == nullptr ? std::string() : neighbour->id;
  };
  broker::describe(arbitration_.delays(slice->key), id_of, response);
  return {};
}

void Slices::describe(const Slice& slice, v1::Slice* description) const {
  description->set_id(slice.id);
  description->set_directory(slice.files->directory());
  for (const Grant& grant : slice.terms.gpus) {
    v1::SliceGpu* const gpu = description->add_gpus();
    gpu->set_uuid(nvml_.gpus()[grant.gpu].uuid_text);
    gpu->set_index(static_cast<uint32_t>(grant.gpu));
    gpu->set_quota_bytes(grant.quota_bytes);
  }
  description->set_compute(slice.terms.compute_percent);
  description->set_compute_limit(slice.terms.compute_limit_percent);
  description->set_priority(slice.terms.priority);
  description->set_driver_data(slice.record.wish().driver_data());
  description->set_draining(slice.draining);
  description->set_quarantined((slice.files->limits().header.flags.load() & shm::kQuarantined) != 0);
  for (const uint32_t pid : slice.members->pids()) description->add_pids(pid);
  const uint32_t policy = slice.files->limits().header.bypass_policy.load();
  description->set_bypass(bypass_policy(static_cast<shm::BypassPolicy>(policy)));
  for (const Bypass& bypass : slice.bypasses) broker::describe(bypass, description->add_bypasses());
}

void Slices::describe_node(v1::Node* node) {
  const Admission now = admission(nullptr);
  for (const NodeGpu& gpu : nvml_.gpus()) {
    v1::Gpu* const description = node->add_gpus();
    description->set_uuid(gpu.uuid_text);
    description->set_index(static_cast<uint32_t>(gpu.index));
    description->set_name(gpu.name);
    description->set_device_bytes(gpu.device_bytes);
    description->set_usable_bytes(usable_bytes(gpu));
    description->set_free_bytes(now.free_bytes(gpu.index));
    description->set_free_compute(now.free_compute(gpu.index));
    description->set_multiprocessors(gpu.multiprocessors);
    description->set_used_bytes(nvml_.used_bytes(gpu.index));
    description->set_busy_percent(nvml_.busy_percent(gpu.index));
    for (const ProcessMemory& process : backstop_.unmanaged(reconciler_.strangers(gpu.index))) {
      v1::UnmanagedProcess* const unmanaged = description->add_unmanaged();
      unmanaged->set_pid(process.pid);
      unmanaged->set_name(process_name(static_cast<pid_t>(process.pid)));
      unmanaged->set_used_bytes(process.used_bytes);
    }
  }
  node->set_driver_version(nvml_.driver_version());
  node->set_broker_pid(static_cast<uint32_t>(getpid()));
}

// What `limits` says, for a slice whose promises this broker did not make itself.
Terms Slices::read_terms(const shm::Limits& limits, std::vector<int>* node_gpus) const {
  Terms terms;
  for (uint32_t i = 0; i < limits.header.gpu_count; ++i) {
    const uint8_t* const uuid = limits.gpus[i].uuid;
    const auto gpu = std::find_if(nvml_.gpus().begin(), nvml_.gpus().end(), [&](const NodeGpu& candidate) {
      return std::equal(candidate.uuid.begin(), candidate.uuid.end(), uuid);
    });
    node_gpus->push_back(gpu == nvml_.gpus().end() ? -1 : gpu->index);
    if (gpu == nvml_.gpus().end()) {
      spdlog::warn("slice {}: its GPU {} is not on this node", limits.header.slice_id,
                   format_uuid(limits.gpus[i].uuid));
      continue;
    }
    terms.gpus.push_back({gpu->index, limits.gpus[i].quota_bytes.load()});
  }
  terms.compute_percent = limits.share.compute_percent.load();
  terms.compute_limit_percent = limits.share.compute_limit_percent.load();
  terms.priority = limits.share.priority.load() != 0;
  return terms;
}

limiter::ArbiterTerms Slices::arbiter_terms(const Terms& terms) const {
  limiter::ArbiterTerms result;
  for (const Grant& grant : terms.gpus) result.gpu_mask |= 1ull << grant.gpu;
  result.compute_percent = terms.compute_percent;
  result.compute_limit_percent = terms.compute_limit_percent;
  result.latency = terms.priority;
  return result;
}

Admission Slices::admission(const Slice* except) const {
  Admission admission(nvml_.gpus(), reconciler_.context_bytes());
  for (const auto& [id, slice] : slices_) {
    if (slice.get() != except) admission.promise(id, slice->terms);
  }
  return admission;
}

Slices::Slice* Slices::find(const std::string& id) {
  const auto found = slices_.find(id);
  return found == slices_.end() ? nullptr : found->second.get();
}

Slices::Slice* Slices::find(limiter::SliceKey key) {
  for (const auto& [id, slice] : slices_) {
    if (slice->key == key) return slice.get();
  }
  return nullptr;
}

}  // namespace broker
