// SPDX-License-Identifier: Apache-2.0
//
// A broker on a node of fake GPUs, and processes that a test starts and ends.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "broker/run_directory.h"
#include "ctl/client.h"
#include "ctl/snapshot.h"

namespace test {

// A child with its stdout in a pipe. Killed and waited for when it goes out of scope.
class Child {
 public:
  Child(const std::vector<std::string>& command, const std::map<std::string, std::string>& environment);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  std::string read_line();
  std::string read_all();
  void kill_hard();
  void signal(int number) const;
  // Exit status, 128+n for a signal.
  int wait();

 private:
  pid_t pid_ = 0;
  int out_ = -1;
  bool ended_ = false;
  int status_ = 0;
};

// Polls until `done` or the deadline; returns whether it was done.
bool eventually(double seconds, const std::function<bool()>& done);

// The folder of this test's program: fake_tenant is there.
std::string test_directory();

class FakeNode {
 public:
  explicit FakeNode(int gpus = 1);
  ~FakeNode();

  const broker::RunDirectory& run() const { return run_; }
  const std::string& directory() const { return directory_; }
  // What NVML lists: rewrites the whole list.
  void list_processes(const std::string& lines);
  std::map<std::string, std::string> environment() const;

  void start_broker(const std::vector<std::string>& arguments = {});
  Child* broker() { return broker_.get(); }
  void kill_broker();

  ctl::v1::Slice prepare(const std::string& id, uint64_t memory_bytes, uint32_t compute,
                         uint32_t compute_limit = 100);
  ctl::SliceView look(const std::string& id) const;
  std::unique_ptr<Child> start_tenant(const std::string& id, const std::vector<std::string>& arguments = {});

 private:
  const int gpus_;
  const std::string directory_;
  const broker::RunDirectory run_;
  std::unique_ptr<Child> broker_;
};

}  // namespace test
