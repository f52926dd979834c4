// SPDX-License-Identifier: Apache-2.0
//
// Memory that another process uses too: an importer, which is this program once more, opens every piece. Who
// made it has taken it from the GPU; the importer takes nothing.
#pragma once

#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver_ways.h"

extern char** environ;

namespace samples {

inline const char kImporter[] = "--importer";

enum class Import : char { kNothing, kIpc, kHandle, kExternal };

// What is sent for a piece; for all but IPC a descriptor comes with it.
struct Offer {
  Import how;
  CUipcMemHandle ipc;
};

inline constexpr int kImporterSocket = 3;

inline void send_offer(int socket, const Offer& offer, int descriptor) {
  iovec data = {const_cast<Offer*>(&offer), sizeof offer};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  EXPECT(sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof offer);
}

// False: the other end has closed. *descriptor is -1 if none came.
inline bool receive_offer(int socket, Offer* offer, int* descriptor) {
  iovec data = {offer, sizeof *offer};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, 0) != sizeof *offer) return false;
  *descriptor = -1;
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message))
    memcpy(descriptor, CMSG_DATA(header), sizeof *descriptor);
  return true;
}

inline void import_one(const Offer& offer, int descriptor) {
  CUdeviceptr address;
  switch (offer.how) {
    case Import::kNothing:
      return;
    case Import::kIpc:
      MUST(CU(cuIpcOpenMemHandle)(&address, offer.ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
      return;
    case Import::kHandle: {
      CUmemGenericAllocationHandle handle;
      MUST(CU(cuMemImportFromShareableHandle)(&handle,
                                              reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
      close(descriptor);
      MUST(CU(cuMemAddressReserve)(&address, kPieceBytes, 0, 0, 0));
      MUST(CU(cuMemMap)(address, kPieceBytes, 0, handle, 0));
      return;
    }
    case Import::kExternal: {
      CUDA_EXTERNAL_MEMORY_HANDLE_DESC memory = {};
      memory.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
      memory.handle.fd = descriptor;
      memory.size = kPieceBytes;
      CUexternalMemory imported;
      MUST(CU(cuImportExternalMemory)(&imported, &memory));
      CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer = {};
      buffer.size = kPieceBytes;
      MUST(CU(cuExternalMemoryGetMappedBuffer)(&address, imported, &buffer));
      return;
    }
  }
}

inline int import_until_end() {
  use_primary_context();
  Offer offer;
  int descriptor;
  const char done = 1;
  while (receive_offer(kImporterSocket, &offer, &descriptor)) {
    import_one(offer, descriptor);
    EXPECT(write(kImporterSocket, &done, 1) == 1);
  }
  return 0;
}

// The importer, for as long as this lives.
class ImporterProcess {
 public:
  explicit ImporterProcess(const char* program) {
    int ends[2];
    EXPECT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    socket_ = ends[0];
    posix_spawn_file_actions_t actions;
    EXPECT(posix_spawn_file_actions_init(&actions) == 0);
    EXPECT(posix_spawn_file_actions_adddup2(&actions, ends[1], kImporterSocket) == 0);
    char* const arguments[] = {const_cast<char*>(program), const_cast<char*>(kImporter), nullptr};
    EXPECT(posix_spawn(&pid_, program, &actions, nullptr, arguments, environ) == 0);
    EXPECT(posix_spawn_file_actions_destroy(&actions) == 0);
    close(ends[1]);
  }
  ImporterProcess(const ImporterProcess&) = delete;
  ImporterProcess& operator=(const ImporterProcess&) = delete;

  // Returns when the importer has the piece open.
  void offer(const Offer& offer, int descriptor) {
    send_offer(socket_, offer, descriptor);
    char done;
    EXPECT(read(socket_, &done, 1) == 1);
  }
  void end() {
    close(socket_);
    int status;
    EXPECT(waitpid(pid_, &status, 0) == pid_ && status == 0);
  }

 private:
  int socket_;
  pid_t pid_;
};

// What the two have in common: the importer is there, with its context, before the first piece.
template <typename Handle>
class Shared : public driver_ways::Pieces<Handle> {
 public:
  explicit Shared(const char* program) : program_(program) {}
  void begin() override {
    driver_ways::Pieces<Handle>::begin();
    importer_ = std::make_unique<ImporterProcess>(program_);
    importer_->offer({Import::kNothing, {}}, -1);  // answered once it has a context
  }
  void give_all() override {
    importer_->end();
    driver_ways::Pieces<Handle>::give_all();
  }

 protected:
  ImporterProcess& importer() { return *importer_; }

 private:
  const char* const program_;
  std::unique_ptr<ImporterProcess> importer_;
};

class SharedByIpc : public Shared<CUdeviceptr> {
 public:
  using Shared::Shared;

 private:
  CUresult take_one(CUdeviceptr* address) override {
    if (const CUresult refused = CU(cuMemAlloc)(address, kPieceBytes)) return refused;
    Offer offer = {Import::kIpc, {}};
    MUST(CU(cuIpcGetMemHandle)(&offer.ipc, *address));
    importer().offer(offer, -1);
    return CUDA_SUCCESS;
  }
  void give_one(CUdeviceptr address) override { MUST(CU(cuMemFree)(address)); }
};

class SharedByHandle : public Shared<CUmemGenericAllocationHandle> {
 public:
  SharedByHandle(const char* program, Import how) : Shared(program), how_(how) {}

 private:
  CUresult take_one(CUmemGenericAllocationHandle* handle) override {
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = on_device();
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (const CUresult refused = CU(cuMemCreate)(handle, kPieceBytes, &prop, 0)) return refused;
    int descriptor;
    MUST(CU(cuMemExportToShareableHandle)(&descriptor, *handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    importer().offer({how_, {}}, descriptor);
    close(descriptor);
    return CUDA_SUCCESS;
  }
  void give_one(CUmemGenericAllocationHandle handle) override { MUST(CU(cuMemRelease)(handle)); }
  const Import how_;
};

}  // namespace samples
