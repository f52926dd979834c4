// SPDX-License-Identifier: Apache-2.0
#include "broker/service.h"

#include <grpcpp/grpcpp.h>
#include <sys/stat.h>

#include <chrono>

#include "broker/api/cuslice.grpc.pb.h"

namespace broker {
namespace {

grpc::Status to_grpc(const Status& status) {
  switch (status.failure) {
    case Failure::kNone:
      return grpc::Status::OK;
    case Failure::kInvalid:
      return {grpc::StatusCode::INVALID_ARGUMENT, status.text};
    case Failure::kNotFound:
      return {grpc::StatusCode::NOT_FOUND, status.text};
    case Failure::kExists:
      return {grpc::StatusCode::ALREADY_EXISTS, status.text};
    case Failure::kFull:
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, status.text};
    case Failure::kSystem:
    case Failure::kNoBroker:
      break;
  }
  return {grpc::StatusCode::INTERNAL, status.text};
}

class GrpcService final : public Service, private v1::Broker::Service {
 public:
  GrpcService(EventLoop& loop, Slices& slices, bool transient)
      : loop_(loop), slices_(slices), transient_(transient) {}

  ~GrpcService() override {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  }

  bool listen(const std::string& socket_path) {
    // The socket must not be anybody else's, not even between its making and a chmod.
    const mode_t mask = umask(0177);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + socket_path, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
    server_ = builder.BuildAndStart();
    umask(mask);
    return server_ != nullptr;
  }

 private:
  template <typename Operation>
  grpc::Status on_loop(Operation operation) {
    Status status;
    if (!loop_.call([&] { status = operation(); })) {
      return {grpc::StatusCode::UNAVAILABLE, "the broker is ending"};
    }
    return to_grpc(status);
  }

  grpc::Status GetNode(grpc::ServerContext*, const v1::GetNodeRequest*, v1::Node* node) override {
    node->set_broker_version(CUSLICE_VERSION);
    node->set_transient(transient_);
    return on_loop([&] {
      slices_.describe_node(node);
      return Status();
    });
  }

  grpc::Status PrepareSlice(grpc::ServerContext*, const v1::PrepareSliceRequest* request,
                            v1::Slice* slice) override {
    return on_loop([&] { return slices_.prepare(*request, slice); });
  }

  grpc::Status ReleaseSlice(grpc::ServerContext*, const v1::ReleaseSliceRequest* request,
                            v1::ReleaseSliceResponse* response) override {
    return on_loop([&] { return slices_.release(request->id(), response); });
  }

  grpc::Status UpdateSlice(grpc::ServerContext*, const v1::UpdateSliceRequest* request,
                           v1::Slice* slice) override {
    return on_loop([&] { return slices_.update(*request, slice); });
  }

  grpc::Status ListSlices(grpc::ServerContext*, const v1::ListSlicesRequest*,
                          v1::ListSlicesResponse* response) override {
    return on_loop([&] {
      slices_.list(response);
      return Status();
    });
  }

  grpc::Status ExplainTime(grpc::ServerContext*, const v1::ExplainTimeRequest* request,
                           v1::ExplainTimeResponse* response) override {
    return on_loop([&] { return slices_.explain_time(request->id(), response); });
  }

  EventLoop& loop_;
  Slices& slices_;
  const bool transient_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

Status Service::start(const std::string& socket_path, EventLoop& loop, Slices& slices, bool transient,
                      std::unique_ptr<Service>* service) {
  struct stat there;
  if (lstat(socket_path.c_str(), &there) == 0 && !S_ISSOCK(there.st_mode)) {
    return fail(Failure::kSystem,
                "cannot listen on " + socket_path + ": what is there is no socket; remove it");
  }
  auto grpc_service = std::make_unique<GrpcService>(loop, slices, transient);
  if (!grpc_service->listen(socket_path)) return fail(Failure::kSystem, "cannot listen on " + socket_path);
  *service = std::move(grpc_service);
  return {};
}

}  // namespace broker
