// SPDX-License-Identifier: Apache-2.0
//
// Reads the images that modules are loaded from: cubins (ELF) and fatbins, bare or in the wrapper that nvcc
// makes. Only names and sizes are taken. What is compressed, or PTX, is accepted without being read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace sim {

struct KernelParameter {
  size_t offset;
  size_t size;
};

struct KernelImage {
  int registers = 32;
  int shared_bytes = 0;
  bool parameters_known = false;
  std::vector<KernelParameter> parameters;
};

struct Image {
  // False: any name has to be accepted.
  bool kernels_known = false;
  bool variables_known = false;
  std::map<std::string, KernelImage> kernels;
  std::map<std::string, size_t> variables;  // name -> bytes
};

// False: not an image.
bool read_image(const void* data, Image* image);

}  // namespace sim
