// SPDX-License-Identifier: Apache-2.0
//
// Makes and maps node files. Errors come back as one sentence that says what is wrong, where, and what to do.
#pragma once

#include <string>

#include "sim/layout.h"

namespace sim {

// Reads SIMGPU_GPU, SIMGPU_COUNT, SIMGPU_DRIVER and the rest into settings. False: *error says which value is
// bad.
bool settings_from_environment(NodeSettings* settings, std::string* error);

// Checks what settings from any source must satisfy.
bool check_settings(const NodeSettings& settings, std::string* error);

// "13.0" -> 13000. False if it is not of that form.
bool parse_driver_version(const char* text, uint32_t* version);

// Maps the node file in the directory; without one, makes it with these settings first. Of several that do so
// at once, one makes it and all map the same. nullptr: *error says why.
NodeFile* open_or_create_node(const std::string& directory, const NodeSettings& settings, std::string* error);

// Maps the node file in the directory. nullptr and an empty *error: there is none.
NodeFile* open_node(const std::string& directory, std::string* error);

// A node in memory that only this process and its forked children see. Its file can be opened at *path,
// unless the program closes all its descriptors.
NodeFile* create_private_node(const NodeSettings& settings, std::string* path, std::string* error);

void unmap_node(NodeFile* file);

}  // namespace sim
