// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "broker/api/cuslice.pb.h"
#include "broker/run_directory.h"
#include "broker/status.h"

namespace broker {

namespace v1 = cuslice::broker::v1;

// What a later broker has to know of a slice and does not find in its files: one record for each, in a file
// of its own that is replaced as a whole.
class SliceRecords {
 public:
  explicit SliceRecords(const RunDirectory& run) : run_(run) {}

  Status write(const v1::SliceRecord& record) const;
  // One that can't be read, or is another slice's, is as if the slice had been asked for with nothing but its
  // id.
  v1::SliceRecord read(const std::string& id) const;
  void remove(const std::string& id) const;
  std::vector<std::string> ids() const;

 private:
  const RunDirectory& run_;
};

// Names of what is in a directory, but for those that start with a dot.
std::vector<std::string> directory_names(const std::string& path);

}  // namespace broker
