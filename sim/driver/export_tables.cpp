// SPDX-License-Identifier: Apache-2.0
//
// cuGetExportTable: the tables of functions by which NVIDIA's own libraries talk to the driver behind the
// API. Only what those libraries were seen to need is here; every other slot says that it was called and
// fails.
#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "sim/driver/context.h"
#include "sim/driver/integrity_check.h"
#include "sim/driver/log.h"
#include "sim/driver/module.h"
#include "sim/driver/stream.h"

namespace sim {
namespace {

enum class Table {
  kRuntime,
  kHooks,
  kToolsTls,
  kContextStorage,
  kContextCheck,
  kIntegrity,
  kContext,
  kModule,
  kUnnamed
};

constexpr const char* table_name(Table table) {
  switch (table) {
    case Table::kRuntime:
      return "CUDART";
    case Table::kHooks:
      return "hooks";
    case Table::kToolsTls:
      return "TOOLS_TLS";
    case Table::kContextStorage:
      return "CLS";
    case Table::kContextCheck:
      return "CTXCHK";
    case Table::kIntegrity:
      return "INTEG";
    case Table::kContext:
      return "CTX";
    case Table::kModule:
      return "MOD";
    case Table::kUnnamed:
      return "1734dc26";
  }
  return "";
}

template <Table kTable, size_t kSlot>
CUresult unknown_slot() {
  report_unsimulated(
      (std::string("slot ") + std::to_string(kSlot) + " of export table " + table_name(kTable)).c_str());
  return CUDA_ERROR_NOT_SUPPORTED;
}

using Slot = const void*;

template <Table kTable, size_t... kSlots>
std::array<Slot, sizeof...(kSlots)> fill(std::index_sequence<kSlots...>) {
  return {reinterpret_cast<Slot>(&unknown_slot<kTable, kSlots>)...};
}

// A table of kSize slots: slot 0 is the size in bytes, the given ones are set.
template <Table kTable, size_t kSize>
std::array<Slot, kSize>& make_table(std::initializer_list<std::pair<size_t, Slot>> slots) {
  auto& table = *new std::array<Slot, kSize>(fill<kTable>(std::make_index_sequence<kSize>()));
  table[0] = reinterpret_cast<Slot>(sizeof(table));
  for (const auto& [slot, function] : slots) table[slot] = function;
  return table;
}

template <typename Function>
Slot slot_of(Function* function) {
  return reinterpret_cast<Slot>(function);
}

// --- CUDART: cudart itself.

CUresult get_primary_context(CUcontext* context, CUdevice device) {
  if (CUresult error = check_device(device)) return error;
  *context = primary_context(device);  // not activated, not retained
  return CUDA_SUCCESS;
}

const auto& runtime_table() {
  static const auto& table = make_table<Table::kRuntime, 13>({{2, slot_of(get_primary_context)}});
  return table;
}

// --- hooks: memory that cudart keeps for tools.

CUresult hook_buffer(void** buffer, size_t* bytes) {
  static char memory[1024];
  *buffer = memory;
  *bytes = sizeof memory;
  return CUDA_SUCCESS;
}

CUresult small_hook_buffer(void** buffer, size_t* bytes) {
  static char memory[14];
  *buffer = memory;
  *bytes = sizeof memory;
  return CUDA_SUCCESS;
}

CUresult not_supported() { return CUDA_ERROR_NOT_SUPPORTED; }

const auto& hooks_table() {
  // 1, 3 and 4 are called when a kernel node is added to a graph; cudart does without them.
  static const auto& table = make_table<Table::kHooks, 7>({{1, slot_of(not_supported)},
                                                           {2, slot_of(hook_buffer)},
                                                           {3, slot_of(not_supported)},
                                                           {4, slot_of(not_supported)},
                                                           {6, slot_of(small_hook_buffer)}});
  return table;
}

// --- TOOLS_TLS: the current context.

CUresult get_current(CUcontext* context) {
  *context = current_context_or_null();
  return CUDA_SUCCESS;
}

const auto& tools_tls_table() {
  static const auto& table = make_table<Table::kToolsTls, 4>({{2, slot_of(get_current)}});
  return table;
}

// --- CLS: what a library keeps with a context. The only table without a size; it ends with a null.

// The context meant; an inactive primary context counts, as its storage is merely empty.
CUctx_st* storage_owner(CUcontext context) {
  return context != nullptr ? context : current_context_or_null();
}

CUresult storage_set(CUcontext handle, void* key, void* value, void (*destructor)(CUcontext, void*, void*)) {
  CUctx_st* context = storage_owner(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(context->storage_mutex);
  context->storage[key] = {value, destructor};
  return CUDA_SUCCESS;
}

CUresult storage_delete(CUcontext handle, void* key) {
  CUctx_st* context = storage_owner(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(context->storage_mutex);
  return context->storage.erase(key) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult storage_get(void** value, CUcontext handle, void* key) {
  CUctx_st* context = storage_owner(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(context->storage_mutex);
  const auto found = context->storage.find(key);
  if (found == context->storage.end()) return CUDA_ERROR_INVALID_HANDLE;
  *value = found->second.value;
  return CUDA_SUCCESS;
}

const auto& storage_table() {
  static const std::array<Slot, 4> table = {slot_of(storage_set), slot_of(storage_delete),
                                            slot_of(storage_get), nullptr};
  return table;
}

// --- CTXCHK

CUresult check_context(CUcontext, uint32_t* state, void**) {
  *state = 0;
  return CUDA_SUCCESS;
}

CUresult check_nothing() { return CUDA_SUCCESS; }

const auto& context_check_table() {
  static const auto& table =
      make_table<Table::kContextCheck, 15>({{2, slot_of(check_context)}, {3, slot_of(check_nothing)}});
  return table;
}

// --- INTEG

const std::array<Slot, 3>& integrity_table();

CUresult integrity_check(uint32_t version, uint64_t seconds, uint8_t answer[16]) {
  answer_integrity_check(version, seconds, runtime_table().data(), integrity_table().data(),
                         integrity_table()[1], answer);
  return CUDA_SUCCESS;
}

const std::array<Slot, 3>& integrity_table() {
  static const auto& table = make_table<Table::kIntegrity, 3>({{1, slot_of(integrity_check)}});
  return table;
}

// --- CTX: contexts and streams, for cuBLAS and cuFFT.

CUresult context_device(CUcontext handle, int* device) {
  CUctx_st* context;
  if (CUresult error = context_of(handle, &context)) return error;
  *device = context->device;
  return CUDA_SUCCESS;
}

CUresult context_id(CUcontext handle, uint64_t* id) {
  CUctx_st* context;
  if (CUresult error = context_of(handle, &context)) return error;
  *id = context->id;
  return CUDA_SUCCESS;
}

CUresult stream_object(CUcontext, CUstream handle, void** object, int per_thread) {
  CUstream_st* stream;
  const bool own = handle == nullptr && per_thread != 0;
  if (CUresult error = find_stream(own ? CU_STREAM_PER_THREAD : handle, &stream)) return error;
  *object = stream;
  return CUDA_SUCCESS;
}

CUresult stream_id(CUcontext, void* object, uint64_t* id) {
  *id = static_cast<CUstream_st*>(object)->id;
  return CUDA_SUCCESS;
}

const auto& context_table() {
  static const auto& table = make_table<Table::kContext, 95>({{3, slot_of(context_device)},
                                                              {4, slot_of(context_id)},
                                                              {39, slot_of(stream_id)},
                                                              {51, slot_of(stream_object)}});
  return table;
}

// --- MOD: a module's functions, for cuFFT. Returns how many there are, not an error.

size_t each_function(CUcontext, CUmodule module, void (*visit)(void*, CUfunction, uint64_t), void* opaque) {
  if (!is_module(module)) return 0;
  const auto functions = functions_of(module);
  for (CUfunc_st* function : functions) visit(opaque, function, reinterpret_cast<uint64_t>(module));
  return functions.size();
}

const auto& module_table() {
  static const auto& table = make_table<Table::kModule, 96>({{7, slot_of(each_function)}});
  return table;
}

// --- 1734dc26: cuBLAS calls slot 4 and can do without it.

const auto& unnamed_table() {
  static const auto& table = make_table<Table::kUnnamed, 64>({{4, slot_of(not_supported)}});
  return table;
}

std::string uuid_text(const CUuuid& uuid) {
  std::string text;
  for (int i = 0; i < 16; ++i) {
    char hex[4];
    snprintf(hex, sizeof hex, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
             static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[i])));
    text += hex;
  }
  return text;
}

const void* find_table(const std::string& uuid) {
  if (uuid == "6bd5fb6c-5bf4-e74a-8987-d93912fd9df9") return runtime_table().data();
  if (uuid == "a094798c-2e74-2e74-93f2-0800200c0a66") return hooks_table().data();
  if (uuid == "42d85a81-23f6-cb47-8298-f6e78a3aecdc") return tools_tls_table().data();
  if (uuid == "c693336e-1121-df11-a8c3-68f355d89593") return storage_table().data();
  if (uuid == "263e8860-7cd2-6143-92f6-bbd5006dfa7e") return context_check_table().data();
  if (uuid == "d4082055-bde6-704b-8d34-ba123c66e1f2") return integrity_table().data();
  if (uuid == "21318c60-9714-3248-8ca6-41ff7324c8f2") return context_table().data();
  if (uuid == "6e163fbe-b958-444d-835c-e182aff1991e") return module_table().data();
  if (uuid == "1734dc26-800d-4745-8726-c0f1e7dd8bca") return unnamed_table().data();
  return nullptr;
}

// Tables that libraries ask for and are content not to get; having them changes how they behave.
bool known_to_be_absent(const std::string& uuid) {
  return uuid == "f8cff951-2146-8b4e-b9e2-fb469e7c0dd9" ||  // cudart
         uuid == "da9151d3-3ae6-cc41-a5c0-4f26d533e328";    // NVRTC, when it compiles
}

}  // namespace
}  // namespace sim

SIM_API(cuGetExportTable)(const void** table, const CUuuid* id) {
  if (table == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::string uuid = sim::uuid_text(*id);
  const void* found = sim::find_table(uuid);
  if (found == nullptr) {
    if (!sim::known_to_be_absent(uuid)) sim::report_unsimulated(("export table " + uuid).c_str());
    return CUDA_ERROR_NOT_FOUND;
  }
  *table = found;
  return CUDA_SUCCESS;
}
