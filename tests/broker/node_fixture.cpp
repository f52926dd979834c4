// SPDX-License-Identifier: Apache-2.0
#include "tests/broker/node_fixture.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

namespace test {

Child::Child(const std::vector<std::string>& command, const std::map<std::string, std::string>& environment) {
  int out[2];
  if (pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(out[1], STDOUT_FILENO);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> arguments;
    for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  close(out[1]);
  out_ = out[0];
}

Child::~Child() {
  kill_hard();
  close(out_);
}

std::string Child::read_line() {
  std::string line;
  for (char c; read(out_, &c, 1) == 1 && c != '\n';) line += c;
  return line;
}

std::string Child::read_all() {
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = read(out_, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(got));
  return text;
}

void Child::kill_hard() {
  if (ended_) return;
  kill(pid_, SIGKILL);
  wait();
}

void Child::signal(int number) const { kill(pid_, number); }

int Child::wait() {
  if (!ended_) {
    int status = 0;
    waitpid(pid_, &status, 0);
    status_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    ended_ = true;
  }
  return status_;
}

bool eventually(double seconds, const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < deadline) {
    if (done()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return done();
}

std::string test_directory() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  const std::string text(path, length > 0 ? static_cast<size_t>(length) : 0);
  return text.substr(0, text.rfind('/'));
}

namespace {

std::string make_directory() {
  std::string name = std::filesystem::temp_directory_path() / "cuslice-test-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
  return name;
}

}  // namespace

FakeNode::FakeNode(int gpus) : gpus_(gpus), directory_(make_directory()), run_(directory_ + "/run") {
  list_processes("");
}

FakeNode::~FakeNode() {
  broker_.reset();
  std::filesystem::remove_all(directory_);
}

void FakeNode::list_processes(const std::string& lines) {
  const std::string path = directory_ + "/nvml";
  {
    std::ofstream file(path + ".new");
    file << "gpus " << gpus_ << "\n" << lines;
  }
  std::filesystem::rename(path + ".new", path);
}

std::map<std::string, std::string> FakeNode::environment() const {
  return {{"LD_LIBRARY_PATH", test_directory() + "/fake_nvml"},
          {"FAKE_NVML", directory_ + "/nvml"},
          {"CUSLICE_RUN_DIR", run_.path()}};
}

void FakeNode::start_broker(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {test_directory() + "/../cusliced", "--log-level", "warn"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  broker_ = std::make_unique<Child>(command, environment());
  const bool answers = eventually(10, [&] {
    ctl::v1::Node node;
    return ctl::Client(run_).get_node(&node).ok() &&
           node.broker_pid() == static_cast<uint32_t>(broker_->pid());
  });
  if (!answers) throw std::runtime_error("the broker does not answer");
}

void FakeNode::kill_broker() {
  broker_->kill_hard();
  broker_.reset();
}

ctl::v1::Slice FakeNode::prepare(const std::string& id, uint64_t memory_bytes, uint32_t compute,
                                 uint32_t compute_limit) {
  ctl::v1::PrepareSliceRequest request;
  request.set_id(id);
  request.add_gpus()->mutable_memory()->set_bytes(memory_bytes);
  request.set_compute(compute);
  request.set_compute_limit(compute_limit);
  ctl::v1::Slice slice;
  const broker::Status status = ctl::Client(run_).prepare(request, &slice);
  if (!status.ok()) throw std::runtime_error(status.text);
  return slice;
}

ctl::SliceView FakeNode::look(const std::string& id) const {
  ctl::SliceView view;
  const broker::Status status = ctl::read_slice(run_.slice(id), &view);
  if (!status.ok()) throw std::runtime_error(status.text);
  return view;
}

std::unique_ptr<Child> FakeNode::start_tenant(const std::string& id,
                                              const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {test_directory() + "/fake_tenant", run_.slice(id)};
  command.insert(command.end(), arguments.begin(), arguments.end());
  auto tenant = std::make_unique<Child>(command, environment());
  if (!tenant->read_line().starts_with("attached")) throw std::runtime_error("the tenant did not attach");
  return tenant;
}

}  // namespace test
