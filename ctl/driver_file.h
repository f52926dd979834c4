// SPDX-License-Identifier: Apache-2.0
//
// The driver's library as a file: which one it is, and what it exports.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "broker/status.h"

namespace ctl {

// Has the loader open libcuda.so.1, as it would for a program; *path says which file that is. nullptr: it
// can't, dlerror() says why.
void* open_driver(std::string* path);

// Names of the functions that a shared library of this machine exports, sorted, each once. The file is read
// as the loader reads it, by its segments: it is not loaded, may be stripped of its sections, and may be
// damaged.
broker::Status read_exports(const std::string& path, std::vector<std::string>* names);

// The same of bytes in memory; `name` stands for them in what is said.
broker::Status read_exports(const char* bytes, size_t size, const std::string& name,
                            std::vector<std::string>* names);

}  // namespace ctl
