// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "ctl/client.h"
#include "ctl/commands.h"
#include "ctl/slice_json.h"
#include "ctl/snapshot.h"
#include "ctl/table.h"

namespace ctl {
namespace {

constexpr std::chrono::milliseconds kSample(250);

struct Listing {
  std::vector<SliceView> slices;
  std::map<std::string, double> received;        // percent, by id
  std::map<std::string, std::string> gpu_names;  // by UUID
  Status broker;                                 // whether it answers
  v1::Node node;
  std::vector<std::string> problems;
};

Listing look(const broker::RunDirectory& directory) {
  Listing listing;
  Client client(directory);
  v1::ListSlicesResponse ignored;
  listing.broker = client.get_node(&listing.node);
  if (listing.broker.ok()) listing.broker = client.list(&ignored);
  for (const v1::Gpu& gpu : listing.node.gpus()) listing.gpu_names[gpu.uuid()] = std::to_string(gpu.index());

  const std::vector<SliceView> before = read_slices(directory, &listing.problems);
  if (!before.empty()) std::this_thread::sleep_for(kSample);
  if (listing.broker.ok()) static_cast<void>(client.list(&ignored));
  listing.problems.clear();
  listing.slices = read_slices(directory, &listing.problems);
  for (const SliceView& slice : listing.slices) {
    for (const SliceView& earlier : before) {
      // An open gate is not metered: no other slice shares the GPU.
      if (earlier.id == slice.id && !slice.open)
        listing.received[slice.id] = received_percent(earlier, slice);
    }
  }
  return listing;
}

double received_of(const Listing& listing, const SliceView& slice) {
  const auto found = listing.received.find(slice.id);
  return found == listing.received.end() ? -1 : found->second;
}

nlohmann::json to_json(const Listing& listing, const SliceView& slice) {
  nlohmann::json json = ctl::to_json(slice);
  const double received = received_of(listing, slice);
  json["received_percent"] = received < 0 ? nlohmann::json() : nlohmann::json(received);
  return json;
}

// A word, and what an operator has to know of the GPU's memory.
std::string state_of(const SliceView& slice, const GpuView& gpu, bool first) {
  std::string state = first ? slice.condition : "";
  if (gpu.over_bytes() == 0) return state;
  if (first) state += ", ";
  return state + "over quota by " + broker::format_bytes(gpu.over_bytes()) + ": no new memory";
}

void print_table(const Listing& listing) {
  constexpr auto kRight = Table::Align::kRight;
  Table table({{"SLICE"},
               {"GPU"},
               {"QUOTA", kRight},
               {"USED", kRight},
               {"OVERHEAD", kRight},
               {"FREE", kRight},
               {"COMPUTE", kRight},
               {"LIMIT", kRight},
               {"RECEIVED", kRight},
               {"PROCS", kRight},
               {"STATE"}});
  for (const SliceView& slice : listing.slices) {
    bool first = true;
    for (const GpuView& gpu : slice.gpus) {
      const auto name = listing.gpu_names.find(gpu.uuid);
      const std::string share = std::to_string(slice.compute_percent) + " %";
      const std::string limit = std::to_string(slice.compute_limit_percent) + " %";
      const double received = received_of(listing, slice);
      table.add({first ? slice.id : "",
                 name != listing.gpu_names.end() ? name->second : gpu.uuid.substr(0, 12),
                 broker::format_bytes(gpu.quota_bytes), broker::format_bytes(gpu.used_bytes()),
                 broker::format_bytes(gpu.overhead_bytes + gpu.orphaned_bytes),
                 broker::format_bytes(gpu.free_bytes()), first ? share : "", first ? limit : "",
                 first ? format_percent(received) + (received < 0 ? "" : " %") : "",
                 first ? std::to_string(slice.processes.size()) : "", state_of(slice, gpu, first)});
      first = false;
    }
  }
  if (listing.slices.empty()) {
    if (listing.problems.empty()) std::cout << "no slices\n";
  } else {
    std::cout << table.text();
  }
}

}  // namespace

int list(const broker::RunDirectory& directory, bool json) {
  const Listing listing = look(directory);
  if (json) {
    nlohmann::json all = {{"run_directory", directory.path()},
                          {"broker_answers", listing.broker.ok()},
                          {"slices", nlohmann::json::array()},
                          {"problems", listing.problems}};
    for (const SliceView& slice : listing.slices) all["slices"].push_back(to_json(listing, slice));
    std::cout << all.dump(2) << "\n";
  } else {
    print_table(listing);
    if (!listing.broker.ok()) std::cout << "(" << listing.broker.text << ")\n";
    for (const std::string& problem : listing.problems) std::cerr << "cuslicectl: " << problem << "\n";
  }
  return listing.problems.empty() ? 0 : 1;
}

}  // namespace ctl
