// SPDX-License-Identifier: Apache-2.0
//
// What a request of the API asks for, checked for what can never be right. Each failure says which part, what
// it is and what it may be.
#pragma once

#include <optional>
#include <string>

#include "broker/admission.h"
#include "broker/api/cuslice.pb.h"
#include "broker/status.h"

namespace broker {

namespace v1 = cuslice::broker::v1;

// 1 to 63 of A-Z a-z 0-9 . _ -, and no dot in front: it is the name of a directory.
bool is_valid_id(const std::string& id);
// Nothing in *amount: no memory was asked for.
Status check_amount(const v1::Memory& memory, std::optional<MemoryAmount>* amount);
Status check_cgroup(const std::string& cgroup);
Status read_wish(const v1::PrepareSliceRequest& request, Wish* wish);
// Whether both ask for the same slice, whoever is to own it.
bool same_wish(v1::PrepareSliceRequest a, v1::PrepareSliceRequest b);

}  // namespace broker
