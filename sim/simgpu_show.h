// SPDX-License-Identifier: Apache-2.0
//
// `simgpu list` and `simgpu show`: what models there are, and what goes on in a node. Both write to standard
// output.
#pragma once

#include <string>

namespace sim {

void list_models();

// The node in the directory, for people or as one JSON object. False: *error says why not.
bool show_node(const std::string& directory, bool as_json, std::string* error);

}  // namespace sim
