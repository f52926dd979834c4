// SPDX-License-Identifier: Apache-2.0
#include "broker/records.h"

#include <dirent.h>
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>

#include "broker/unique_fd.h"

namespace broker {

std::vector<std::string> directory_names(const std::string& path) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(path.c_str()), closedir);
  if (directory == nullptr) return names;
  while (const dirent* entry = readdir(directory.get())) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  return names;
}

Status SliceRecords::write(const v1::SliceRecord& record) const {
  const std::string path = run_.record(record.wish().id());
  const std::string beside = run_.records() + "/.new";
  const std::string bytes = record.SerializeAsString();
  const UniqueFd file(::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file || ::write(file.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()) ||
      fsync(file.get()) != 0 || rename(beside.c_str(), path.c_str()) != 0) {
    return fail(Failure::kSystem, "cannot write " + path + ": " + strerror(errno));
  }
  return {};
}

v1::SliceRecord SliceRecords::read(const std::string& id) const {
  std::ifstream file(run_.record(id), std::ios::binary);
  v1::SliceRecord record;
  // One of another slice would be written to that one's file.
  if (!file || !record.ParseFromIstream(&file) || record.wish().id() != id) {
    spdlog::warn("slice {}: no readable record; it stays until it is released", id);
    record.Clear();
    record.mutable_wish()->set_id(id);
  }
  return record;
}

std::vector<std::string> SliceRecords::ids() const { return directory_names(run_.records()); }

void SliceRecords::remove(const std::string& id) const { unlink(run_.record(id).c_str()); }

}  // namespace broker
