# SPDX-License-Identifier: Apache-2.0
#
# Runs interpose/generate.py at build time, into ${CMAKE_BINARY_DIR}/generated/<emit>/, where <emit> is
# one of interpose, nvml-interpose, sim, nvml-sim, null. interpose/README.md lists the files.
#
#   driver_table_headers(TARGET EMIT)  TARGET may #include "generated/<emit>/..."
#   driver_table_exports(TARGET EMIT)  the same, and TARGET, a shared library, exports the whole API:
#                                      assembly, version script, and an error for a hook nobody wrote
#
# The second in two parts, for an object library of which several are linked:
#   driver_table_sources(TARGET EMIT)              the first, and TARGET has the sources of the exports
#   driver_table_version_script(TARGET EMIT NAME)  TARGET, a shared library, exports what that script says
#
# All may be called from any folder and as often as needed; the generator runs once per <emit>.

include_guard()
find_package(Python3 REQUIRED COMPONENTS Interpreter)

set(driver_table_dir ${CMAKE_SOURCE_DIR}/interpose)

function(driver_table_generate emit)
  if(TARGET generated_${emit})
    return()
  endif()
  set(generator ${driver_table_dir}/generate.py)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} ${generator} --emit ${emit} --headers . --list-outputs
    OUTPUT_VARIABLE names OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(out ${CMAKE_BINARY_DIR}/generated/${emit})
  list(TRANSFORM names PREPEND ${out}/ OUTPUT_VARIABLE files)

  set(sets ${CUSLICE_CUDA_INCLUDE})
  set(also)
  foreach(older ${CUSLICE_CUDA_13_INCLUDE} ${CUSLICE_CUDA_12_INCLUDE})
    if(older)
      list(APPEND sets ${older})
      list(APPEND also --also ${older})
    endif()
  endforeach()
  set(headers)
  foreach(set ${sets})
    file(GLOB of_set ${set}/cuda.h ${set}/cuda*Typedefs.h ${set}/cudaProfiler.h ${set}/cudaGL.h
      ${set}/cudaEGL.h ${set}/cudaVDPAU.h ${set}/nvml.h)
    list(APPEND headers ${of_set})
  endforeach()

  # The files are by-products, written only when their text changes: what includes them is rebuilt only then.
  add_custom_command(
    OUTPUT ${out}/stamp
    BYPRODUCTS ${files}
    COMMAND ${Python3_EXECUTABLE} ${generator} --emit ${emit} --headers ${CUSLICE_CUDA_INCLUDE} ${also}
      --out ${out} --cc ${CMAKE_CXX_COMPILER}
    COMMAND ${CMAKE_COMMAND} -E touch ${out}/stamp
    DEPENDS ${generator} ${driver_table_dir}/assembly.py ${driver_table_dir}/headers.py
      ${driver_table_dir}/driver_api.py ${driver_table_dir}/nvml_api.py ${driver_table_dir}/extra_exports.txt ${headers}
    COMMENT "Driver table: ${emit}"
    VERBATIM)
  add_custom_target(generated_${emit} DEPENDS ${out}/stamp)
  add_dependencies(generated generated_${emit})
  set_target_properties(generated_${emit} PROPERTIES driver_table_files "${files}")
endfunction()

function(driver_table_headers target emit)
  driver_table_generate(${emit})
  add_dependencies(${target} generated_${emit})
  target_include_directories(${target} PRIVATE ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE cuda_headers)
endfunction()

function(driver_table_exports target emit)
  driver_table_sources(${target} ${emit})
  driver_table_version_script(${target} ${emit} exports.map)
endfunction()

function(driver_table_sources target emit)
  driver_table_headers(${target} ${emit})
  get_target_property(files generated_${emit} driver_table_files)
  set(sources ${files})
  list(FILTER sources INCLUDE REGEX "\\.(S|cpp)$")
  target_sources(${target} PRIVATE ${sources})
endfunction()

function(driver_table_version_script target emit name)
  driver_table_generate(${emit})
  add_dependencies(${target} generated_${emit})
  set(map ${CMAKE_BINARY_DIR}/generated/${emit}/${name})
  target_link_options(${target} PRIVATE
    LINKER:--version-script=${map} LINKER:--no-undefined-version LINKER:-z,defs)
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${map})
endfunction()
