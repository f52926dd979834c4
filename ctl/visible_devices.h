// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "ctl/client.h"

namespace ctl {

// The UUID of the GPU that a CUDA program on this node would see as its first under `visible`, a value of
// CUDA_VISIBLE_DEVICES. As there, an entry is an index (in PCI order) or the beginning of one GPU's UUID.
// kNotFound: the first entry is neither, and so such a program would see no GPU at all.
Status first_visible_gpu(const std::string& visible, const v1::Node& node, std::string* uuid);

}  // namespace ctl
