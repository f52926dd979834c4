// SPDX-License-Identifier: Apache-2.0
//
// Finds the slices of this process and attaches it to them. Called once a process, by the session.
#pragma once

#include "interpose/session.h"

namespace hook {

// kTransparent, kAttached (then *session is filled) or kClosed (one line on stderr has said why). Takes at
// most about three seconds, whatever the broker does. No file descriptor stays open.
Membership attach_slices(Session* session);

// The directories of the slices of this process, for whoever only reads them: calls visit(directory, context)
// for each until it returns false. kTransparent: none; kAttached: visited; kClosed: there should be some.
// *in_container, unless nullptr: they are a container's, which keeps other GPUs from its processes.
using VisitDirectory = bool(const char* directory, void* context);
Membership each_slice_directory(VisitDirectory* visit, void* context, bool* in_container = nullptr);

}  // namespace hook
