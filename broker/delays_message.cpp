// SPDX-License-Identifier: Apache-2.0
#include "broker/delays_message.h"

namespace broker {

namespace v1 = cuslice::broker::v1;

void describe(const std::vector<Delays::Window>& windows,
              const std::function<std::string(limiter::SliceKey)>& id_of, v1::ExplainTimeResponse* response) {
  for (const Delays::Window& window : windows) {
    v1::TimeWindow* const message = response->add_windows();
    message->set_span_ns(window.span_ns);
    message->set_open_ns(window.open_ns);
    message->set_idle_ns(window.idle_ns);
    message->set_received_ns(window.received_ns);
    message->set_capped_ns(window.capped_ns);
    message->set_handover_ns(window.handover_ns);
    message->set_gaps_ns(window.gaps_ns);
    for (const auto& [key, from] : window.neighbours) {
      v1::Neighbour* const neighbour = message->add_neighbours();
      neighbour->set_id(id_of(key));
      neighbour->set_waited_ns(from.waited_ns);
      neighbour->set_late_ns(from.late_ns);
      neighbour->set_late_turns(from.late_turns);
      neighbour->set_longest_late_ns(from.longest_late_ns);
      neighbour->set_beside_ns(from.beside_ns);
    }
  }
}

}  // namespace broker
