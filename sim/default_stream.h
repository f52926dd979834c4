// SPDX-License-Identifier: Apache-2.0
//
// Which stream NULL means. Every `_ptsz` and `_ptds` export is generated: it selects the per-thread default
// stream for as long as it runs and calls the plain function, so no function of the driver is written twice.
#pragma once

namespace sim {

// Above zero while a `_ptsz` or `_ptds` function runs on this thread. Initial-exec would need static TLS,
// which a library opened with dlopen cannot count on; the default model is right here.
extern thread_local int per_thread_default_stream;

class PerThreadDefaultStream {
 public:
  PerThreadDefaultStream() { ++per_thread_default_stream; }
  ~PerThreadDefaultStream() { --per_thread_default_stream; }
  PerThreadDefaultStream(const PerThreadDefaultStream&) = delete;
  PerThreadDefaultStream& operator=(const PerThreadDefaultStream&) = delete;
};

}  // namespace sim
