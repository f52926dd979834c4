// SPDX-License-Identifier: Apache-2.0
//
// Arbitrary messages on the `attach` socket, over whatever the slots say: each is answered or dropped, and
// nobody gets into a slot that does not exist.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "broker/attach.h"
#include "broker/members.h"
#include "input.h"

namespace {

// A slice with its listener, on an event loop of its own.
class Broker {
 public:
  Broker() {
    std::string pattern = "/dev/shm/attach_fuzz.XXXXXX";
    HOLDS(mkdtemp(pattern.data()) != nullptr);
    root_ = pattern;
    shm::GpuTerms gpu = {};
    gpu.device_bytes = gpu.quota_bytes = uint64_t{10} << 30;
    const shm::SliceTerms terms = {"fuzz", &gpu, 1, 25, 50, 0};
    HOLDS(broker::SliceFiles::create(root_ + "/slice", terms, &files_).ok());
    members_ = std::make_unique<broker::Members>(
        loop_, *files_,
        broker::Members::Events{.joined = [](uint32_t slot) { HOLDS(slot < shm::kMaxSlots); },
                                .ended = [](uint32_t, pid_t) {},
                                .reaped = [] {}});
    HOLDS(broker::AttachListener::open(
              loop_, files_->directory(),
              [this](broker::Process peer, const shm::AttachRequest& request) {
                return members_->attach(std::move(peer), request);
              },
              [] {}, &listener_)
              .ok());
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~Broker() {
    loop_.stop();
    thread_.join();
    listener_.reset();
    members_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }

  shm::State& state() { return files_->state(); }
  // What the tenants wrote so far has been looked at.
  void catch_up() {
    HOLDS(loop_.call([this] {
      members_->adopt(0);
      HOLDS(members_->count() <= shm::kMaxSlots);
    }));
  }
  int connect() const {
    const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path, sizeof address.sun_path, "%s/attach", files_->directory().c_str());
    HOLDS(::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    return socket;
  }

 private:
  std::string root_;
  broker::EventLoop loop_;
  std::unique_ptr<broker::SliceFiles> files_;
  std::unique_ptr<broker::Members> members_;
  std::unique_ptr<broker::AttachListener> listener_;
  std::thread thread_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Broker broker;
  fuzz::Input input(data, size);
  for (int round = 0; round < 4 && !input.empty(); ++round) {
    const auto what = input.take<uint8_t>();
    shm::Slot& slot = broker.state().slots[input.take<uint8_t>() % 8];
    slot.owner.store(shm::slot_owner(static_cast<shm::SlotState>(what % 3), what >> 6));
    slot.process.store(input.take<uint64_t>());
    broker.state().header.slots_high.store(input.take<uint32_t>());

    shm::AttachRequest request = {input.take<uint8_t>() % 4u, input.take<uint32_t>(), input.take<uint32_t>(),
                                  input.take<uint32_t>()};
    if (what & 0x08) request.version = shm::kVersion;
    if (what & 0x10) request.slot %= 8;
    if (what & 0x20) request.generation = what >> 6;
    uint8_t message[64] = {};
    memcpy(message, &request, sizeof request);
    const size_t length = what & 0x04 ? input.take<uint8_t>() % sizeof message : sizeof request;

    const int socket = broker.connect();
    if (length != 0) HOLDS(send(socket, message, length, MSG_NOSIGNAL) == static_cast<ssize_t>(length));
    if (length == sizeof request) {
      shm::AttachReply reply = {};
      HOLDS(recv(socket, &reply, sizeof reply, 0) == static_cast<ssize_t>(sizeof reply));
      HOLDS(reply.status <= shm::kAttachDraining);
      HOLDS(reply.status != shm::kAttached || request.slot < shm::kMaxSlots);
    }
    close(socket);
  }
  broker.catch_up();
  return 0;
}
