// SPDX-License-Identifier: Apache-2.0
//
// Arbitrary bytes as requests for slices and as the records that the broker keeps of them: what passes the
// checks can be promised and kept, what does not is refused with a reason, and a record is of the slice that
// it is read for.
#include <google/protobuf/stubs/logging.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "broker/admission.h"
#include "broker/bypass.h"
#include "broker/records.h"
#include "broker/wishes.h"
#include "input.h"
#include "shm/layout.h"

namespace {

namespace v1 = broker::v1;

constexpr int kGpus = 2;
constexpr char kId[] = "job";

// A run directory with records, gone with the process.
class Run {
 public:
  // What is refused is of no interest a thousand times a second.
  Run() : run_(make()) {
    spdlog::set_level(spdlog::level::off);
    google::protobuf::SetLogHandler(nullptr);
  }
  ~Run() {
    std::error_code ignored;
    std::filesystem::remove_all(run_.path(), ignored);
  }
  const broker::RunDirectory& directory() const { return run_; }

 private:
  static std::string make() {
    std::string pattern = "/dev/shm/requests_fuzz.XXXXXX";
    HOLDS(mkdtemp(pattern.data()) != nullptr);
    HOLDS(mkdir((pattern + "/records").c_str(), 0700) == 0);
    return pattern;
  }
  broker::RunDirectory run_;
};

void prepare(const v1::PrepareSliceRequest& request) {
  if (!broker::is_valid_id(request.id())) return;
  HOLDS(request.id().size() < shm::kSliceIdBytes && request.id().find('/') == std::string::npos);
  HOLDS(request.id() != "." && request.id() != "..");
  HOLDS(broker::same_wish(request, request));
  broker::Wish wish;
  for (const broker::Status& status :
       {broker::read_wish(request, &wish), broker::check_cgroup(request.cgroup())}) {
    HOLDS(status.ok() == status.text.empty());
    if (!status.ok()) return;
  }
  const shm::BypassPolicy policy = broker::bypass_policy(request.bypass());
  HOLDS(policy == shm::kBypassReport || policy == shm::kBypassBlock || policy == shm::kBypassKill);

  std::vector<broker::NodeGpu> gpus(kGpus);
  const std::vector<uint64_t> context_bytes(kGpus, 500 << 20);
  for (int i = 0; i < kGpus; ++i) {
    gpus[i].index = i;
    gpus[i].uuid_text = "GPU-" + std::to_string(i);
    gpus[i].device_bytes = uint64_t{80} << 30;
  }
  broker::Terms terms;
  const broker::Status status = broker::Admission(gpus, context_bytes).admit(wish, &terms);
  HOLDS(status.ok() == status.text.empty());
  if (!status.ok()) return;
  HOLDS(!terms.gpus.empty() && terms.compute_percent >= 1 &&
        terms.compute_percent <= terms.compute_limit_percent && terms.compute_limit_percent <= 100);
  for (const broker::Grant& grant : terms.gpus) {
    HOLDS(grant.gpu >= 0 && grant.gpu < kGpus && grant.quota_bytes >= context_bytes[grant.gpu] &&
          grant.quota_bytes <= broker::usable_bytes(gpus[grant.gpu]));
  }
}

void update(const v1::UpdateSliceRequest& request) {
  std::optional<broker::MemoryAmount> amount;
  if (!broker::check_amount(request.memory(), &amount).ok() || !amount) return;
  HOLDS((amount->bytes > 0 && amount->bytes <= shm::kLedgerBytesMask) != (amount->percent > 0));
  HOLDS(amount->percent <= 100);
}

void take_over(const broker::RunDirectory& run, const std::string& bytes) {
  const broker::SliceRecords records(run);
  {
    std::ofstream file(run.record(kId), std::ios::binary | std::ios::trunc);
    file << bytes;
  }
  const v1::SliceRecord record = records.read(kId);
  HOLDS(record.wish().id() == kId);
  HOLDS(records.write(record).ok());
  HOLDS(records.ids() == std::vector<std::string>{kId});
  HOLDS(records.read(kId).SerializeAsString() == record.SerializeAsString());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Run run;
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  v1::PrepareSliceRequest prepared;
  v1::UpdateSliceRequest updated;
  switch (data[0] % 3) {
    case 0:
      if (prepared.ParseFromString(bytes)) prepare(prepared);
      break;
    case 1:
      if (updated.ParseFromString(bytes)) update(updated);
      break;
    default:
      take_over(run.directory(), bytes);
  }
  return 0;
}
