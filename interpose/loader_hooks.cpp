// SPDX-License-Identifier: Apache-2.0
//
// What dlopen, dlmopen, dlsym and dlvsym do: any name or path of libcuda or libnvidia-ml is our library, if
// the real one is there; a function of theirs is our export, if the real library has it. Everything else is
// the loader's.
#include <string.h>

#include "interpose/driver.h"
#include "interpose/loader.h"
#include "interpose/session.h"

namespace hook {

// What loader_hooks.S does with the call: jumps to `function` with the arguments as they are now, or returns
// `value`.
struct Decision {
  void* function;
  void* value;
};

namespace {

template <typename Function>
Decision go_to(Function* function) {
  return {reinterpret_cast<void*>(function), nullptr};
}
Decision answer(void* value) { return {nullptr, value}; }

constinit RealLibrary nvml_library("libnvidia-ml.so.1");

// A library that we stand in for.
class StandIn {
 public:
  constexpr StandIn(Ours which, const char* stem) : which_(which) {
    for (int i = 0; stem[i] != 0; i++) stem_[i] = stem[i];
  }

  RealLibrary& real() const { return which_ == Ours::kCuda ? driver_library() : nvml_library; }
  bool is_driver() const { return which_ == Ours::kCuda; }

  // "libcuda.so", "libcuda.so.1", "/usr/lib/libcuda.so.550.54.14".
  bool is_named(const char* file) const {
    const char* slash = strrchr(file, '/');
    const char* name = slash != nullptr ? slash + 1 : file;
    const size_t bytes = strlen(stem_);
    return strncmp(name, stem_, bytes) == 0 && (name[bytes] == 0 || name[bytes] == '.');
  }

  // Ours, in this namespace; nullptr if it was not loaded.
  const link_map* own() const {
    const link_map* map = own_.load(std::memory_order_relaxed);
    if (map == nullptr) {
      map = loaded_ours(which_);
      own_.store(map, std::memory_order_relaxed);
    }
    return map;
  }

  // Where our export of that name is.
  void* own_export(const char* name) const {
    const link_map* map = own();
    return map != nullptr ? find_symbol(object_of(map), name) : nullptr;
  }

  // As the loader would see it: opened there by somebody, or needed by something that was loaded.
  bool is_in_global_scope() const {
    return opened_globally_.load(std::memory_order_relaxed) || anything_needs(real().soname());
  }
  void note_opened(int mode) const {
    if ((mode & RTLD_GLOBAL) != 0) opened_globally_.store(true, std::memory_order_relaxed);
  }

  bool open_real() const {
    if (is_driver()) return open_driver();
    if (real().adopt() != nullptr) return true;
    char path[kPathBytes];
    return real().find(nullptr, nullptr, path) && real().open(path) != nullptr;
  }

 private:
  const Ours which_;
  char stem_[24] = {};  // a copy: a pointer would need a relocation
  mutable std::atomic<const link_map*> own_{nullptr};
  mutable std::atomic<bool> opened_globally_{false};
};

constinit StandIn driver_stand_in(Ours::kCuda, "libcuda.so");
constinit StandIn nvml_stand_in(Ours::kNvml, "libnvidia-ml.so");

const StandIn* stand_in_named(const char* file) {
  if (driver_stand_in.is_named(file)) return &driver_stand_in;
  if (nvml_stand_in.is_named(file)) return &nvml_stand_in;
  return nullptr;
}

const StandIn* stand_in_loaded_as(const void* handle) {
  if (handle == nullptr) return nullptr;
  if (handle == driver_stand_in.own()) return &driver_stand_in;
  if (handle == nvml_stand_in.own()) return &nvml_stand_in;
  return nullptr;
}

bool starts_with(const char* text, const char* start) { return strncmp(text, start, strlen(start)) == 0; }

// The driver's libraries talk to each other; between them we are not there.
bool is_driver_code(const void* caller) {
  const link_map* map = map_of_address(caller);
  if (map == nullptr || map->l_name == nullptr || stand_in_loaded_as(map) != nullptr) return false;
  if (map == driver_stand_in.real().map() || map == nvml_stand_in.real().map()) return true;
  const char* slash = strrchr(map->l_name, '/');
  const char* name = slash != nullptr ? slash + 1 : map->l_name;
  return starts_with(name, "libnvidia-") || starts_with(name, "libcudadebugger.");
}

// Makes sure that the real library is open before ours is handed out for it. kBroken: its file can't be
// loaded; dlerror() says why.
enum class Real { kOpen, kAbsent, kBroken };
Real open_for(const StandIn& library, const char* file, const void* caller) {
  RealLibrary& real = library.real();
  if (real.adopt() == nullptr) {
    char path[kPathBytes];
    if (!real.find(file, caller, path)) return Real::kAbsent;
    if (real.open(path) == nullptr) return Real::kBroken;
  }
  // Fills the driver's slots: no call may go elsewhere than to what was opened here.
  return library.open_real() ? Real::kOpen : Real::kBroken;
}

// dlopen() of a bare "libcuda.so.1" would find our library, whose DT_SONAME that is. In a namespace where
// nothing is loaded yet the loader searches for it as it would have without us, and fails with the same
// words.
Decision fail_as_if_not_loaded(void** arguments) {
  const auto mode = reinterpret_cast<intptr_t>(arguments[1]);
  arguments[1] = arguments[0];
  arguments[2] = reinterpret_cast<void*>(mode & ~static_cast<intptr_t>(RTLD_GLOBAL));
  arguments[0] = reinterpret_cast<void*>(LM_ID_NEWLM);
  return go_to(true_loader().dlmopen);
}

void* as_argument(const char* text) { return const_cast<char*>(text); }

// Fails with the loader's own message: the symbol is not in there.
Decision fail_in(void* handle, void** arguments, Decision unchanged) {
  arguments[0] = handle;
  return unchanged;
}

// A handle that has none of the symbols we stand in for.
void* c_library() { return true_loader().dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD); }

// In the global scope ours comes first, even if nobody has loaded the library there, or the real one lacks
// the function.
Decision look_up_in_scope(const StandIn& library, void** arguments, const char* name, Decision unchanged) {
  if (!library.is_in_global_scope() || !library.open_real())
    return fail_in(c_library(), arguments, unchanged);
  if (find_symbol(object_of(library.real().map()), name) != nullptr) return unchanged;
  return fail_in(library.real().handle(), arguments, unchanged);
}

// What the loader hooks stand in for.
bool is_true_loader_function(const void* function) {
  const TrueLoader& loader = true_loader();
  return function == reinterpret_cast<void*>(loader.dlopen) ||
         function == reinterpret_cast<void*>(loader.dlmopen) ||
         function == reinterpret_cast<void*>(loader.dlsym) ||
         function == reinterpret_cast<void*>(loader.dlvsym);
}

// `ask` is the true lookup of the same name on a given handle.
template <typename Ask>
Decision decide_lookup(void** arguments, const void* caller, Decision unchanged, Ask ask) {
  void* handle = arguments[0];
  const auto* name = static_cast<const char*>(arguments[1]);
  // RTLD_NEXT is relative to the caller: only a jump from here keeps that.
  if (name == nullptr || handle == RTLD_NEXT) return unchanged;
  const bool of_loader = starts_with(name, "dl");
  const bool of_driver = starts_with(name, "cu");
  if (!of_loader && !of_driver && !starts_with(name, "nvml")) return unchanged;

  const StandIn* on_own = stand_in_loaded_as(handle);
  if (is_driver_code(caller)) {
    if (on_own != nullptr && on_own->real().map() != nullptr) arguments[0] = on_own->real().handle();
    return unchanged;
  }
  // Our handle stands for the real library's, which knows what it has.
  if (on_own != nullptr && on_own->open_real()) handle = on_own->real().handle();

  const StandIn& library = of_driver || of_loader ? driver_stand_in : nvml_stand_in;
  void* own = library.own_export(name);
  if (own == nullptr && on_own == nullptr) return unchanged;
  if (handle == RTLD_DEFAULT)
    return of_loader ? unchanged : look_up_in_scope(library, arguments, name, unchanged);

  void* found = ask(handle);
  if (found == nullptr || found == own) return answer(found);
  if (of_loader) return answer(own != nullptr && is_true_loader_function(found) ? own : found);
  const link_map* real = library.real().map();
  const bool is_real = real != nullptr && found == find_symbol(object_of(real), name);
  if (!is_real) return answer(found);
  if (own == nullptr && library.is_driver()) note_unknown_function(name);
  return answer(own != nullptr ? own : found);
}

}  // namespace
}  // namespace hook

extern "C" {
[[gnu::visibility("hidden")]] hook::Decision cuslice_decide_dlopen(void** arguments,
                                                                   const void* caller) noexcept;
[[gnu::visibility("hidden")]] hook::Decision cuslice_decide_dlmopen(void** arguments,
                                                                    const void* caller) noexcept;
[[gnu::visibility("hidden")]] hook::Decision cuslice_decide_dlsym(void** arguments,
                                                                  const void* caller) noexcept;
[[gnu::visibility("hidden")]] hook::Decision cuslice_decide_dlvsym(void** arguments,
                                                                   const void* caller) noexcept;
}

// dlopen(file, mode)
hook::Decision cuslice_decide_dlopen(void** arguments, const void* caller) noexcept {
  using namespace hook;
  const Decision unchanged = go_to(true_loader().dlopen);
  const auto* file = static_cast<const char*>(arguments[0]);
  const auto mode = static_cast<int>(reinterpret_cast<intptr_t>(arguments[1]));
  const StandIn* library = file != nullptr ? stand_in_named(file) : nullptr;
  if (library == nullptr || library->own() == nullptr) return unchanged;
  if (is_driver_code(caller)) {
    if (const link_map* real = library->real().map()) arguments[0] = as_argument(real->l_name);
    return unchanged;
  }
  if ((mode & RTLD_NOLOAD) != 0 && library->real().adopt() == nullptr) return answer(nullptr);
  switch (open_for(*library, file, caller)) {
    case Real::kOpen:
      library->note_opened(mode);
      arguments[0] = as_argument(library->own()->l_name);
      return unchanged;
    case Real::kBroken:
      return answer(nullptr);
    case Real::kAbsent:
      break;
  }
  return strcmp(file, library->real().soname()) == 0 ? fail_as_if_not_loaded(arguments) : unchanged;
}

// dlmopen(namespace, file, mode): another namespace gets another copy of ours, which finds the driver there.
hook::Decision cuslice_decide_dlmopen(void** arguments, const void* caller) noexcept {
  using namespace hook;
  const Decision unchanged = go_to(true_loader().dlmopen);
  const auto* file = static_cast<const char*>(arguments[1]);
  const StandIn* library = file != nullptr ? stand_in_named(file) : nullptr;
  if (library == nullptr || library->own() == nullptr || is_driver_code(caller)) return unchanged;
  if (reinterpret_cast<intptr_t>(arguments[0]) == LM_ID_BASE) {
    void* dlopen_arguments[] = {arguments[1], arguments[2], nullptr};
    const Decision decision = cuslice_decide_dlopen(dlopen_arguments, caller);
    if (decision.function != reinterpret_cast<void*>(true_loader().dlopen)) {
      if (decision.function != nullptr) arguments[0] = dlopen_arguments[0];
      return decision;
    }
    arguments[1] = dlopen_arguments[0];
    return unchanged;
  }
  char path[kPathBytes];
  if (library->real().find(file, caller, path)) arguments[1] = as_argument(library->own()->l_name);
  return unchanged;
}

// dlsym(handle, name)
hook::Decision cuslice_decide_dlsym(void** arguments, const void* caller) noexcept {
  using namespace hook;
  auto* dlsym = true_loader().dlsym;
  const auto* name = static_cast<const char*>(arguments[1]);
  return decide_lookup(arguments, caller, go_to(dlsym), [=](void* handle) { return dlsym(handle, name); });
}

// dlvsym(handle, name, version)
hook::Decision cuslice_decide_dlvsym(void** arguments, const void* caller) noexcept {
  using namespace hook;
  auto* dlvsym = true_loader().dlvsym;
  const auto* name = static_cast<const char*>(arguments[1]);
  const auto* version = static_cast<const char*>(arguments[2]);
  return decide_lookup(arguments, caller, go_to(dlvsym),
                       [=](void* handle) { return dlvsym(handle, name, version); });
}
