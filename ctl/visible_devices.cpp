// SPDX-License-Identifier: Apache-2.0
#include "ctl/visible_devices.h"

#include <charconv>

namespace ctl {
namespace {

std::string first_entry(const std::string& visible) {
  const std::string entry = visible.substr(0, visible.find(','));
  const size_t begin = entry.find_first_not_of(" \t");
  if (begin == std::string::npos) return {};
  return entry.substr(begin, entry.find_last_not_of(" \t") + 1 - begin);
}

bool is_named(const v1::Gpu& gpu, const std::string& entry) {
  uint32_t index = 0;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), index);
  if (error == std::errc() && end == entry.data() + entry.size()) return gpu.index() == index;
  return entry.starts_with("GPU-") && gpu.uuid().starts_with(entry);
}

}  // namespace

Status first_visible_gpu(const std::string& visible, const v1::Node& node, std::string* uuid) {
  const std::string entry = first_entry(visible);
  int named = 0;
  std::string known;
  for (const v1::Gpu& gpu : node.gpus()) {
    known += (known.empty() ? "" : ", ") + std::to_string(gpu.index()) + " (" + gpu.uuid() + ")";
    if (!is_named(gpu, entry)) continue;
    *uuid = gpu.uuid();
    ++named;
  }
  if (named == 1) return {};
  return broker::fail(Failure::kNotFound, "CUDA_VISIBLE_DEVICES='" + visible + "': its first entry names " +
                                              (named == 0 ? "no GPU" : "more than one GPU") +
                                              " of this node; there are: " + known +
                                              "; correct it, unset it, or give --gpu");
}

}  // namespace ctl
