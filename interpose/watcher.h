// SPDX-License-Identifier: Apache-2.0
//
// The thread that sees work end, one per slice that ever shut its gate on this process. It waits for the
// event of the oldest batch, gives launches without an event one when nothing else is under way, measures,
// and rings the broker when all is done. It sleeps while there is no work, holds nothing while it waits, and
// handles no signals.
#pragma once

#include "interpose/outstanding.h"

namespace gate {

// Once per gate, by whoever set gate.watcher to kRunning. false: there can be no thread.
bool start_watcher(SliceGate& gate);

}  // namespace gate
