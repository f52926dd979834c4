// SPDX-License-Identifier: Apache-2.0
#include "ctl/client.h"

#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "broker/unique_fd.h"

namespace ctl {
namespace {

constexpr std::chrono::seconds kDeadline(10);

Failure to_failure(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::OK:
      return Failure::kNone;
    case grpc::StatusCode::INVALID_ARGUMENT:
      return Failure::kInvalid;
    case grpc::StatusCode::NOT_FOUND:
      return Failure::kNotFound;
    case grpc::StatusCode::ALREADY_EXISTS:
      return Failure::kExists;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return Failure::kFull;
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return Failure::kNoBroker;
    default:
      return Failure::kSystem;
  }
}

// Why a call to the socket got no answer: kNoBroker only if there is nobody, else what keeps us from asking.
Status no_answer(const std::string& socket_path) {
  struct stat there = {};
  int error = stat(socket_path.c_str(), &there) == 0 ? 0 : errno;
  if (error == 0 && !S_ISSOCK(there.st_mode)) {
    return broker::fail(Failure::kSystem,
                        socket_path + " is no socket, so no broker can listen there; remove it");
  }
  sockaddr_un address = {};
  if (error == 0 && socket_path.size() < sizeof address.sun_path) {
    address.sun_family = AF_UNIX;
    socket_path.copy(address.sun_path, sizeof address.sun_path - 1);
    const broker::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) error = errno;
  }
  if (error == EACCES || error == EPERM) {
    return broker::fail(Failure::kSystem, "cannot ask the broker on " + socket_path + ": " + strerror(error) +
                                              "; be the user that it runs as, or name another --run-dir");
  }
  return broker::fail(Failure::kNoBroker, "no broker answers on " + socket_path);
}

}  // namespace

Client::Client(const broker::RunDirectory& run) : socket_(run.socket()) {
  // What goes wrong is said in our own words, once.
  gpr_set_log_function([](gpr_log_func_args*) {});
  grpc::ChannelArguments arguments;
  // Each client connects for itself: one that found nobody must not make the next one wait.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  stub_ = v1::Broker::NewStub(
      grpc::CreateCustomChannel("unix:" + socket_, grpc::InsecureChannelCredentials(), arguments));
}

template <typename Call>
Status Client::call(Call call) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kDeadline);
  const grpc::Status status = call(&context);
  const Failure failure = to_failure(status.error_code());
  if (failure == Failure::kNoBroker) return no_answer(socket_);
  return {failure, status.error_message()};
}

Status Client::get_node(v1::Node* node) {
  return call([&](grpc::ClientContext* context) { return stub_->GetNode(context, {}, node); });
}

Status Client::prepare(const v1::PrepareSliceRequest& request, v1::Slice* slice) {
  return call([&](grpc::ClientContext* context) { return stub_->PrepareSlice(context, request, slice); });
}

Status Client::release(const std::string& id, v1::ReleaseSliceResponse* response) {
  v1::ReleaseSliceRequest request;
  request.set_id(id);
  return call([&](grpc::ClientContext* context) { return stub_->ReleaseSlice(context, request, response); });
}

Status Client::update(const v1::UpdateSliceRequest& request, v1::Slice* slice) {
  return call([&](grpc::ClientContext* context) { return stub_->UpdateSlice(context, request, slice); });
}

Status Client::list(v1::ListSlicesResponse* response) {
  return call([&](grpc::ClientContext* context) { return stub_->ListSlices(context, {}, response); });
}

Status Client::explain_time(const std::string& id, v1::ExplainTimeResponse* response) {
  v1::ExplainTimeRequest request;
  request.set_id(id);
  return call([&](grpc::ClientContext* context) { return stub_->ExplainTime(context, request, response); });
}

}  // namespace ctl
