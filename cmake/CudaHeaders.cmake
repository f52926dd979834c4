# SPDX-License-Identifier: Apache-2.0
#
# Finds NVIDIA's headers and compilers, as scripts/setup.sh leaves them in its cache.
#
#   CUSLICE_CUDA_INCLUDE     newest headers (cuda.h, cudaTypedefs.h, cudaProfiler.h, nvml.h): the
#                            ones that everything is built with
#   CUSLICE_CUDA_12_INCLUDE  CUDA 12.9's headers, the oldest that the driver API table covers
#   CUSLICE_CUDA_13_INCLUDE  CUDA 13.0's headers
#   CUSLICE_NVCC_12          nvcc for programs on the 12.9 runtime
#   CUSLICE_NVCC_13          nvcc for programs on the 13.0 runtime
#   cuda_headers             target that adds the newest headers, as system headers
#
# Only the first is required. The others end in -NOTFOUND where they are missing, and what needs
# them is left out of the build with a message.

if(DEFINED ENV{CUSLICE_CACHE})
  set(cuslice_cache $ENV{CUSLICE_CACHE})
else()
  set(cuslice_cache $ENV{HOME}/.cache/cuslice)
endif()

# A toolkit that was installed without our script can still give the newest headers.
find_path(CUSLICE_CUDA_INCLUDE cuda.h
  PATHS ${cuslice_cache}/cuda-13.5/include ENV CUDA_HOME /usr/local/cuda
  PATH_SUFFIXES include
  NO_DEFAULT_PATH
  DOC "Newest CUDA headers")
find_path(CUSLICE_CUDA_12_INCLUDE cuda.h
  PATHS ${cuslice_cache}/cuda-12.9/include NO_DEFAULT_PATH DOC "CUDA 12.9 headers")
find_path(CUSLICE_CUDA_13_INCLUDE cuda.h
  PATHS ${cuslice_cache}/cuda-13.0/include NO_DEFAULT_PATH DOC "CUDA 13.0 headers")
find_program(CUSLICE_NVCC_12 nvcc
  PATHS ${cuslice_cache}/cuda-12.9/bin NO_DEFAULT_PATH DOC "nvcc with CUDA 12.9's runtime")
find_program(CUSLICE_NVCC_13 nvcc
  PATHS ${cuslice_cache}/cuda-13.0/bin NO_DEFAULT_PATH DOC "nvcc with CUDA 13.0's runtime")
mark_as_advanced(CUSLICE_CUDA_INCLUDE CUSLICE_CUDA_12_INCLUDE CUSLICE_CUDA_13_INCLUDE
  CUSLICE_NVCC_12 CUSLICE_NVCC_13)

foreach(header cuda.h cudaTypedefs.h cudaProfiler.h nvml.h)
  if(NOT EXISTS ${CUSLICE_CUDA_INCLUDE}/${header})
    message(FATAL_ERROR
      "${header} was not found in '${CUSLICE_CUDA_INCLUDE}' "
      "(looked in ${cuslice_cache}, CUDA_HOME and /usr/local/cuda): run scripts/setup.sh")
  endif()
endforeach()

add_library(cuda_headers INTERFACE)
target_include_directories(cuda_headers SYSTEM INTERFACE ${CUSLICE_CUDA_INCLUDE})
